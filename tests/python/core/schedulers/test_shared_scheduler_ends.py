"""P9 with shared pools: exits of the interpreter, and forks."""

import pytest

from core_support.scripts import run_script

POOL = """
import warnings
warnings.simplefilter("ignore")

def on_pool(name="pool", threads=2, **settings):
    settings.setdefault("max_idle_ms", 60_000)
    return BatchQueueConfig(shared_scheduler=(name, ThreadPolicy.fixed(threads)), **settings)

def child(body):
    # Runs `body` in a forked child that ends like a program; returns its exit code.
    pid = os.fork()
    if pid == 0:
        code = 0
        try:
            body()
        except BaseException as error:
            say("child raised", repr(error))
            code = 70
        os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

def name_of_error(call):
    try:
        return call()
    except BaseException as error:
        return type(error).__name__

def states_of(pool):
    # One letter for each of its threads: S means that it sleeps.
    states = []
    for task in os.listdir("/proc/self/task"):
        try:
            stat = open(f"/proc/self/task/{task}/stat").read()
            name, _, rest = stat.partition("(")[2].rpartition(")")
        except OSError:
            continue
        if name.startswith(f"batchqueue-{pool}"[:15]):
            states.append(rest.split()[0])
    return states

def threads_of(pool):
    return len(states_of(pool))
"""


def run(code):
    exit_code, out, err = run_script(POOL + code)
    assert exit_code == 0, err
    assert "panicked" not in err
    assert "FATAL" not in err
    return out


def test_exit_with_an_idle_pool():
    out = run("""
queue = BatchQueue("queue", on_pool())
queue.add_handler(int, say)
other = BatchQueueManager.create("other", on_pool("other"))
queue.produce(1)
queue.flush(30)
eventually(lambda: threads_of("pool") == threads_of("other") == 2)
say("2 2")
""")
    assert out == ["[1]", "2 2"]


def test_exit_delivers_what_queues_on_a_pool_accepted():
    out = run("""
class Stage:
    def __init__(self, name, following=None):
        self.name, self.following, self.items = name, following, []
    def consume(self, batch):
        self.items += batch
    def on_close(self):
        total = sum(self.items)
        say(self.name, total, self.following is None or self.following.produce(total))
last = BatchQueue("last", on_pool(threads=1, min_idle_ms=60_000))
last.add_handler(int, Stage("last"))
first = BatchQueue("first", on_pool(threads=1, min_idle_ms=60_000))
first.add_handler(int, Stage("first", last))
first.produce_many(range(1_000))
""")
    assert out == ["first 499500 True", "last 499500 True"]


@pytest.mark.parametrize(
    ("place", "body"),
    [
        ("consume", "time.sleep(1000)"),
        ("consume", "while True: pass"),
        ("consume", "time.sleep(0.6)"),
        ("consume", "raise_late()"),
        ("on_idle", "time.sleep(0.6)"),
        ("on_close", "time.sleep(0.6)"),
    ],
)
def test_exit_with_a_hanging_pool_ends(place, body):
    """Also when its worker returns in the interpreter's last phase."""
    out = run(f"""
class SlowEnd:
    def __init__(self):
        self.sleep = time.sleep
    def __del__(self):
        self.sleep(0.5)
sys.modules["slow_end"] = SlowEnd()

lock, entered = threading.Lock(), threading.Event()
lock.acquire()

def raise_late():
    time.sleep(0.6)
    raise ValueError("late")

def hang(*_):
    entered.set()
    {body}

class Handler:
    def consume(self, batch):
        pass

setattr(Handler, {place!r}, hang)
queue = BatchQueue("queue", on_pool(shutdown_timeout=0.3))
queue.add_handler(int, hang if {place!r} == "consume" else Handler())
healthy = BatchQueue("healthy", on_pool(shutdown_timeout=20))
healthy.add_handler(int, say)
queue.produce(1)
if {place!r} != "on_close":
    entered.wait(30)
healthy.produce(2)
""")
    assert out == ["[2]"]


def test_every_call_on_the_parents_queue_raises_in_the_child_and_the_parent_continues():
    out = run("""
seen = []
class Handler:
    def consume(self, batch):
        seen.extend(batch)
    def on_idle(self):
        pass
queue = BatchQueue("queue", on_pool(min_idle_ms=1, max_idle_ms=1))
queue.add_handler(int, Handler())
one = BatchQueue("one", on_pool(consumer=seen.extend))
queue.produce(1)
queue.flush(30)
def body():
    for each in (queue, one):
        for call in (lambda: each.produce(1), lambda: each.produce_many([1]), lambda: each.flush(),
                     lambda: each.shutdown(), lambda: each.stats(), lambda: each.rebalance(),
                     lambda: each.remove_handler(int), lambda: each.add_handler(str, len),
                     lambda: each.add_handler_factory(str, Handler, partitions=1)):
            say(name_of_error(call))
say(child(body))
queue.produce(2)
one.produce(3)
say(queue.shutdown(30), one.shutdown(30), sorted(seen))
""")
    # A queue with a consumer takes no handlers in any process.
    refused = ["QueueForkedError"] * 16 + ["ConfigError"] * 2
    assert out == [*refused, "0", "0 0 [1, 2, 3]"]


def test_child_does_not_wake_the_threads_that_waited_in_its_parent():
    """A lock with a process-wide table of waiting threads crashes in the child on reused stacks.

    Whether two locks meet in such a table depends on their addresses, so many of them wait
    together, on both sides.
    """
    out = run("""
def idle_pools(name, count, threads):
    queues = []
    for n in range(count):
        queues.append(BatchQueue(f"{name} {n}", on_pool(f"{name} {n}", threads=threads)))
    for queue in queues:
        queue.add_handler(int, len)
        queue.produce(1)
    for queue in queues:
        if not queue.flush(30):
            say("left over")
    eventually(lambda: states_of(name).count("S") == count * threads)
    return queues

parents = idle_pools("parent", 20, threads=3)

def body():
    for _ in range(3):
        for queue in idle_pools("child", 20, threads=3):
            queue.produce(2)
            if queue.shutdown(30) != 0:
                say("left over")
    eventually(lambda: threads_of("child") == 0)

for _ in range(3):
    say(child(body))
""")
    assert out == ["0"] * 3


@pytest.mark.parametrize("busy", [False, True])
def test_child_has_no_pools_and_makes_its_own(busy):
    """With the same name, and even if the fork happened in the middle of a worker's batch."""
    out = run(f"""
entered, released = threading.Event(), threading.Event()
class Handler:
    def __init__(self):
        self.items = []
    def consume(self, batch):
        if batch == ["hold"]:
            entered.set()
            released.wait(60)
        self.items += batch
    def on_idle(self):
        pass
handler = Handler()
queue = BatchQueue("queue", on_pool(threads=2, min_idle_ms=1, max_idle_ms=1))
queue.add_handler(int, handler)
queue.add_handler(str, handler)
queue.produce(1)
queue.flush(30)
if {busy}:
    queue.produce("hold")
    entered.wait(30)
def body():
    say(threads_of("pool"))
    fresh = BatchQueue("fresh", on_pool(threads=3))
    fresh.add_handler(int, handler)
    fresh.produce(10)
    say(fresh.flush(30), handler.items)
    eventually(lambda: threads_of("pool") == 3)
    say(fresh.shutdown(30))
    eventually(lambda: threads_of("pool") == 0)
say(child(body))
released.set()
queue.produce(2)
say(queue.shutdown(30), handler.items)
""")
    assert out == ["0", "True [1, 10]", "0", "0", "0 " + ("[1, 'hold', 2]" if busy else "[1, 2]")]


def test_child_that_drops_the_parents_queues_leaves_the_parents_pools_alone():
    out = run("""
import gc
queue = BatchQueue("queue", on_pool())
seen = []
queue.add_handler(int, seen.extend)
def body():
    global queue
    del queue
    gc.collect()
    say("dropped")
say(child(body))
queue.produce(1)
say(queue.flush(30), seen)
""")
    assert out == ["dropped", "0", "True [1]"]


def test_child_forked_from_a_handler_on_a_pool_runs_on_an_ordinary_thread():
    """The child's only thread was a worker in the parent."""
    out = run("""
codes = []
def body():
    fresh = BatchQueue("fresh", on_pool(threads=1, buffer_size=1))
    seen = []
    fresh.add_handler(int, seen.extend)
    for number in range(50):
        fresh.produce(number)
    say(fresh.flush(30), fresh.rebalance(), seen == list(range(50)), fresh.shutdown(30))
queue = BatchQueue("queue", on_pool(threads=1))
queue.add_handler(int, lambda batch: codes.append(child(body)))
queue.produce(1)
say(queue.flush(30), codes)
""")
    assert out == ["True 0 True 0", "True [0]"]


def test_forks_while_balancers_and_pools_work():
    """The control thread is not in the child; new queues there start another."""
    out = run("""
def busy_queues(prefix):
    swap = DrainBalancer.custom(lambda load, owner, threads: [1 - thread for thread in owner])
    settings = config(threads=2, partitions=PartitionPolicy.fixed(4), rebalance_interval_ms=1,
                      balancer=swap)
    queues = [BatchQueue(prefix + "a", settings),
              BatchQueue(prefix + "b", on_pool(prefix))]
    for queue in queues:
        for kind in (int, str, float, bytes):
            queue.add_handler(kind, len)
    return queues
parents = busy_queues("p")
stop = threading.Event()
def produce():
    while not stop.is_set():
        for queue in parents:
            queue.produce_many([1, "a", 0.5, b"b"])
producer = threading.Thread(target=produce)
producer.start()
def body():
    for queue in busy_queues("c"):
        queue.produce_many([1, "a", 0.5, b"b"] * 10)
        if queue.name == "ca":
            eventually(lambda: queue.stats().moves > 20)
        if queue.shutdown(30) or queue.stats().consumed != 40:
            say("wrong")
codes = [child(body) for _ in range(15)]
stop.set()
producer.join()
say(set(codes), [queue.shutdown(30) for queue in parents], parents[0].stats().moves > 0)
""")
    assert out == ["{0} [0, 0] True"]
