"""Wrong uses: each is refused with the value, the limit or the kind, and the remedy.

A row has the call, the error, and the essential parts of its message.
"""

import datetime
from collections.abc import Callable
from typing import Any

import pytest

from batchqueue import (
    AsyncBatchQueue,
    BatchFailed,
    BatchQueue,
    BatchQueueConfig,
    BatchQueueManager,
    ConfigError,
    DrainBalancer,
    PartitionPolicy,
    PartitionSelector,
    RetryPolicy,
    ThreadPolicy,
    run_until_signal,
)
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

ONE = ThreadPolicy.fixed(1)
LARGE = 10**30
NAN, INF = float("nan"), float("inf")


def settings(**given: Any) -> BatchQueueConfig[Any]:
    return BatchQueueConfig(**{"threads": ONE, **given})


Call = Callable[[Any], object]
Wrong = tuple[Call, type[BaseException], tuple[str, ...]]


def rejected(call: Call, *parts: str, error: type[BaseException] = ConfigError) -> Wrong:
    return call, error, parts


POLICIES = [
    rejected(lambda _: ThreadPolicy.fixed(-1), "fixed is -1", "1 to 1024 threads"),
    rejected(lambda _: ThreadPolicy.fixed(0), "fixed is 0", "1 to 1024 threads"),
    rejected(lambda _: ThreadPolicy.fixed("2"), "fixed is '2'", "1 to 1024 threads"),
    rejected(lambda _: ThreadPolicy.fixed(2.5), "fixed is 2.5", "1 to 1024 threads"),
    rejected(lambda _: ThreadPolicy.fixed(True), "fixed is True", "1 to 1024 threads"),
    rejected(lambda _: ThreadPolicy.fixed(None), "fixed is None", "1 to 1024 threads"),
    rejected(lambda _: ThreadPolicy.fixed(LARGE), str(LARGE), "1 to 1024 threads"),
    rejected(lambda _: ThreadPolicy.fixed(1025), "fixed is 1025", "1 to 1024 threads"),
    rejected(
        lambda _: ThreadPolicy(2), "ThreadPolicy(2)", "ThreadPolicy.fixed(2)", error=TypeError
    ),
    rejected(lambda _: ThreadPolicy(), "ThreadPolicy()", "cpu_cores(1.0)", error=TypeError),
    rejected(lambda _: ThreadPolicy(count=2), "ThreadPolicy.fixed(2)", error=TypeError),
    rejected(lambda _: ThreadPolicy.cpu_cores("1"), "is '1'", "threads per core", "1.0"),
    rejected(lambda _: ThreadPolicy.cpu_cores(None), "is None", "threads per core", "1.0"),
    rejected(lambda _: ThreadPolicy.cpu_cores(0), "is 0", "above 0", "1.0"),
    rejected(lambda _: ThreadPolicy.cpu_cores(-1), "is -1", "above 0", "1.0"),
    rejected(lambda _: ThreadPolicy.cpu_cores(NAN), "NaN", "finite number above 0"),
    rejected(lambda _: ThreadPolicy.cpu_cores(INF), "inf", "finite number above 0"),
    rejected(lambda _: ThreadPolicy.cpu_cores_with_base(-1, 1), "is -1", "0 to 1024 threads"),
    rejected(lambda _: ThreadPolicy.cpu_cores_with_base("1", 1), "is '1'", "0 to 1024 threads"),
    rejected(lambda _: ThreadPolicy.cpu_cores_with_base(1, "1"), "is '1'", "threads per core"),
    rejected(lambda _: PartitionPolicy.fixed(0), "fixed is 0", "1 to 65536 partitions"),
    rejected(lambda _: PartitionPolicy.fixed(-1), "fixed is -1", "1 to 65536 partitions"),
    rejected(lambda _: PartitionPolicy.fixed("4"), "fixed is '4'", "1 to 65536 partitions"),
    rejected(lambda _: PartitionPolicy.fixed(LARGE), str(LARGE), "1 to 65536 partitions"),
    rejected(lambda _: PartitionPolicy.fixed(65_537), "65537", "1 to 65536 partitions"),
    rejected(lambda _: PartitionPolicy.thread_multiply(0), "multiply is 0", "1 to 65536"),
    rejected(lambda _: PartitionPolicy.thread_multiply(1.5), "multiply is 1.5", "1 to 65536"),
    rejected(lambda _: PartitionPolicy.adaptive(0), "adaptive is 0", "1 to 65536 partitions"),
    rejected(lambda _: PartitionPolicy.adaptive("25"), "adaptive is '25'", "1 to 65536"),
    rejected(lambda _: PartitionPolicy(4), "PartitionPolicy(4)", "fixed(8)", error=TypeError),
    rejected(lambda _: PartitionPolicy(), "PartitionPolicy.adaptive()", error=TypeError),
    rejected(lambda _: PartitionSelector.by_key("id"), "by_key: 'id'", "give a function"),
    rejected(lambda _: PartitionSelector.custom(3), "custom: 3", "give a function"),
    rejected(lambda _: DrainBalancer.load_weighted(0.5), "skip_ratio is 0.5", "from 1 up"),
    rejected(lambda _: DrainBalancer.load_weighted("2"), "skip_ratio is '2'", "from 1 up", "1.15"),
    rejected(lambda _: DrainBalancer.throughput_weighted(NAN), "skip_ratio is nan", "from 1 up"),
    rejected(lambda _: DrainBalancer.custom(None), "custom: None", "give a function"),
    rejected(lambda _: RetryPolicy(attempts=0), "attempts is 0", "1 to 1_000 tries"),
    rejected(lambda _: RetryPolicy(attempts="3"), "attempts is '3'", "1 to 1_000 tries"),
    rejected(lambda _: RetryPolicy(attempts=1.5), "attempts is 1.5", "1 to 1_000 tries"),
    rejected(lambda _: RetryPolicy(backoff_ms=-1), "backoff_ms is -1", "from 0 up"),
    rejected(lambda _: RetryPolicy(backoff_ms="1"), "backoff_ms is '1'", "from 0 up"),
    rejected(lambda _: RetryPolicy(factor=0.5), "factor is 0.5", "from 1 up"),
    rejected(lambda _: RetryPolicy(max_backoff_ms=INF), "max_backoff_ms is inf", "finite"),
    rejected(lambda _: RetryPolicy(jitter=2), "jitter is 2", "from 0 to 1"),
    rejected(lambda _: RetryPolicy(bisect="yes"), "bisect is 'yes'", "True or False"),
    rejected(lambda _: RetryPolicy(retry_on=ValueError), "ValueError", "a tuple of exception"),
    rejected(lambda _: RetryPolicy(retry_on=(int,)), "int", "a tuple of exception classes"),
]

CONFIGS = [
    rejected(lambda _: BatchQueueConfig(), "neither of threads", "exactly one", "cpu_cores(1.0)"),
    rejected(
        lambda _: settings(shared_scheduler=("io", ONE)), "both of threads", "give exactly one"
    ),
    rejected(lambda _: settings(threads=2), "threads is 2, an int", "ThreadPolicy.fixed(2)"),
    rejected(lambda _: settings(threads="2"), "threads is '2', a str", "ThreadPolicy.fixed(2)"),
    rejected(
        lambda _: settings(partitions=4), "partitions is 4, an int", "PartitionPolicy.fixed(4)"
    ),
    rejected(lambda _: settings(partitions=None), "partitions is None", "PartitionPolicy.fixed(4)"),
    rejected(
        lambda _: settings(strategy="blocking"),
        "strategy is 'blocking', a str",
        "BufferStrategy.BLOCKING",
    ),
    rejected(lambda _: settings(strategy=True), "strategy is True", "BufferStrategy.BLOCKING"),
    rejected(lambda _: settings(selector="by_type"), "'by_type', a str", "round_robin()"),
    rejected(lambda _: settings(selector=len), "selector is", "give PartitionSelector or None"),
    rejected(lambda _: settings(buffer_size=0), "buffer_size is 0", "1 to 100_000_000 items"),
    rejected(lambda _: settings(buffer_size=-5), "buffer_size is -5", "1 to 100_000_000 items"),
    rejected(lambda _: settings(buffer_size="9"), "buffer_size is '9', a str", "give int"),
    rejected(lambda _: settings(buffer_size=1e4), "buffer_size is 10000.0, a float", "give int"),
    rejected(lambda _: settings(buffer_size=LARGE), str(LARGE), "1 to 100_000_000 items"),
    rejected(lambda _: settings(max_batch_items=0), "max_batch_items is 0", "1 to 100_000_000"),
    rejected(lambda _: settings(max_batch_items=True), "max_batch_items is True", "give int"),
    rejected(lambda _: settings(max_batch_items=None), "max_batch_items is None", "give int"),
    rejected(lambda _: settings(max_delay_ms=-1), "max_delay_ms is -1", "from 0 up"),
    rejected(lambda _: settings(max_delay_ms="5"), "max_delay_ms is '5'", "int or float"),
    rejected(lambda _: settings(max_delay_ms=NAN), "max_delay_ms is nan", "finite"),
    rejected(
        lambda _: settings(max_delay_ms=5, max_batch_items=1), "max_batch_items 1", "leave max_del"
    ),
    rejected(lambda _: settings(min_idle_ms=-1), "min_idle_ms is -1", "from 0 up"),
    rejected(lambda _: settings(min_idle_ms="5"), "min_idle_ms is '5'", "int or float"),
    rejected(lambda _: settings(max_idle_ms=INF), "max_idle_ms is inf", "finite"),
    rejected(
        lambda _: settings(min_idle_ms=9, max_idle_ms=3), "(3)", "(9)", "raise max_idle_ms or"
    ),
    rejected(lambda _: settings(takeover_after_ms=0), "takeover_after_ms is 0", "from 1 up"),
    rejected(lambda _: settings(takeover_after_ms=None), "takeover_after_ms is None", "int or"),
    rejected(lambda _: settings(spare_threads=-1), "spare_threads is -1", "0 to 1_024 threads"),
    rejected(lambda _: settings(spare_threads=1.5), "spare_threads is 1.5", "int or None"),
    rejected(
        lambda _: settings(spare_threads=2, consumer_factory=Handler),
        "spare_threads is 2",
        "give 0",
    ),
    rejected(lambda _: settings(balancer="load"), "balancer is 'load'", "for instance True"),
    rejected(lambda _: settings(balancer=1), "balancer is 1", "DrainBalancer or None"),
    rejected(lambda _: settings(rebalance_interval_ms=-1), "interval_ms is -1", "from 0 up"),
    rejected(lambda _: settings(shutdown_timeout=-1), "shutdown_timeout is -1", "from 0 up"),
    rejected(lambda _: settings(shutdown_timeout="30"), "shutdown_timeout is '30'", "or None"),
    rejected(lambda _: settings(retry=3), "retry is 3, an int", "RetryPolicy(attempts=3)"),
    rejected(lambda _: settings(retry=RetryPolicy), "retry is", "RetryPolicy(attempts=3)"),
    rejected(lambda _: settings(consumer=Handler), "the class Handler", "give an instance"),
    rejected(lambda _: settings(consumer=3), "an int cannot be a handler", "consume(batch)"),
    rejected(lambda _: settings(consumer=generator), "generator function", "without `yield`"),
    rejected(
        lambda _: settings(consumer=Handler(), consumer_factory=Handler), "both", "one of them"
    ),
    rejected(lambda _: settings(consumer_factory=3), "consumer_factory is 3", "callable"),
    rejected(lambda _: settings(error_handler="log"), "error_handler is 'log'", "callable"),
    rejected(
        lambda _: settings(error_handler=generator), "error_handler <", "generator", "`yield`"
    ),
    rejected(lambda _: settings(dead_letter=3), "an int cannot be a handler", "consume(batch)"),
    rejected(lambda _: settings(dead_letter=Handler), "the class Handler", "give an instance"),
    rejected(lambda _: settings(default_handler=3), "an int cannot be a handler", "consume(batch)"),
    rejected(lambda _: settings(default_handler=generator), "generator function", "`yield`"),
    rejected(
        lambda _: settings(default_handler=len, consumer=len), "beside a consumer", "one of them"
    ),
    rejected(lambda _: settings(inline=1), "inline is 1", "True or False"),
    rejected(lambda _: settings(restart_after_fork="yes"), "is 'yes'", "True or False"),
    rejected(
        lambda _: BatchQueueConfig(shared_scheduler=("io", ONE), inline=True),
        "inline=True is given with a shared_scheduler",
        "give threads instead",
    ),
    rejected(lambda _: BatchQueueConfig(shared_scheduler="io"), "'io'", "a name and a ThreadPol"),
    rejected(lambda _: BatchQueueConfig(shared_scheduler=("io", 2)), "('io', 2)", "cpu_cores(0.5)"),
    rejected(lambda _: BatchQueueConfig(shared_scheduler=("", ONE)), "('', ", "a name and a Thr"),
    rejected(lambda _: settings(size=3), "size", error=TypeError),
    rejected(lambda _: BatchQueue(3), "name is 3", "a str of printable characters"),
    rejected(lambda _: BatchQueue(""), "name is ''", "at least one"),
    rejected(lambda _: BatchQueue("a\0"), r"name is 'a\x00'", "printable"),
    rejected(lambda _: BatchQueue("q", 3), "config is an int", "give a BatchQueueConfig"),
    rejected(lambda _: BatchQueue("q", BatchQueueConfig), "config is a type", "BatchQueueConfig"),
    rejected(lambda _: BatchQueue("q", settings(consumer=coroutine)), "AsyncBatchQueue"),
    rejected(lambda _: BatchQueue("q", settings(error_handler=coroutine)), "AsyncBatchQueue"),
    rejected(
        lambda _: AsyncBatchQueue("q", settings(inline=True)), "inline=True", "with a BatchQueue"
    ),
    rejected(
        lambda _: AsyncBatchQueue("q", settings(restart_after_fork=True)), "in the child, where"
    ),
    rejected(
        lambda _: AsyncBatchQueue("q", settings(consumer=coroutine)), "none is running", "coroutine"
    ),
]

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
    rejected(lambda queue: queue.add_handler(3, len), "item_type is 3", "give a class"),
    rejected(lambda queue: queue.add_handler(None, len), "item_type is None", "give a class"),
    rejected(lambda queue: queue.add_handler(list[int], len), "list[int]", "give a class"),
    rejected(lambda queue: queue.add_handler(int | str, len), "int | str", "give a class"),
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
    rejected(lambda queue: queue.handler(), "item_type", error=TypeError),
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
    rejected(lambda queue: queue.produce_many(3), "a int, which is not iterable", error=TypeError),
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
    rejected(lambda _: SqliteStore(None), "is None, a NoneType", 'SqliteStore("metrics.db")'),
    rejected(lambda _: SqliteStore(3), "is 3, an int", 'SqliteStore("metrics.db")'),
    rejected(lambda _: SqliteStore(":memory:"), ":memory:", "give it a file"),
    rejected(lambda _: ParquetStore(None), "is None, a NoneType", 'ParquetStore("metrics")'),
    rejected(lambda _: BatchFailed(3), "items=3, an int", "indexes=[...]"),
]

WRONG = POLICIES + CONFIGS + HANDLERS + PRODUCERS + METRICS


def test_table_is_long():
    assert len(WRONG) >= 150


@pytest.mark.parametrize(("call", "error", "parts"), WRONG)
def test_wrong_use_is_refused_with_value_and_remedy(make_queue, call, error, parts):
    queue = make_queue()
    queue.add_handler(int, lambda batch: None)
    with pytest.raises(error) as caught:
        call(queue)
    message = str(caught.value)
    assert [part for part in parts if part not in message] == [], message
    assert queue.running, "a refused call changes nothing"
    assert queue.stats().attempts == 0
    assert set(queue.stats().handlers()) == {int}
