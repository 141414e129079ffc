"""P9: a forked child gets a clear error for its parent's queues, can make new ones, and ends."""

from functools import partial

import pytest

from core_support.scripts import FORKS, run_script

FORK = """
class Handler:
    def __init__(self):
        self.items = []
    def consume(self, batch):
        self.items.extend(batch)

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

def name_of_error(call):
    try:
        return call()
    except BaseException as error:
        return type(error).__name__

handler = Handler()
settings = config(threads=2, partitions=PartitionPolicy.fixed(4), shutdown_timeout=20)
queue = BatchQueue("queue", settings)
queue.add_handler(int, handler)
queue.produce(1)
queue.flush(30)
"""


def run(code, how="python"):
    exit_code, out, err = run_script(
        f"import warnings\nwarnings.simplefilter('ignore')\n{FORKS[how]}" + FORK + code
    )
    assert exit_code == 0, err
    assert "panicked" not in err
    return out


@pytest.fixture(params=FORKS, name="run")
def _run_with_each_fork(request):
    return partial(run, how=request.param)


def test_every_call_on_the_parents_queue_raises_in_the_child(run):
    out = run("""
def body():
    for call in (lambda: queue.produce(1), lambda: queue.produce_many([1]),
                 lambda: queue.produce_many(iter([1])), lambda: queue.flush(),
                 lambda: queue.shutdown(), lambda: queue.stats(),
                 lambda: queue.add_handler(str, handler), lambda: queue.running):
        say(name_of_error(call))
    try:
        queue.produce(1)
    except QueueForkedError as error:
        say(error)
    say(isinstance(QueueForkedError("x"), RuntimeError))
say(child(body))
say(queue.produce(2), queue.flush(30), handler.items)
""")
    assert out[:8] == ["QueueForkedError"] * 8
    assert "fork" in out[8]
    assert "make a new BatchQueue" in out[8]
    assert out[9:] == ["True", "0", "True True [1, 2]"]


@pytest.mark.parametrize(
    "call",
    [
        "queue.produce(1)",
        "queue.produce_many([1])",
        "queue.submit(1)",
        "queue.flush()",
        "queue.shutdown()",
        "queue.stats()",
        "queue.add_handler(str, handler)",
        "queue.rebalance()",
        "queue.running",
    ],
)
def test_any_first_call_in_a_child_forked_without_the_hooks_of_python_raises(call):
    out = run(
        f"""
def body():
    say(name_of_error(lambda: {call}))
    fresh = BatchQueue("fresh", config())
    fresh.add_handler(int, handler)
    say(fresh.produce(2), fresh.flush(30), fresh.shutdown(30), handler.items)
fork_child = fork_in_c
say(child(body))
""",
        how="c",
    )
    assert out == ["QueueForkedError", "True True 0 [1, 2]", "0"]


def test_produce_into_a_full_queue_in_the_child_raises_and_does_not_hang(run):
    out = run("""
small = BatchQueue("small", config(buffer_size=1))
entered, released = threading.Event(), threading.Event()
small.add_handler(int, lambda batch: (entered.set(), released.wait(60)))
small.produce(1)
entered.wait(30)
small.produce(1)
say(child(lambda: say(name_of_error(lambda: small.produce(1)))))
released.set()
""")
    assert out == ["QueueForkedError", "0"]


def test_new_queues_work_in_the_child_with_the_same_handlers(run):
    out = run("""
def body():
    say(BatchQueueManager.names())
    fresh = BatchQueueManager.create("registered", config(threads=2))
    fresh.add_handler(int, handler)
    say(fresh.produce_many([10, 11]), fresh.flush(30), fresh.shutdown(30))
    say(handler.items)
registered = BatchQueueManager.create("registered", config())
say(child(body))
say(BatchQueueManager.names(), handler.items)
""")
    assert out == ["[]", "2 True 0", "[1, 10, 11]", "0", "['registered'] [1]"]


def test_child_forked_while_a_handler_ran_may_use_the_handler(run):
    out = run("""
entered, released = threading.Event(), threading.Event()
class Busy(Handler):
    def consume(self, batch):
        if batch == [5]:
            entered.set()
            released.wait(60)
        super().consume(batch)
busy = Busy()
queue.add_handler(float, busy)
other = BatchQueue("other", config())
other.add_handler(int, busy)
other.produce(5)
entered.wait(30)
def body():
    fresh = BatchQueue("fresh", config())
    fresh.add_handler(int, busy)
    say(fresh.produce(6), fresh.flush(30), busy.items)
say(child(body))
released.set()
say(other.shutdown(30))
""")
    assert out == ["True True [6]", "0", "0"]


@pytest.mark.parametrize("ending", ["", "sys.exit(3)", "raise ValueError"])
def test_child_that_ends_like_a_program_ends(run, ending):
    """The parent's queues are alive in it, and its own queue still has items to deliver."""
    expected = {"": 0, "sys.exit(3)": 3, "raise ValueError": 1}[ending]
    out = run(f"""
pid = fork_child()
if pid == 0:
    fresh = BatchQueue("fresh", config(min_idle_ms=60_000))
    fresh.add_handler(int, lambda batch: say("child delivers", batch))
    fresh.produce(1)
    del queue
    gc.collect()
    {ending or "sys.exit(0)"}
say(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
""")
    assert out == ["child delivers [1]", str(expected)]


def test_sys_exit_in_a_child_forked_inside_a_with_block_keeps_its_code(run):
    out = run("""
with queue:
    pid = fork_child()
    if pid == 0:
        sys.exit(3)
    say(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    say(queue.produce(2))
say(handler.items)
""")
    assert out == ["3", "True", "[1, 2]"]


def test_child_may_print_and_drop_the_parents_queue(run):
    out = run("""
def body():
    global queue
    say("fork" in repr(queue))
    del queue
    gc.collect()
    say("dropped")
say(child(body))
""")
    assert out == ["True", "dropped", "0"]


def test_child_forked_from_a_handler_is_not_a_drain_thread(run):
    out = run("""
def fork(batch):
    def body():
        fresh = BatchQueue("fresh", config())
        fresh.add_handler(int, handler)
        say(fresh.produce(3), fresh.flush(30), fresh.shutdown(30))
    say(child(body))
queue.add_handler(str, fork)
queue.produce("go")
queue.flush(60)
say(queue.stats().failed)
""")
    assert out == ["True True 0", "0", "0"]


def test_multiprocessing_with_fork_works_beside_a_queue():
    out = run("""
import multiprocessing
def work(number, results):
    fresh = BatchQueue("fresh", config())
    seen = []
    fresh.add_handler(int, seen.extend)
    fresh.produce_many(range(number))
    fresh.shutdown(30)
    results.put(sum(seen))
context = multiprocessing.get_context("fork")
results = context.SimpleQueue()
processes = [context.Process(target=work, args=(number, results)) for number in (10, 20, 30)]
for process in processes:
    process.start()
for process in processes:
    process.join(60)
say(sorted(results.get() for _ in processes), [process.exitcode for process in processes])
""")
    assert out == ["[45, 190, 435] [0, 0, 0]"]


def test_forks_in_the_middle_of_traffic_leave_usable_children():
    """A new queue works in the child, whatever locks the parent's threads held at the fork."""
    out = run("""
stop = threading.Event()
def produce():
    number = 0
    while not stop.is_set():
        queue.produce(number)
        number += 1
def body():
    fresh = BatchQueue("fresh", config(threads=2))
    fresh.add_handler(int, handler)
    assert fresh.produce_many([10, 11, 12]) == 3
    assert fresh.flush(20)
    assert fresh.shutdown(20) == 0
threads = [threading.Thread(target=produce) for _ in range(2)]
for thread in threads:
    thread.start()
say({child(body) for _ in range(30)})
stop.set()
for thread in threads:
    thread.join()
say(queue.shutdown(30))
""")
    assert out == ["{0}", "0"]


def test_fork_during_the_first_call_of_a_handler_leaves_a_usable_child():
    """What the core looks up once is not half looked up in the child, which would wait for ever."""
    out = run_script("""
import types, warnings
warnings.simplefilter("ignore")
looking_up, forked = threading.Event(), threading.Event()

class SlowTypes(types.ModuleType):
    def __getattr__(self, name):
        if threading.current_thread() is not threading.main_thread():
            looking_up.set()
            forked.wait(20)
        return getattr(types, name)

sys.modules["types"] = SlowTypes("types")
queue = BatchQueue("queue", config())
called = threading.Event()
def handle(batch):
    called.set()
    return len(batch)  # not None, so that the core checks its type
queue.add_handler(int, handle)
queue.produce(1)
eventually(lambda: looking_up.is_set() or called.is_set() and queue.stats().consumed)
pid = os.fork()
if pid == 0:
    fresh = BatchQueue("fresh", config())
    fresh.add_handler(int, len)
    fresh.produce(1)
    os._exit(fresh.shutdown(10))
forked.set()
say(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), queue.shutdown(30))
""")
    assert out[:2] == (0, ["0 0"]), out
