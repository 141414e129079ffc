"""P9: Ctrl-C while the exit delivers abandons what is left, counted and logged."""

import pytest

from core_support.scripts import SCRIPT_HEADER, run_script

pytestmark = pytest.mark.matrix(2, name="ends of the interpreter")

PREPARE = """
import logging, re

queues = []

class Log(logging.Handler):
    def emit(self, record):
        end = r"queue (.*): .*(?:abandoned (\\d+) item|(while handlers were closing))"
        line = re.match(end, record.getMessage())
        if line:
            say("log", *filter(None, line.groups()))

logging.getLogger("batchqueue").addHandler(Log())

@atexit.register
def report():
    # Older than the queues, so it runs when they have ended.
    for queue in queues:
        stats = queue.stats()
        say(queue.name, stats.produced, stats.consumed, stats.abandoned)

def hangs_after(name, count, items=50, **settings):
    # A queue whose handler hangs after some items.
    queue = BatchQueue(name, config(max_batch_items=1, shutdown_timeout=1000, **settings))
    left = list(range(count))
    def handle(batch):
        if not left:
            threading.Event().wait()
        left.pop()
    queue.add_handler(int, handle)
    queue.produce_many(range(items))
    eventually(lambda: queue.stats().consumed == count)
    queues.append(queue)
    return queue

def interrupt_when(condition, number=signal.SIGINT):
    def watch():
        eventually(condition)
        os.kill(os.getpid(), number)
    threading.Thread(target=watch, daemon=True).start()
"""


def run(code):
    exit_code, out, err = run_script(code, header=SCRIPT_HEADER + PREPARE)
    assert "FATAL" not in err
    assert "panicked" not in err
    return exit_code, out, err


ENDINGS = [("", 0), ("sys.exit(5)", 5), ("raise ValueError('as planned')", 1)]


@pytest.mark.parametrize(("ending", "expected"), ENDINGS, ids=["end", "sys.exit", "exception"])
def test_ctrl_c_abandons_what_is_left_and_keeps_the_exit_code(ending, expected):
    """As for any callback of `atexit`: Python prints the interrupt, and its code is that before."""
    code, out, err = run(f"""
queue = hangs_after("queue", 20)
interrupt_when(lambda: not queue.running)
{ending}
""")
    assert code == expected, err
    assert out == ["log queue 30", "queue 50 20 30"]
    assert "KeyboardInterrupt" in err


def test_one_ctrl_c_is_enough_for_all_queues():
    code, out, err = run("""
for number in range(3):
    hangs_after(f"queue {number}", 10 * number)
interrupt_when(lambda: not queues[2].running)
""")
    assert code == 0, err
    assert out == [
        "log queue 2 30",
        "log queue 1 40",
        "log queue 0 50",
        "queue 0 50 0 50",
        "queue 1 50 10 40",
        "queue 2 50 20 30",
    ]
    assert err.count("KeyboardInterrupt") == 1


IDLE = """
class Handler:
    def consume(self, batch):
        pass
    def on_close(self):
        closing.set()
        released.wait()
        say("closed")

closing, released = threading.Event(), threading.Event()
idle = BatchQueue("idle", config(shutdown_timeout=1000))
idle.add_handler(int, Handler())
queue = hangs_after("queue", 20)
interrupt_when(lambda: not queue.running)
"""


def test_handlers_that_have_nothing_left_are_closed_after_ctrl_c():
    """They may hold what they have consumed."""
    code, out, err = run(
        IDLE
        + """
threading.Thread(target=lambda: (closing.wait(), released.set()), daemon=True).start()
"""
    )
    assert code == 0, err
    assert out == ["log queue 30", "closed", "queue 50 20 30"]


def test_second_ctrl_c_ends_the_wait_for_a_handler_that_closes():
    code, out, err = run(IDLE + "interrupt_when(closing.is_set)")
    assert code == 0, err
    assert out == ["log queue 30", "log idle while handlers were closing", "queue 50 20 30"]


def test_callbacks_of_the_application_run_after_ctrl_c():
    code, out, err = run("""
older = hangs_after("older", 50)

@atexit.register
def last_items():
    say(older.produce(1))

newer = hangs_after("newer", 20)
interrupt_when(lambda: not newer.running)
""")
    assert code == 0, err
    assert out == [
        "log newer 30",
        "True",
        "log older 1",
        "older 51 50 1",
        "newer 50 20 30",
    ]


def test_second_ctrl_c_does_no_harm():
    code, _, err = run("""
for number in range(3):
    hangs_after(f"queue {number}", 10)
interrupt_when(lambda: not queues[2].running)
interrupt_when(lambda: queues[2].stats().abandoned)
""")
    # It may come in any callback, and even after the last one, where it ends the process.
    assert code in {0, -2}, err


def test_handler_of_a_signal_that_raises_something_else_abandons_too():
    code, out, err = run("""
def stop(*_):
    sys.exit(7)

signal.signal(signal.SIGTERM, stop)
queue = hangs_after("queue", 20)
interrupt_when(lambda: not queue.running, signal.SIGTERM)
""")
    assert code == 0, err
    assert out == ["log queue 30", "queue 50 20 30"]


def test_handler_of_a_signal_that_does_not_raise_lets_the_exit_deliver():
    code, out, err = run("""
released = threading.Event()
signal.signal(signal.SIGINT, lambda *_: released.set())
queue = BatchQueue("queue", config())
queue.add_handler(int, lambda batch: released.wait(30))
queue.produce_many(range(50))
queues.append(queue)
interrupt_when(lambda: not queue.running)
""")
    assert code == 0, err
    assert out == ["queue 50 50 0"]


def test_ctrl_c_in_a_with_block_and_another_at_the_exit_abandon():
    """The first one ends the wait only, as in every call; the exit would deliver."""
    code, out, err = run("""
queue = hangs_after("queue", 20)
interrupt_when(lambda: not queue.running)
try:
    with queue:
        pass
except KeyboardInterrupt:
    say("interrupted")
from batchqueue import _core
interrupt_when(_core.is_exiting)
""")
    assert code == 0, err
    assert out == ["interrupted", "log queue 30", "queue 50 20 30"]


def test_ctrl_c_in_shutdown_all_leaves_the_other_queues_to_the_next_call():
    code, out, err = run("""
released = threading.Event()
seen = []
last = BatchQueueManager.create("last", config())
last.add_handler(int, seen.extend)
first = BatchQueueManager.create("first", config())
first.add_handler(int, lambda batch: (released.wait(30), last.produce_many(batch)))
first.produce_many(range(10))
interrupt_when(lambda: not first.running)
try:
    BatchQueueManager.shutdown_all(None)
except KeyboardInterrupt:
    say("interrupted", BatchQueueManager.names())
released.set()
say(BatchQueueManager.shutdown_all(30), len(seen))
say(BatchQueueManager.shutdown_all(30))
""")
    assert code == 0, err
    assert out == ["interrupted []", "{'first': 0, 'last': 0} 10", "{}"]


def test_ctrl_c_at_the_end_of_a_process_of_multiprocessing():
    code, out, err = run("""
import multiprocessing, warnings
warnings.simplefilter("ignore")

queue = hangs_after("queue", 20, items=20, restart_after_fork=True)

def work():
    queue.produce_many(range(50))
    interrupt_when(lambda: not queue.running)

process = multiprocessing.get_context("fork").Process(target=work)
process.start()
process.join()
say("code", process.exitcode)
""")
    assert code == 0, err
    # As after an interrupt of any finalizer.
    assert out == ["log queue 50", "code 1", "queue 20 20 0"]
