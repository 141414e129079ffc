"""P9: Ctrl-C ends a wait. Each test sends itself a real SIGINT in a new interpreter."""

from core_support.scripts import run_script

PREPARE = """
entered, released = threading.Event(), threading.Event()
queue = BatchQueue("queue", config(buffer_size=5, shutdown_timeout=10))
seen, waiting = [], []

def consume(batch):
    entered.set()
    released.wait(60)
    seen.extend(batch)

queue.add_handler(int, consume)
queue.produce(0)
entered.wait(30)

def interrupt_when(condition):
    def watch():
        eventually(condition)
        os.kill(os.getpid(), signal.SIGINT)
    threading.Thread(target=watch, daemon=True).start()
"""


def interrupted(call, when, after=""):
    code, out, err = run_script(
        PREPARE
        + f"""
interrupt_when(lambda: {when})
try:
    {call}
except KeyboardInterrupt as interrupt:
    say("interrupted", getattr(interrupt, "accepted", None))
stats = queue.stats()
say(stats.attempts, stats.produced, stats.refused)
{after}
released.set()
say(queue.shutdown(30), seen)
stats = queue.stats()
assert stats.attempts == stats.produced + stats.refused
assert stats.produced == stats.consumed
"""
    )
    assert code == 0, err
    return out


def test_ctrl_c_ends_a_blocked_produce():
    out = interrupted("while queue.produce(1): pass", "queue.stats().attempts == 7")
    assert out == ["interrupted 0", "7 6 1", "0 [0, 1, 1, 1, 1, 1]"]


def test_ctrl_c_ends_a_blocked_produce_with_a_time_out():
    out = interrupted("while queue.produce(1, timeout=60): pass", "queue.stats().attempts == 7")
    assert out == ["interrupted 0", "7 6 1", "0 [0, 1, 1, 1, 1, 1]"]


def test_ctrl_c_ends_a_blocked_produce_many_with_the_number_accepted():
    out = interrupted("queue.produce_many(list(range(1, 20)))", "queue.stats().attempts == 7")
    assert out == ["interrupted 5", "7 6 1", "0 [0, 1, 2, 3, 4, 5]"]


def test_ctrl_c_ends_a_blocked_produce_many_of_an_iterator():
    out = interrupted("queue.produce_many(iter(range(1, 20)))", "queue.stats().attempts == 7")
    assert out == ["interrupted 5", "7 6 1", "0 [0, 1, 2, 3, 4, 5]"]


def test_ctrl_c_ends_a_flush():
    out = interrupted("waiting.append(1), queue.flush()", "waiting")
    assert out == ["interrupted None", "1 1 0", "0 [0]"]


def test_ctrl_c_ends_the_wait_of_a_shutdown_which_continues_to_deliver():
    out = interrupted("queue.produce_many([1, 2]), queue.shutdown()", "not queue.running")
    assert out == ["interrupted None", "3 3 0", "0 [0, 1, 2]"]


def test_ctrl_c_ends_a_with_block():
    code, out, err = run_script(
        PREPARE
        + """
interrupt_when(lambda: not queue.running)
try:
    with queue:
        queue.produce(1)
except KeyboardInterrupt:
    say("interrupted")
released.set()
say(queue.shutdown(30), seen)
"""
    )
    assert code == 0, err
    assert out == ["interrupted", "0 [0, 1]"]


def test_ctrl_c_during_the_exit_does_not_crash():
    code, out, err = run_script(
        PREPARE
        + """
interrupt_when(lambda: not queue.running)
say("ends")
"""
    )
    assert code in (0, 130, -2), err
    assert out == ["ends"]
    assert "FATAL" not in err
    assert "panicked" not in err


def test_wait_continues_after_a_signal_handler_that_does_not_raise():
    code, out, err = run_script(
        PREPARE
        + """
def note(*_):
    say("signal")
    released.set()

signal.signal(signal.SIGINT, note)
interrupt_when(lambda: queue.stats().attempts == 7)
say(queue.produce_many([1] * 10))
say(queue.shutdown(30), len(seen))
"""
    )
    assert code == 0, err
    assert out == ["signal", "10", "0 11"]


def test_signal_handler_may_produce_into_the_queue():
    code, out, err = run_script(
        PREPARE
        + """
def note(*_):
    released.set()
    say(queue.produce(2))

signal.signal(signal.SIGINT, note)
interrupt_when(lambda: queue.stats().attempts == 7)
say(queue.produce_many([1] * 10))
say(queue.shutdown(30), sum(seen))
"""
    )
    assert code == 0, err
    assert out == ["True", "10", "0 12"]


def test_interrupt_that_cannot_be_marked_is_still_raised():
    code, out, err = run_script(
        PREPARE
        + """
class Frozen(Exception):
    def __setattr__(self, name, value):
        raise TypeError("frozen")

def stop(*_):
    raise Frozen

signal.signal(signal.SIGINT, stop)
interrupt_when(lambda: queue.stats().attempts == 7)
try:
    queue.produce_many([1] * 10)
except Frozen:
    say("frozen")
released.set()
say(queue.shutdown(30), len(seen))
"""
    )
    assert code == 0, err
    assert out == ["frozen", "0 6"]


def test_ctrl_c_in_a_custom_balancer_is_raised_by_rebalance():
    """On the control thread it would only be logged; the main thread must get its interrupt."""
    code, out, err = run_script("""
def assign(load, owner, threads):
    os.kill(os.getpid(), signal.SIGINT)
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        pass
settings = dict(partitions=PartitionPolicy.fixed(4), rebalance_interval_ms=0)
queue = BatchQueue("queue", config(threads=2, balancer=DrainBalancer.custom(assign), **settings))
try:
    say(queue.rebalance())
except KeyboardInterrupt:
    say("interrupted")
say(queue.stats().rebalances, queue.running, queue.shutdown(30))
""")
    assert code == 0, err
    assert out == ["interrupted", "1 True 0"]
