"""P8: lines about a queue come from one thread. A log that is held up stops nothing else."""

import logging
import threading

import pytest

from batchqueue import BatchQueueManager
from core_support.handlers import Held, Recorder
from core_support.queues import assert_conserved, config
from core_support.scripts import run_script
from core_support.threads import in_background, join
from core_support.waits import WAIT_S, eventually


class FailsFirst(Held):
    """Holds its first batch, which fails, and keeps the others."""

    def consume(self, batch):
        is_first = not self.entered.is_set()
        self.entered.set()
        assert self.released.wait(WAIT_S)
        if is_first:
            raise ValueError("as planned")
        self.batches.append(list(batch))


class HeldUpLog(logging.Handler):
    """Writes no line before it is released."""

    def __init__(self):
        super().__init__()
        self.entered, self.released = threading.Event(), threading.Event()
        self.lines = []

    def emit(self, record):
        self.entered.set()
        assert self.released.wait(WAIT_S)
        self.lines.append(record.getMessage())


@pytest.fixture
def attach():
    """Attaches log handlers to a logger, for one test."""
    attached = []

    def attach(handler, *names):
        for name in names:
            logging.getLogger(name).addHandler(handler)
            attached.append((logging.getLogger(name), handler))
        return handler

    yield attach
    for logger, handler in attached:
        if isinstance(handler, HeldUpLog):
            handler.released.set()
        logger.removeHandler(handler)


@pytest.fixture
def held_up(attach):
    return attach(HeldUpLog(), "batchqueue")


def fail(batch):
    raise ValueError("as planned")


def test_a_log_handler_that_waits_for_room_does_not_hold_up_the_queue(make_queue, attach):
    """The producer holds the lock of the log handler, which the line about the failure needs."""
    queue = make_queue(buffer_size=1)
    failing = FailsFirst()
    queue.add_handler(str, failing)

    class Shipper(logging.Handler):
        def emit(self, record):
            queue.produce(record.getMessage())

    attach(Shipper(), "shipped", "batchqueue")
    logger = logging.getLogger("shipped")
    logger.propagate = False
    logger.warning("first")
    assert failing.entered.wait(WAIT_S)
    queue.produce("second")
    producer, outcome = in_background(lambda: logger.warning("third"))
    eventually(lambda: queue.stats().attempts == 3, "the wait of the producer")
    failing.released.set()
    join(producer)
    assert outcome == [None]
    assert queue.flush(WAIT_S)
    assert failing.items[:2] == ["second", "third"]
    assert queue.stats().failed == 1
    eventually(lambda: any("as planned" in line for line in failing.items), "the line itself")


def test_outcomes_are_counted_while_the_log_is_held_up(make_queue, held_up):
    queue, handled = make_queue(threads=1), Recorder()
    queue.add_handler(int, fail)
    queue.add_handler(str, handled)
    queue.produce(1)
    assert held_up.entered.wait(WAIT_S)
    for number in range(20):
        queue.produce_many([number, f"item {number}", 1.5])
    eventually(lambda: queue.stats().failed + queue.stats().unhandled == 41, "all outcomes")
    eventually(lambda: len(handled.items) == 20, "the healthy items")
    stats = queue.stats()
    assert stats.log_waiting == 2, "about the failed items, and about those without a handler"
    assert stats.log_in_line_s > 0
    assert stats.log_dropped == 0
    assert held_up.lines == []
    held_up.released.set()
    eventually(lambda: queue.stats().log_waiting == 0, "the end of both lines")
    assert queue.stats().log_in_line_s == 0
    assert len(held_up.lines) == 2
    assert queue.flush(WAIT_S)
    assert_conserved(queue.stats())


class SlowLog(HeldUpLog):
    """Writes each line late, or when it is released."""

    def emit(self, record):
        self.released.wait(0.2)  # what waits for the line does not end before
        self.lines.append(record.getMessage())


def test_a_flush_waits_for_the_lines_about_its_items(make_queue, attach):
    log = attach(SlowLog(), "batchqueue")
    queue = make_queue()
    queue.add_handler(int, fail)
    queue.produce(1)
    assert queue.flush(WAIT_S)
    assert len(log.lines) == 1


@pytest.mark.parametrize("inline", [False, True])
@pytest.mark.parametrize("end", ["flush", "shutdown"])
def test_the_lines_about_callbacks_are_waited_for_too(make_queue, attach, inline, end):
    def callback(future):
        raise ValueError("as planned")

    log, other = attach(SlowLog(), "batchqueue"), Held()
    source, queue = make_queue("source"), make_queue(inline=inline)
    source.add_handler(int, other)
    future = source.submit(1)
    future.add_done_callback(callback)
    assert other.entered.wait(WAIT_S)
    queue.add_handler(str, lambda batch: future.set_result(batch[0]))
    queue.produce("the result")
    getattr(queue, end)(WAIT_S)
    assert ["as planned" in line for line in log.lines] == [True]
    other.released.set()


def test_callers_of_an_inline_queue_write_its_lines_one_after_the_other(make_queue, held_up):
    queue = make_queue(inline=True)
    queue.add_handler(int, fail)
    first, _ = in_background(lambda: queue.produce(1))
    assert held_up.entered.wait(WAIT_S)
    held_up.entered.clear()
    queue.produce("without a handler")
    assert not held_up.entered.is_set(), "a second caller writes"
    assert queue.stats().log_waiting == 2
    held_up.released.set()
    join(first)
    assert ["as planned" in line for line in held_up.lines] == [True, False]


def test_a_flush_does_not_wait_for_a_log_that_is_held_up(make_queue, held_up):
    queue = make_queue()
    queue.add_handler(int, fail)
    queue.produce(1)
    assert queue.flush(WAIT_S) is True
    assert held_up.lines == []


def test_a_log_handler_may_flush_and_shut_down_the_queue_of_the_line(make_queue, attach):
    class Flusher(logging.Handler):
        def emit(self, record):
            outcomes.append((queue.flush(WAIT_S), queue.shutdown(WAIT_S)))

    outcomes = []
    attach(Flusher(), "batchqueue")
    queue = make_queue()
    queue.add_handler(int, fail)
    queue.produce(1)
    eventually(lambda: outcomes, "the end of the line")
    assert outcomes == [(True, 0)]


def test_a_shutdown_whose_time_is_over_ends_while_the_log_is_held_up(make_queue, held_up):
    queue, hung = make_queue(threads=2, partitions=2), Held()
    queue.add_handler(int, fail)
    queue.add_handler(str, hung)
    queue.produce(1)
    assert held_up.entered.wait(WAIT_S)
    hung.hold(queue, "a")
    assert queue.shutdown(0.05) == 1
    hung.released.set()
    held_up.released.set()
    eventually(lambda: any("abandoned 1 item" in line for line in held_up.lines), "the line")


def test_a_process_ends_while_its_log_is_held_up():
    exit_code, out, err = run_script("""
import logging

class Hung(logging.Handler):
    def emit(self, record):
        entered.set()
        threading.Event().wait()

entered = threading.Event()
logging.getLogger("batchqueue").addHandler(Hung())
logging.raiseExceptions = False
queue = BatchQueue("q", config(shutdown_timeout=1))
queue.add_handler(int, lambda batch: 1 / 0)
queue.add_handler(str, lambda batch: say(*batch))
queue.produce(1)
entered.wait(30)
queue.produce("delivered")
# The standard library takes the lock of each log handler at the exit.

atexit.unregister(logging.shutdown)
""")
    assert (exit_code, out) == (0, ["delivered"]), err


def test_a_process_with_many_queues_ends_while_its_log_is_held_up():
    """They wait for the log together, and not one after the other."""
    exit_code, _, err = run_script("""
import logging

class Hung(logging.Handler):
    def createLock(self):
        self.lock = None

    def emit(self, record):
        threading.Event().wait()

logging.getLogger("batchqueue").addHandler(Hung())
logging.raiseExceptions = False
queues = [BatchQueue(str(number), config(threads=1)) for number in range(150)]
for queue in queues:
    queue.add_handler(int, lambda batch: None)

class Late:
    def consume(self, batch):
        pass
    def on_close(self):
        raise ValueError("at the end")

for queue in queues:
    queue.add_handler(str, Late())
    queue.produce("item")
""")
    assert exit_code == 0, err


def test_a_callback_of_a_future_that_fails_does_not_wait_for_the_log(make_queue, held_up):
    def callback(future):
        raise ValueError("as planned")

    queue, released = make_queue(threads=1), threading.Event()
    queue.add_handler(int, lambda batch: batch if released.wait(WAIT_S) else [])
    first = queue.submit(1)
    first.add_done_callback(callback)
    released.set()
    assert first.result(WAIT_S) == 1
    assert held_up.entered.wait(WAIT_S)
    assert queue.submit(2).result(WAIT_S) == 2


def test_queues_that_end_together_do_not_wait_for_the_log_one_after_the_other(held_up):
    """Each of them would wait for seconds, and the first to be made is the last to end."""

    class FailsAtTheEnd:
        def __init__(self):
            self.has_closed = threading.Event()

        def consume(self, batch):
            pass

        def on_close(self):
            self.has_closed.set()
            raise ValueError("as planned")

    made = [FailsAtTheEnd() for _ in range(40)]
    for number, handler in enumerate(made):
        queue = BatchQueueManager.create(f"together-{number}", config())
        queue.add_handler(int, handler)
        queue.produce(1)
    shutdown, outcome = in_background(lambda: BatchQueueManager.shutdown_all(WAIT_S))
    assert made[0].has_closed.wait(WAIT_S)
    assert held_up.lines == []
    held_up.released.set()
    join(shutdown)
    assert outcome == [{f"together-{number}": 0 for number in range(40)}]
    assert len(held_up.lines) == 40, "they are waited for, as after the shutdown of one"
