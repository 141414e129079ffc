"""`restart_after_fork=True`: a forked child gets the queue anew, empty, with the same handlers."""

from functools import partial

import pytest

from batchqueue import AsyncBatchQueue, ConfigError
from core_support.event_loop import run as run_loop
from core_support.queues import config
from core_support.scripts import FORKS, run_script

FORK = """
import warnings
warnings.simplefilter("ignore")

def child(body):
    # Runs `body` in a forked child that ends like a program; returns its exit code.
    pid = fork_child()
    if pid == 0:
        try:
            body()
        except BaseException as error:
            say("child raised", repr(error))
            os._exit(70)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

def threads():
    names = []
    for task in os.listdir("/proc/self/task"):
        try:
            names.append(open(f"/proc/self/task/{task}/comm").read())
        except OSError:
            continue  # it has ended meanwhile
    return sum(name.startswith("batchqueue-q") for name in names)

def take(batch):
    say("parent" if os.getpid() == parent else "child", sorted(batch))

parent = os.getpid()
settings = config(threads=2, restart_after_fork=True, shutdown_timeout=20)
queue = BatchQueue("q", settings)
queue.add_handler(int, take)
"""


def run(code, how="python"):
    exit_code, out, err = run_script(FORKS[how] + FORK + code)
    assert exit_code == 0, err
    assert "panicked" not in err
    return out


@pytest.fixture(params=FORKS, name="run")
def _run_with_each_fork(request):
    return partial(run, how=request.param)


def test_child_has_an_empty_queue_with_the_same_handlers(run):
    out = run("""
queue.produce(1)
queue.flush(30)

def body():
    say(queue.running, threads())
    stats = queue.stats()
    eventually(lambda: threads() == 2)
    say(stats.produced, stats.consumed, threads())
    queue.produce_many([2, 3])
    say(queue.flush(30), queue.stats().consumed, queue.shutdown(30), queue.running)

say(child(body), queue.running, queue.stats().consumed, queue.flush(30))
""")
    assert out == [
        "parent [1]",
        "True 0",
        "0 0 2",
        "child [2, 3]",
        "True 2 0 False",
        "0 True 1 True",
    ]


@pytest.mark.parametrize("call", ["queue.produce(2)", "queue.produce_many([2])", "queue.submit(2)"])
def test_any_first_call_in_a_child_forked_without_the_hooks_of_python_restarts(call):
    out = run(
        f"""
def body():
    {call}
    say(queue.flush(30), queue.stats().produced, queue.shutdown(30))

fork_child = fork_in_c
queue.produce(1)
queue.flush(30)
say(child(body))
""",
        how="c",
    )
    assert out == ["parent [1]", "child [2]", "True 1 0", "0"]


def test_what_the_parent_has_stays_with_the_parent(run):
    """While a handler holds its desk, its list and the locks of the queue."""
    out = run("""
entered, released = threading.Event(), threading.Event()

def hold(batch):
    if os.getpid() == parent:
        entered.set()
        released.wait(60)
    take(batch)

queue.add_handler(int, hold, replace=True)
queue.produce(1)
entered.wait(30)
queue.produce(2)

def body():
    queue.produce(3)
    say(queue.shutdown(30))

say(child(body))
released.set()
say(queue.shutdown(30))
""")
    assert out == ["child [3]", "0", "0", "parent [1]", "parent [2]", "0"]


def test_child_forks_again(run):
    out = run("""
def grandchild():
    queue.produce(3)
    say("grandchild", queue.shutdown(30))

def body():
    queue.produce(2)
    queue.flush(30)
    say(child(grandchild))
    say(child(lambda: child(grandchild)))
    say(queue.stats().consumed, queue.shutdown(30))

say(child(body), queue.stats().consumed)
""")
    assert out == [
        "child [2]",
        "child [3]",
        "grandchild 0",
        "0",
        "child [3]",
        "grandchild 0",
        "0",
        "1 0",
        "0 0",
    ]


def test_handlers_are_those_that_the_parent_had_at_the_fork(run):
    out = run("""
queue.add_handler(str, lambda batch: say("str", batch))
queue.add_handler(float, lambda batch: say("old", batch))
queue.add_handler(float, lambda batch: say("new", batch), replace=True)
queue.add_handler(bytes, lambda batch: say("bytes", batch))
queue.remove_handler(bytes)
queue.add_handler("rows", lambda batch: say("rows", sum(rows.num_rows for rows in batch)))

def body():
    import pyarrow as pa
    queue.produce_many([1, "a", 2.5, b"b"])
    queue.produce_arrow(pa.record_batch({"tag": ["rows"] * 3}), type_column="tag")
    queue.flush(30)
    say(queue.stats().unhandled)
    queue.add_handler(bytes, lambda batch: say("bytes", batch))
    queue.produce(b"c")
    say(queue.shutdown(30))

say(child(body))
""")
    assert sorted(out[:4]) == ["child [1]", "new [2.5]", "rows 3", "str ['a']"]
    assert out[4:] == ["1", "bytes [b'c']", "0", "0"]


def test_shutdown_in_a_child_that_never_used_the_queue_calls_no_handler(run):
    """Leaving the parent's `with` block, for instance: what a handler has kept is the parent's."""
    out = run("""
class Keeps:
    def consume(self, batch):
        pass
    def on_close(self):
        say("closed in the", "parent" if os.getpid() == parent else "child")

queue.add_handler(str, Keeps())

def body():
    with queue:
        pass
    # The system lists a thread for a moment after it was joined.
    eventually(lambda: threads() == 0)
    say(queue.running, queue.produce(1), threads())

say(child(body))
say(queue.shutdown(30))
""")
    assert out == ["False False 0", "0", "closed in the parent", "0"]


def test_queue_that_the_parent_has_shut_down_stays_shut_down(run):
    out = run("""
queue.shutdown(30)
say(child(lambda: say(queue.running, queue.produce(1), queue.stats().produced)))
""")
    assert out == ["False False 0", "0"]


def test_several_threads_of_a_child_restart_the_queue_once(run):
    out = run("""
def body():
    queue.add_handler(str, lambda batch: None)
    started = threading.Barrier(8)

    def produce():
        started.wait(30)
        for _ in range(100):
            other.produce("x")

    all_threads = [threading.Thread(target=produce) for _ in range(8)]
    for thread in all_threads:
        thread.start()
    for thread in all_threads:
        thread.join(60)
    say(other.shutdown(30), len(seen))

seen = []
other = BatchQueue("q2", settings)
other.add_handler(str, seen.extend)
say(child(body))
""")
    assert out == ["0 800", "0"]


def test_aggregator_of_a_child_begins_empty(run):
    """Also if a drain thread of the parent was inside it."""
    out = run("""
import pyarrow as pa
from batchqueue.aggregation import Aggregation, Aggregator, Count

def emit(partials):
    say(partials.to_pylist())

rows = pa.record_batch({"tag": ["a"] * 4, "key": [1, 1, 2, 2]})
queue.add_handler("a", Aggregator(Aggregation(keys=["key"], measures={"n": Count()}), len))
totals = Aggregator(Aggregation(keys=["key"], measures={"n": Count()}))
queue.add_handler("b", totals)
queue.produce_arrow(rows, type_column="tag")
queue.produce_arrow(rows.set_column(0, "tag", pa.array(["b"] * 4)), type_column="tag")
queue.flush(30)

def body():
    more = pa.record_batch({"tag": ["b"], "key": [3]})
    queue.produce_arrow(more, type_column="tag")
    queue.flush(30)
    say(totals.result().to_pylist())

say(child(body))
say(len(totals))
""")
    assert out == ["[{'key': 3, 'n': 1}]", "0", "2"]


def test_manager_of_a_child_knows_the_queues_that_restart(run):
    out = run("""
kept = BatchQueueManager.create("kept", settings)
kept.add_handler(int, take)
BatchQueueManager.create("gone", config())

def body():
    say(BatchQueueManager.names(), BatchQueueManager.get("kept") is kept)
    kept.produce(1)
    say(BatchQueueManager.shutdown_all(30))

say(child(body))
""")
    assert out == ["['kept'] True", "child [1]", "{'kept': 0}", "0"]


@pytest.mark.parametrize("how", ["Process", "Pool"])
def test_processes_of_multiprocessing_deliver_what_they_accepted(how):
    """They end without the exit of an interpreter."""
    out = run(f"""
import multiprocessing

def work(number):
    queue.produce(number)

context = multiprocessing.get_context("fork")
if {how!r} == "Process":
    process = context.Process(target=work, args=(7,))
    process.start()
    process.join(60)
    say(process.exitcode)
else:
    pool = context.Pool(1)
    pool.map(work, [7])
    pool.close()
    pool.join()
    say(0)
say(queue.stats().produced)
""")
    assert out == ["child [7]", "0", "0"]


def test_exit_of_a_child_delivers_what_it_accepted(run):
    out = run("""
pid = fork_child()
if pid == 0:
    queue.produce_many([1, 2])
    sys.exit(3)
say(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
""")
    assert out == ["child [1, 2]", "3"]


def test_forks_under_load_never_hang_a_child():
    out = run("""
stop = threading.Event()
classes = [type(f"T{number}", (), {}) for number in range(3)]
queue.add_handler(str, len)

def load(number):
    while not stop.is_set():
        queue.produce_many([str(number)] * 100)
        queue.add_handler(classes[number], len)
        queue.remove_handler(classes[number])

loaders = [threading.Thread(target=load, args=(n,), daemon=True) for n in range(3)]
for loader in loaders:
    loader.start()

def body():
    queue.produce_many(["x"] * 100)
    assert queue.flush(60)
    assert queue.stats().consumed == 100
    assert queue.shutdown(60) == 0

say([child(body) for _ in range(20)] == [0] * 20)
stop.set()
for loader in loaders:
    loader.join(60)
say(queue.shutdown(60))
""")
    assert out == ["True", "0"]


def test_async_queue_cannot_restart():
    async def main():
        with pytest.raises(ConfigError, match=r"restart_after_fork=True is given for an Async.*in"):
            AsyncBatchQueue("orders", config(restart_after_fork=True))

    run_loop(main)
