"""`run_until_signal`: a signal ends the wait, and what was accepted is delivered."""

import asyncio
import datetime
import signal
import threading

import pytest

from batchqueue import AsyncBatchQueue, ConfigError, run_until_signal
from core_support.event_loop import run
from core_support.queues import config
from core_support.scripts import run_script
from core_support.threads import in_background, join

SIGNAL_WHEN = """
def signal_when(condition, number=signal.SIGTERM, times=1):
    def watch():
        eventually(condition)
        for _ in range(times):
            os.kill(os.getpid(), number)
    threading.Thread(target=watch, daemon=True).start()

def handled_now():
    return callable(signal.getsignal(signal.SIGTERM))
"""


def service(body, expected_code=0):
    code, out, err = run_script(SIGNAL_WHEN + body)
    assert code == expected_code, err
    return out, err


@pytest.mark.parametrize("number", ["SIGTERM", "SIGINT"])
def test_signal_delivers_what_was_accepted(number):
    out, _ = service(
        f"""
seen = []
queue = BatchQueue("orders", config(min_idle_ms=60_000))
queue.add_handler(int, seen.extend)
queue.produce_many(range(1_000))
signal_when(handled_now, signal.{number})
say(run_until_signal(queue), len(seen), queue.running, queue.stats().abandoned)
"""
    )
    assert out == ["0 1000 False 0"]


def test_signal_that_does_not_interrupt_the_wait_ends_it():
    """The system gives it to another thread, or just before the main thread waits."""
    out, _ = service(
        """
def main_thread_sleeps():
    return open(f"/proc/self/task/{os.getpid()}/stat").read().rpartition(")")[2].split()[0] == "S"

def give_to_this_thread():
    eventually(handled_now)
    eventually(main_thread_sleeps)
    signal.pthread_kill(threading.get_ident(), signal.SIGTERM)

queue = BatchQueue("orders", config())
threading.Thread(target=give_to_this_thread, daemon=True).start()
say(run_until_signal(queue), signal.set_wakeup_fd(-1))
"""
    )
    assert out == ["0 -1"]


def test_service_with_two_thousand_open_files_waits_for_its_signal():
    """`select` would refuse a file beyond the 1,024th."""
    out, _ = service(
        """
import resource
_, most = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
files = [os.dup(0) for _ in range(2_000)]
queue = BatchQueue("orders", config())
signal_when(handled_now)
say(files[-1] > 1_024, run_until_signal(queue))
"""
    )
    assert out == ["True 0"]


def test_handlers_of_the_signals_are_restored():
    out, _ = service(
        """
def mine(number, frame):
    say("mine", number)

signal.signal(signal.SIGUSR1, mine)
queue = BatchQueue("orders", config())
ready = lambda: signal.getsignal(signal.SIGUSR1) is not mine
signal_when(ready, signal.SIGUSR1)
say(run_until_signal(queue, signals=(signal.SIGUSR1,)))
assert signal.getsignal(signal.SIGUSR1) is mine
assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
os.kill(os.getpid(), signal.SIGUSR1)
"""
    )
    assert out == ["0", f"mine {int(signal.SIGUSR1)}"]


def test_a_stage_feeds_an_earlier_created_stage_while_it_ends():
    out, _ = service(
        """
seen = []
second = BatchQueue("second", config(min_idle_ms=60_000))
second.add_handler(str, seen.extend)
first = BatchQueue("first", config(min_idle_ms=60_000))
first.add_handler(int, lambda batch: second.produce_many([str(item) for item in batch]))
first.produce_many(range(100))
signal_when(handled_now)
say(run_until_signal(second, first), len(seen), second.stats().refused)
"""
    )
    assert out == ["0 100 0"]


def test_abandoned_items_of_all_queues_are_returned_when_time_runs_out():
    out, _ = service(
        """
held = threading.Event()
queues = []
for name in ("a", "b"):
    queue = BatchQueue(name, config(max_batch_items=1))
    queue.add_handler(int, lambda batch: held.wait())
    queue.produce_many([1, 2, 3])
    queues.append(queue)
signal_when(handled_now)
say(run_until_signal(*queues, timeout=0.2))
os._exit(0)
"""
    )
    assert out == ["6"]


def test_second_signal_gives_up_what_is_in_hand():
    out, err = service(
        """
import logging
from batchqueue.base.background_log import flush_log
logging.basicConfig(level=logging.INFO)
held = threading.Event()
queue = BatchQueue("orders", config(max_batch_items=1))
queue.add_handler(int, lambda batch: held.wait())
queue.produce_many([1, 2, 3])
signal_when(handled_now)
signal_when(lambda: not queue.running, signal.SIGINT)
say(run_until_signal(queue, timeout=None))
flush_log()  # another thread writes the log
os._exit(0)
"""
    )
    assert out == ["3"]
    assert "SIGTERM: shutting down orders" in err
    assert "SIGINT again: giving up what is in hand" in err


def test_async_queue_is_shut_down_while_its_loop_runs_in_another_thread():
    out, _ = service(
        """
import asyncio
loop = asyncio.new_event_loop()
threading.Thread(target=loop.run_forever, daemon=True).start()
seen = []

async def consume(batch):
    await asyncio.sleep(0)
    seen.extend(batch)

async def start():
    queue = AsyncBatchQueue("orders", config(min_idle_ms=60_000))
    queue.add_handler(int, consume)
    await queue.produce_many(range(100))
    return queue

queue = asyncio.run_coroutine_threadsafe(start(), loop).result()
signal_when(handled_now)
say(run_until_signal(queue), len(seen))
"""
    )
    assert out == ["0 100"]


def test_signal_that_the_process_ignores_stays_ignored():
    out, _ = service(
        """
signal.signal(signal.SIGINT, signal.SIG_IGN)
queue = BatchQueue("orders", config())
signal_when(handled_now, signal.SIGINT)
signal_when(handled_now, signal.SIGTERM)
say(run_until_signal(queue), signal.getsignal(signal.SIGINT) == signal.SIG_IGN)
try:
    run_until_signal(queue, signals=(signal.SIGINT,))
except ConfigError as error:
    say(error)
"""
    )
    assert out[0] == "0 True"
    assert out[1].startswith("the process ignores SIGINT, so that the wait would never end; give")


def test_error_that_another_signal_handler_raises_restores_the_handlers():
    out, _ = service(
        """
def alarm(number, frame):
    raise TimeoutError("alarm")

signal.signal(signal.SIGALRM, alarm)
queue = BatchQueue("orders", config())
signal_when(handled_now, signal.SIGALRM)
try:
    run_until_signal(queue)
except TimeoutError:
    say(signal.getsignal(signal.SIGTERM) == signal.SIG_DFL, queue.running)
"""
    )
    assert out == ["True True"]


def test_only_the_main_thread_may_wait(make_queue):
    queue = make_queue()

    def wait():
        with pytest.raises(ConfigError, match=r"was called in thread .* to the main thread only"):
            run_until_signal(queue)
        return "refused"

    thread, outcome = in_background(wait)
    join(thread)
    assert outcome == ["refused"]
    assert queue.running


def test_coroutine_may_not_wait():
    async def main():
        async with AsyncBatchQueue("queue", config()) as queue:
            with pytest.raises(ConfigError, match=r"would block its event loop; use"):
                run_until_signal(queue)
            await asyncio.sleep(0)

    run(main)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda queue: run_until_signal(), r"got no queue; give at least one"),
        (lambda queue: run_until_signal([queue]), r"got \[.*, a list; give queues"),
        (lambda queue: run_until_signal(queue, signals=()), r"signals is \(\); give a tuple"),
        (lambda queue: run_until_signal(queue, signals=15), r"signals is 15; give a tuple"),
        (lambda queue: run_until_signal(queue, signals=(999,)), r"signals is \(999,\); give"),
        (lambda queue: run_until_signal(queue, signals=("SIGTERM",)), r"SIGTERM.*give a tuple"),
        (
            lambda queue: run_until_signal(queue, signals=(signal.SIGKILL,)),
            r"SIGKILL, which no process can handle",
        ),
        (lambda queue: run_until_signal(queue, timeout="1"), r"timeout is '1', a str; give sec"),
        (lambda queue: run_until_signal(queue, timeout=-1), r"timeout is -1; give seconds from 0"),
        (
            lambda queue: run_until_signal(queue, timeout=datetime.timedelta(seconds=-1)),
            r"timeout is -1.0; give seconds from 0",
        ),
    ],
)
def test_invalid_argument_is_rejected_before_the_wait(make_queue, call, message):
    queue = make_queue()
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(ConfigError, match=message):
        call(queue)
    assert signal.getsignal(signal.SIGTERM) is before
    assert queue.running
    assert threading.current_thread() is threading.main_thread()
