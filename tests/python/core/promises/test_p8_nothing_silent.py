"""P8: items that miss their handler are counted, and logged once per type and minute."""

import abc
import logging

import pytest

from batchqueue import BufferStrategy, ConfigError
from core_support.handlers import Held, Recorder
from core_support.queues import assert_conserved
from core_support.waits import WAIT_S, eventually


class Order:
    pass


class BulkOrder(Order):
    pass


class HandlerWithErrors:
    def __init__(self, consume, errors):
        self.make, self.errors = consume, errors

    def consume(self, batch):
        return self.make(batch)

    def on_error(self, batch, error):
        self.errors.append((batch, error))
        return self.make(batch) if len(batch) == 2 else None


@pytest.fixture
def lines(caplog):
    """Returns a function that gives the messages of the logger `batchqueue` so far."""
    caplog.set_level(logging.INFO, logger="batchqueue")
    return lambda: [record.getMessage() for record in caplog.records if record.name == "batchqueue"]


def test_unhandled_items_are_logged_once_per_type_with_their_number(make_queue, lines):
    queue = make_queue("orders", min_idle_ms=60_000)
    queue.produce_many([Order() for _ in range(7)])
    assert queue.flush(WAIT_S)
    eventually(lines, "a line")
    for _ in range(20):
        queue.produce_many([Order() for _ in range(50)])
        assert queue.flush(WAIT_S)
    queue.produce(3)
    assert queue.flush(WAIT_S)
    eventually(lambda: len(lines()) >= 2, "a line for the other type")
    about_orders = [line for line in lines() if "Order" in line]
    assert len(about_orders) == 1
    assert "7 " in about_orders[0]
    assert "orders" in about_orders[0], "the queue's name"
    assert "add_handler" in about_orders[0], "the remedy"
    assert len(lines()) == 2
    assert queue.stats().unhandled == 1_008
    queue.shutdown(WAIT_S)
    assert_conserved(queue.stats())


def test_unhandled_subclass_of_a_registered_class_gets_a_hint(make_queue, lines):
    queue = make_queue()
    queue.add_handler(Order, Recorder())
    queue.produce(BulkOrder())
    assert queue.flush(WAIT_S)
    (line,) = lines()
    assert "BulkOrder" in line
    assert "subclass" in line
    assert "test_p8_nothing_silent.Order" in line or " Order" in line


def test_unhandled_virtual_subclass_of_a_registered_class_gets_a_hint(make_queue, lines):
    class Priced(abc.ABC):
        @abc.abstractmethod
        def price(self): ...

    Priced.register(Order)
    queue = make_queue()
    queue.add_handler(Priced, Recorder(), subclasses=True)
    queue.produce(Order())
    assert queue.flush(WAIT_S)
    (line,) = lines()
    assert "Order had no handler: it is a virtual subclass of " in line
    assert line.endswith(
        "Priced, which has one, but only the bases of a class statement count: register it too"
    )


def test_hint_survives_an_abstract_class_whose_hook_raises(make_queue, lines):
    class Odd(abc.ABC):
        @abc.abstractmethod
        def price(self): ...

        @classmethod
        def __subclasshook__(cls, other):
            raise ValueError("as planned")

    queue = make_queue()
    queue.add_handler(Odd, Recorder(), subclasses=True)
    queue.produce(Order())
    assert queue.flush(WAIT_S)
    (line,) = lines()
    assert "call add_handler before the first produce" in line


@pytest.mark.filterwarnings("error")
def test_handler_that_returns_a_coroutine_has_not_handled_its_batch(make_queue, lines):
    async def later(batch):
        pass

    queue = make_queue()
    errors = []
    queue.add_handler(Order, lambda batch: later(batch))
    queue.add_handler(int, HandlerWithErrors(later, errors))
    queue.produce_many([Order(), Order(), 1])
    queue.flush(WAIT_S)
    assert (queue.stats().consumed, queue.stats().failed) == (0, 3)
    assert [(batch, type(error)) for batch, error in errors] == [([1], ConfigError)]
    # A flush may end before the log line of its last cycle is written.
    eventually(lines, "a line")
    (line,) = lines()
    assert "Order" in line
    assert "returned a coroutine, which is never awaited" in line
    # An error callback that returns a coroutine has not taken the error either.
    queue.add_handler(bytes, HandlerWithErrors(later, errors))
    queue.produce_many([b"", b""])
    queue.shutdown(WAIT_S)
    eventually(
        lambda: "then its error handler failed" in lines()[-1], "the line of the second failure"
    )


def test_failures_are_logged_by_type_with_traceback_and_the_rest_at_shutdown(make_queue, lines):
    def fail(batch):
        raise ValueError("the disk is full")

    queue = make_queue("orders", min_idle_ms=60_000)
    queue.add_handler(int, fail)
    queue.add_handler(str, fail)
    for _ in range(20):
        queue.produce_many([1, 2, 3, "a"])
        assert queue.flush(WAIT_S)
    eventually(lambda: len(lines()) >= 2, "two lines")
    assert len(lines()) == 2
    assert queue.shutdown(WAIT_S) == 0
    assert sorted(lines()[2:]) == [
        "queue orders: 19 more items of str failed",
        "queue orders: 57 more items of int failed",
    ]
    of_int = next(line for line in lines() if "int" in line)
    assert "3 items" in of_int
    assert "the disk is full" in of_int
    assert "Traceback" in of_int
    assert "in fail" in of_int
    assert queue.stats().failed == 80


def test_failure_taken_by_the_error_handler_is_not_logged(make_queue, lines):
    taken = []

    def fail(batch):
        raise ValueError("the disk is full")

    queue = make_queue(error_handler=lambda batch, error: taken.append((batch, str(error))))
    queue.add_handler(int, fail)
    queue.produce(1)
    queue.shutdown(WAIT_S)
    assert taken == [([1], "the disk is full")]
    assert lines() == []
    assert queue.stats().failed == 1


def test_error_handler_that_raises_is_logged_with_both_errors(make_queue, lines):
    def fail(batch):
        raise ValueError("the disk is full")

    def fail_again(batch, error):
        raise KeyError("the pager is off")

    queue = make_queue(error_handler=fail_again)
    queue.add_handler(int, fail)
    queue.produce(1)
    queue.shutdown(WAIT_S)
    (line,) = lines()
    assert "the disk is full" in line
    assert "the pager is off" in line
    assert queue.stats().failed == 1


def test_refused_items_are_logged_once_per_type(make_queue, lines):
    queue = make_queue("orders", buffer_size=1, strategy=BufferStrategy.IF_POSSIBLE)
    handler = Held()
    queue.add_handler(int, handler)
    handler.hold(queue, 0)
    assert queue.produce(1)
    assert not any(queue.produce(2) for _ in range(100))
    eventually(lines, "a line about the refused items")
    (line,) = lines()
    assert "refused" in line
    assert "int" in line
    assert "orders" in line
    handler.released.set()
    assert queue.shutdown(WAIT_S) == 0
    assert queue.stats().refused == 100


def test_refusals_of_a_closed_queue_are_logged_once(make_queue, lines):
    queue = make_queue("orders")
    queue.shutdown(WAIT_S)
    assert not any(queue.produce(2) for _ in range(100))
    assert queue.produce_many([1, 2]) == 0
    (line,) = lines()
    assert "refused" in line
    assert "shut down" in line


def test_abandoned_items_are_logged_with_their_number(make_queue, lines):
    queue = make_queue("orders")
    handler = Held()
    queue.add_handler(int, handler)
    handler.hold(queue, 0)
    queue.produce_many([1, 2, 3])
    assert queue.shutdown(0) == 4
    (line,) = [line for line in lines() if "abandoned" in line]
    assert "4" in line
    assert "orders" in line
    handler.released.set()


@pytest.mark.parametrize("method", ["on_idle", "on_close"])
def test_side_call_that_raises_is_logged_once(make_queue, lines, method):
    calls = []

    class Handler(Recorder):
        def _raise(self):
            calls.append(1)
            raise OSError("no route")

    setattr(Handler, method, Handler._raise)
    queue = make_queue(min_idle_ms=0, max_idle_ms=1)
    queue.add_handler(int, Handler())
    queue.produce(1)
    if method == "on_idle":
        eventually(lambda: len(calls) > 5, "on_idle is called again and again")
    queue.shutdown(WAIT_S)
    (line,) = lines()
    assert "no route" in line
    assert "Handler" in line
    assert len(calls) >= 1
    assert queue.stats().consumed == 1


def test_nothing_is_logged_without_a_problem(make_queue, lines):
    queue = make_queue(threads=2, partitions=4)
    queue.add_handler(int, Recorder())
    queue.produce_many(list(range(1_000)))
    queue.flush(WAIT_S)
    assert queue.shutdown(WAIT_S) == 0
    assert lines() == []


def test_fewer_partitions_than_threads_are_logged(make_queue, lines):
    queue = make_queue(threads=4, partitions=2)
    assert queue.stats().thread_count == 2
    (line,) = lines()
    assert "partitions(2) < threads(4), reducing threads to 2" in line


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_logging_handler_that_raises_or_produces_does_no_harm(make_queue, monkeypatch):
    monkeypatch.setattr(logging, "raiseExceptions", False)
    produced = []

    class Reckless(logging.Handler):
        def emit(self, record):
            produced.append(queue.produce(record.getMessage()))
            raise RuntimeError("a broken logging handler")

    logger = logging.getLogger("batchqueue")
    reckless = Reckless()
    queue = make_queue(buffer_size=2)
    recorder = Recorder()
    queue.add_handler(str, recorder)
    logger.addHandler(reckless)
    try:
        queue.produce(1.5)
        eventually(lambda: recorder.items, "the log line in the queue")
        assert queue.flush(WAIT_S)
        assert produced == [True], recorder.items
        assert queue.produce("the drain thread lives")
        assert queue.flush(WAIT_S)
    finally:
        logger.removeHandler(reckless)
    assert recorder.items[-1] == "the drain thread lives"
