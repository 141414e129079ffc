"""Wrong calls: each is refused with the value, the limit or the kind, and the remedy."""

import datetime
import typing
from abc import ABC, abstractmethod
from collections.abc import Sized
from pathlib import Path
from typing import Any, Generic, NewType, TypeVar

import pytest

from batchqueue import BatchFailed, BatchQueueManager, run_until_signal
from batchqueue.aggregation import (
    CountMetrics,
    L1AggregateWorker,
    L2PersistenceWorker,
    MeanMetrics,
    SumMetrics,
    metric_type,
)
from batchqueue.outputs import ParquetStore, SqliteStore
from core_support.odd_handlers import (
    GeneratorCall,
    GeneratorIdle,
    GeneratorMethod,
    Handler,
    IdleIsData,
    NoConsume,
    Order,
    Row,
    Shape,
    async_generator,
    coroutine,
    generator,
)
from core_support.wrong_uses import NAN, assert_parts_in, rejected, settings

T = TypeVar("T")
Number = NewType("Number", int)


class Box(Generic[T]):
    pass


class Task(ABC):
    @abstractmethod
    def run(self): ...


HANDLERS = [
    rejected(lambda queue: queue.add_handler(Order, Handler), "the class Handler", "an instance"),
    rejected(lambda queue: queue.add_handler(Order, NoConsume()), "NoConsume", "consume(batch)"),
    rejected(lambda queue: queue.add_handler(Order, None), "a NoneType", "consume(batch)"),
    rejected(lambda queue: queue.add_handler(Order, 3), "an int", "a function that takes a list"),
    rejected(lambda queue: queue.add_handler(Order, IdleIsData()), "on_idle", "must be a method"),
    rejected(lambda queue: queue.add_handler(Order, generator), "generator function", "`yield`"),
    rejected(lambda queue: queue.add_handler(Order, async_generator), "generator", "`yield`"),
    rejected(lambda queue: queue.add_handler(Order, GeneratorMethod()), "consume of", "`yield`"),
    rejected(lambda queue: queue.add_handler(Order, GeneratorIdle()), "on_idle of", "`yield`"),
    rejected(lambda queue: queue.add_handler(Order, GeneratorCall()), "generator", "`yield`"),
    rejected(lambda queue: queue.add_handler(Order, coroutine), "event loop", "AsyncBatchQueue"),
    rejected(lambda queue: queue.add_handler(int, len), "int has a handler", "replace=True"),
    rejected(lambda queue: queue.handler(int)(len), "int has a handler", "replace=True"),
    rejected(
        lambda queue: queue.add_handler_factory(int, Handler, partitions=1),
        "int has a handler",
        "remove_handler first",
    ),
    rejected(lambda queue: queue.add_handler(Any, len), "is Any", "the class of the items"),
    rejected(lambda queue: queue.add_handler(Shape, len), "Protocol Shape", "class of the items"),
    rejected(lambda queue: queue.add_handler(Row, len), "TypedDict Row", "give dict"),
    rejected(lambda queue: queue.add_handler(Task, len), "abstract class Task", "subclasses=True"),
    rejected(lambda queue: queue.handler(Task)(len), "abstract class Task", "subclasses=True"),
    rejected(lambda queue: queue.add_handler(Sized, len), "abstract class Sized", "of the items"),
    rejected(lambda queue: queue.add_handler(3, len), "item_type is 3", "give a class"),
    rejected(lambda queue: queue.add_handler(None, len), "item_type is None", "give a class"),
    rejected(lambda queue: queue.add_handler(list[int], len), "is list[int]", "arguments: list"),
    rejected(lambda queue: queue.add_handler(Box[int], len), "Box[int]", "its arguments: Box"),
    rejected(lambda queue: queue.add_handler(int | str, len), "is int | str", "int and str"),
    rejected(lambda queue: queue.add_handler(int | None, len), "is int | None", "int and NoneType"),
    rejected(lambda queue: queue.add_handler(Number, len), "Number", "behind the NewType: int"),
    rejected(lambda queue: queue.add_handler(T, len), "is ~T", "that the TypeVar stands for"),
    rejected(
        lambda queue: queue.add_handler(typing.Literal["a"], len), "Literal['a']", "values: str"
    ),
    rejected(
        lambda queue: queue.add_handler(typing.Annotated[int, "cents"], len), "annotates: int"
    ),
    rejected(
        lambda queue: queue.add_handler_factory(list[int], Handler, partitions=1),
        "is list[int]",
        "arguments: list",
    ),
    rejected(lambda queue: queue.add_handler((int, str), len), "item_type is (", "give a class"),
    rejected(lambda queue: queue.add_handler(Order(), len), "item_type is <", "give a class"),
    rejected(lambda queue: queue.add_handler("t", len, subclasses=True), "tag 't'", "leave subcl"),
    rejected(lambda queue: queue.add_handler(Order, len, subclasses=1), "is 1", "True or False"),
    rejected(lambda queue: queue.add_handler(Order, len, replace="yes"), "is 'yes'", "True or"),
    rejected(lambda queue: queue.add_handler(Order, len, weight="1"), "weight is '1'", "above 0"),
    rejected(lambda queue: queue.add_handler(Order, len, weight=0), "weight is 0", "at most 1_000"),
    rejected(lambda queue: queue.add_handler(Order, len, weight=-1), "weight is -1", "above 0"),
    rejected(lambda queue: queue.add_handler(Order, len, weight=NAN), "weight is nan", "above 0"),
    rejected(lambda queue: queue.add_handler(Order, len, weight=2_000), "2000", "at most 1_000"),
    rejected(lambda queue: queue.add_handler(Order, len, weight=None), "weight is None", "above 0"),
    rejected(lambda queue: queue.add_handler(Order, len, weight=True), "weight is True", "above 0"),
    rejected(lambda queue: queue.add_handler(Order, len, max_batch_items=0), "is 0", "1 to 100_"),
    rejected(lambda queue: queue.add_handler(Order, len, max_batch_items="1"), "is '1'", "or None"),
    rejected(lambda queue: queue.add_handler(Order, len, max_delay_ms=-1), "is -1", "from 0 up"),
    rejected(lambda queue: queue.add_handler(Order, len, max_delay_ms="1"), "is '1'", "millisec"),
    rejected(
        lambda queue: queue.add_handler(
            Order, len, max_delay_ms=datetime.timedelta(microseconds=250)
        ),
        "microseconds=250",
        "give max_delay_ms=0.25",
    ),
    rejected(lambda queue: queue.add_handler(Order, len, retry=3), "retry is 3", "RetryPolicy"),
    rejected(
        lambda queue: queue.add_handler(Order, len, dead_letter=3), "an int", "consume(batch)"
    ),
    rejected(
        lambda queue: queue.add_handler(Order, len, dead_letter=generator), "generator", "`yield`"
    ),
    rejected(lambda queue: queue.handler(len), "@queue.handler got len", "@queue.handler(Order)"),
    rejected(lambda queue: queue.handler(Handler), "got Handler", "@queue.handler(Order)"),
    rejected(lambda queue: queue.handler(lambda batch: None), "lambda", "@queue.handler(Order)"),
    rejected(lambda queue: queue.handler(), "@queue.handler()", "@queue.handler(Order)"),
    rejected(lambda queue: queue.handler(weight=0.5), "which items", "@queue.handler(Order)"),
    rejected(lambda queue: queue.handler(list[int]), "list[int]", "without its arguments: list"),
    rejected(lambda queue: queue.handler(Number), "Number", "behind the NewType: int"),
    rejected(lambda queue: queue.handler(Order)(3), "an int cannot be a handler", "consume(batch)"),
    rejected(
        lambda queue: queue.add_handler_factory(Order, 3, partitions=1), "factory is 3", "function"
    ),
    rejected(
        lambda queue: queue.add_handler_factory(Order, Handler, partitions=0), "is 0", "1 to 1_024"
    ),
    rejected(
        lambda queue: queue.add_handler_factory(Order, Handler, partitions="2"), "'2'", "1 to 1_024"
    ),
    rejected(
        lambda queue: queue.add_handler_factory(Order, Handler, partitions=9_999), "1 to 1_024"
    ),
    rejected(
        lambda queue: queue.add_handler_factory(Order, lambda: Handler, partitions=1),
        "the class Handler",
        "an instance",
    ),
    rejected(
        lambda queue: queue.add_handler_factory(Order, lambda: None, partitions=1), "a NoneType"
    ),
    rejected(lambda queue: queue.remove_handler(3), "item_type is 3", "give a class"),
    rejected(lambda queue: queue.remove_handler(int, timeout="1"), "timeout is '1'", "timedelta"),
]

PRODUCERS = [
    rejected(lambda queue: queue.produce(1, 0.5), "0.5", "timeout=0.5", error=TypeError),
    rejected(lambda queue: queue.submit(1, 0.5), "0.5", "timeout=0.5", error=TypeError),
    rejected(lambda queue: queue.produce_arrow([], type_column=3), "is 3", "a str"),
    rejected(lambda queue: queue.produce_many([1], 5), "5 is", "timeout=5", error=TypeError),
    rejected(lambda queue: queue.produce(), "item", error=TypeError),
    rejected(lambda queue: queue.produce(1, timeout="1"), "'1', a str", "seconds", "timedelta"),
    rejected(lambda queue: queue.produce(1, timeout=-1), "timeout is -1", "from 0 up", "None"),
    rejected(lambda queue: queue.produce(1, timeout=NAN), "timeout is NaN", "from 0 up"),
    rejected(lambda queue: queue.produce(1, timeout=True), "True, a bool", "seconds", "timedelta"),
    rejected(lambda queue: queue.produce(1, timeout=[1]), "[1], a list", "seconds", "timedelta"),
    rejected(
        lambda queue: queue.produce(1, timeout=datetime.timedelta(seconds=-2)), "is -2", "from 0 up"
    ),
    rejected(lambda queue: queue.produce_many([1], timeout="1"), "'1', a str", "timedelta"),
    rejected(lambda queue: queue.produce_many([1], timeout=-1), "is -1", "from 0 up"),
    rejected(lambda queue: queue.produce_many(3), "an int, which is not iterable", error=TypeError),
    rejected(lambda queue: queue.produce_many(None), "NoneType", "produce", error=TypeError),
    rejected(lambda queue: queue.produce_many(Order()), "Order", "a list", error=TypeError),
    rejected(lambda queue: queue.flush("1"), "timeout is '1', a str", "timedelta"),
    rejected(lambda queue: queue.flush(-1), "timeout is -1", "from 0 up"),
    rejected(lambda queue: queue.shutdown("1"), "timeout is '1', a str", "timedelta"),
    rejected(lambda queue: queue.shutdown(-1), "timeout is -1", "from 0 up"),
    rejected(lambda queue: queue.shutdown(NAN), "timeout is NaN", "from 0 up"),
    rejected(
        lambda queue: queue.produce_arrow([1], type_column="t"), "a list", "__arrow_c_array__"
    ),
    rejected(lambda _: BatchQueueManager.create("q", 3), "config is an int", "BatchQueueConfig"),
    rejected(lambda _: BatchQueueManager.create(None, settings()), "name is None", "printable"),
    rejected(lambda _: BatchQueueManager.shutdown_all("1"), "timeout is '1'", "timedelta"),
    rejected(lambda _: BatchQueueManager.shutdown_all(-1), "timeout is -1", "from 0 up"),
    rejected(lambda _: run_until_signal(), "got no queue", "run_until_signal(q)"),
    rejected(lambda _: run_until_signal("q"), "'q', a str", "give queues"),
    rejected(lambda queue: run_until_signal([queue]), "a list", "each as an argument"),
    rejected(lambda queue: run_until_signal(queue, signals=[15]), "[15]", "a tuple of signals"),
    rejected(lambda queue: run_until_signal(queue, timeout="1"), "timeout is '1'", "timedelta"),
]

METRICS = [
    rejected(lambda queue: L1AggregateWorker(queue), "BatchQueue", "queue.produce_many"),
    rejected(lambda _: L1AggregateWorker(None), "NoneType", "queue.produce_many"),
    rejected(lambda _: L1AggregateWorker(len, flush_period_ms="5"), "ms is '5'", "from 0 up"),
    rejected(lambda _: L1AggregateWorker(len, flush_period_ms=-5), "ms is -5", "from 0 up"),
    rejected(lambda queue: L2PersistenceWorker(queue), "BatchQueue", "queue.produce_many"),
    rejected(lambda _: L2PersistenceWorker(len, period_s=-1), "period_s is -1", "from 0 up"),
    rejected(lambda _: SumMetrics("a", 0, "x"), "total is 'x', a str", "a number, or None"),
    rejected(lambda _: SumMetrics("a", 0, {}), "total is {}, a dict", "a number, or None"),
    rejected(lambda _: MeanMetrics("a", 0, "x"), "MeanMetrics: total is 'x'", "a number"),
    rejected(lambda _: CountMetrics("a", 0, "x"), "count is 'x', a str", "a number"),
    rejected(lambda _: metric_type("x", dict), "dict", "CountMetrics", "subclass of Metrics"),
    rejected(lambda _: metric_type("x", "sum"), "kind 'sum'", "CountMetrics"),
    rejected(lambda _: metric_type("x", SumMetrics("a", 0, 1)), "of kind <", "CountMetrics"),
    rejected(lambda _: metric_type("", SumMetrics), "empty", "departures.carrier.UA"),
    rejected(lambda _: metric_type(3, SumMetrics), "is 3, an int", "give a str"),
    rejected(lambda _: metric_type("x", SumMetrics, columns=3), "columns of", "is 3", "a dict"),
    rejected(lambda _: metric_type("x", SumMetrics, columns={"y": int}), "'y'", "total"),
    rejected(lambda _: metric_type("x", SumMetrics, limit=3), "limit=3", "only a Ranking"),
    rejected(lambda _: SqliteStore(None), "is None, a NoneType", "give a path, a str or a Path"),
    rejected(lambda _: SqliteStore(3), "is 3, an int", "give a path, a str or a Path"),
    rejected(lambda _: SqliteStore(":memory:"), ":memory:", "give it a file"),
    rejected(lambda _: ParquetStore(None), "is None, a NoneType", "give a path, a str or a Path"),
    rejected(lambda _: BatchFailed(3), "items=3, an int", "indexes=[...]"),
]

STATISTICS = [
    rejected(lambda queue: queue.stats().top_n("1"), "n is '1', a str", "an int from 0 up"),
    rejected(lambda queue: queue.stats().top_n(1.0), "n is 1.0, a float", "an int from 0 up"),
    rejected(lambda queue: queue.stats().top_n(-1), "n is -1", "of partitions from 0 up"),
    rejected(
        lambda queue: queue.picture(None), "is None, a NoneType", "give a path, a str or a Path"
    ),
    rejected(lambda queue: queue.picture(1), "path is 1, an int", "give a path, a str or a Path"),
    rejected(lambda queue: queue.picture("x.png"), "is 'x.png'", "is an SVG", "give 'x.svg'"),
    rejected(lambda queue: queue.picture(Path("a.b/x.PDF")), "'a.b/x.PDF'", "give 'a.b/x.svg'"),
    rejected(lambda queue: queue.stats().partition("0"), "index is '0', a str", "an int from 0"),
    rejected(lambda queue: queue.stats().partition(-1), "-1 does not", "0 to 0", error=IndexError),
]

WRONG = HANDLERS + PRODUCERS + METRICS + STATISTICS


def test_table_is_long():
    assert len(WRONG) >= 80


@pytest.mark.parametrize(("call", "error", "parts"), WRONG)
def test_wrong_use_is_refused_with_value_and_remedy(make_queue, call, error, parts):
    queue = make_queue()
    queue.add_handler(int, lambda batch: None)
    with pytest.raises(error) as caught:
        call(queue)
    assert_parts_in(str(caught.value), parts)
    assert queue.running, "a refused call changes nothing"
    assert queue.stats().attempts == 0
    assert set(queue.stats().handlers()) == {int}
