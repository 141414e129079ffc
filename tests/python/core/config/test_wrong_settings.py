"""Wrong settings: each is refused with the value, the limit or the kind, and the remedy."""

import datetime

import pytest

from batchqueue import (
    AsyncBatchQueue,
    BatchQueue,
    BatchQueueConfig,
    DrainBalancer,
    PartitionPolicy,
    PartitionSelector,
    RetryPolicy,
    ThreadPolicy,
    presets,
)
from core_support.odd_handlers import Handler, coroutine, generator
from core_support.wrong_uses import INF, LARGE, NAN, ONE, assert_parts_in, rejected, settings

SECOND = datetime.timedelta(seconds=1)

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
    rejected(lambda _: PartitionSelector("zzz"), "('zzz')", "by_type(), ", "or PartitionSelector."),
    rejected(lambda _: PartitionSelector(3), "(3) is not a known", "PartitionSelector.by_key(func"),
    rejected(lambda _: PartitionSelector([]), "([]) is not a known", "PartitionSelector.by_type()"),
    rejected(lambda _: PartitionSelector("by_key"), "by_key: None", "Selector.by_key(function)"),
    rejected(lambda _: PartitionSelector("custom", 3), "custom: 3", "Selector.custom(function)"),
    rejected(lambda _: PartitionSelector("by_type", len), "no function", "by_key(function) or"),
    rejected(lambda _: DrainBalancer("x"), "DrainBalancer('x') is not", "load_weighted(), "),
    rejected(lambda _: DrainBalancer("custom"), "custom: None", "DrainBalancer.custom(function)"),
    rejected(lambda _: DrainBalancer("load_weighted", 0.5), "skip_ratio is 0.5", "from 1 up"),
    rejected(lambda _: DrainBalancer("load_weighted", function=len), "no function", "leave it out"),
    rejected(lambda _: DrainBalancer.load_weighted(0.5), "skip_ratio is 0.5", "from 1 up"),
    rejected(lambda _: DrainBalancer.load_weighted("2"), "skip_ratio is '2'", "from 1 up", "1.15"),
    rejected(lambda _: DrainBalancer.throughput_weighted(NAN), "skip_ratio is nan", "from 1 up"),
    rejected(lambda _: DrainBalancer.custom(None), "custom: None", "give a function"),
    rejected(lambda _: RetryPolicy(attempts=0), "attempts is 0", "1 to 1_000 tries"),
    rejected(lambda _: RetryPolicy(attempts="3"), "attempts is '3'", "1 to 1_000 tries"),
    rejected(lambda _: RetryPolicy(attempts=1.5), "attempts is 1.5", "1 to 1_000 tries"),
    rejected(lambda _: RetryPolicy(backoff_ms=-1), "backoff_ms is -1", "from 0 up"),
    rejected(lambda _: RetryPolicy(backoff_ms="1"), "backoff_ms is '1'", "from 0 up"),
    rejected(lambda _: RetryPolicy(backoff_ms=SECOND / 1e3), "a timedelta", "give backoff_ms=1"),
    rejected(lambda _: RetryPolicy(max_backoff_ms=SECOND), "milliseconds", "max_backoff_ms=1000"),
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
    rejected(
        lambda _: settings(buffer_size="9"), "is '9', a str", "an int, 1 to 100_000_000 items"
    ),
    rejected(lambda _: settings(buffer_size=1e4), "is 10000.0, a float", "an int, 1 to 100"),
    rejected(lambda _: settings(buffer_size=LARGE), str(LARGE), "1 to 100_000_000 items"),
    rejected(lambda _: settings(max_batch_items=0), "max_batch_items is 0", "1 to 100_000_000"),
    rejected(lambda _: settings(max_batch_items=True), "is True, a bool", "an int, 1 to 100_"),
    rejected(lambda _: settings(max_batch_items=None), "is None, a NoneT", "1 to 100_000_000"),
    rejected(lambda _: settings(max_delay_ms=-1), "max_delay_ms is -1", "from 0 up"),
    rejected(lambda _: settings(max_delay_ms="5"), "is '5', a str", "milliseconds, a finite"),
    rejected(lambda _: settings(max_delay_ms=NAN), "max_delay_ms is nan", "finite"),
    rejected(
        lambda _: settings(max_delay_ms=5, max_batch_items=1), "max_batch_items 1", "leave max_del"
    ),
    rejected(lambda _: settings(min_idle_ms=-1), "min_idle_ms is -1", "from 0 up"),
    rejected(lambda _: settings(min_idle_ms="5"), "is '5', a str", "milliseconds", "from 0 up"),
    rejected(lambda _: settings(max_idle_ms=INF), "max_idle_ms is inf", "finite"),
    rejected(
        lambda _: settings(min_idle_ms=9, max_idle_ms=3), "(3)", "(9)", "raise max_idle_ms or"
    ),
    rejected(lambda _: settings(takeover_after_ms=0), "takeover_after_ms is 0", "from 1 up"),
    rejected(
        lambda _: settings(takeover_after_ms=None), "is None, a None", "milliseconds", "from 1"
    ),
    rejected(lambda _: settings(spare_threads=-1), "spare_threads is -1", "0 to 1_024 threads"),
    rejected(
        lambda _: settings(spare_threads=1.5), "is 1.5, a float", "an int, 0 to 1_024 threads"
    ),
    rejected(
        lambda _: settings(spare_threads=2, consumer_factory=Handler),
        "spare_threads is 2",
        "give 0",
    ),
    rejected(lambda _: settings(balancer="load"), "balancer is 'load'", "for instance True"),
    rejected(lambda _: settings(balancer=1), "balancer is 1", "DrainBalancer or None"),
    rejected(lambda _: settings(rebalance_interval_ms=-1), "interval_ms is -1", "from 0 up"),
    rejected(lambda _: settings(rebalance_interval_ms="9"), "is '9', a str", "milliseconds"),
    rejected(lambda _: settings(shutdown_timeout=-1), "is -1", "of seconds from 0 up", "None"),
    rejected(lambda _: settings(shutdown_timeout="30"), "'30', a str", "of seconds", "timedelta"),
    rejected(lambda _: settings(shutdown_timeout=INF), "shutdown_timeout is inf", "or None for no"),
    rejected(lambda _: settings(shutdown_timeout=-SECOND), "is -1.0", "of seconds from 0 up"),
    rejected(lambda _: settings(warn_after="1"), "'1', a str", "of seconds from 0.001 up", "None"),
    rejected(lambda _: settings(warn_after=True), "True, a bool", "of seconds from 0.001 up"),
    rejected(lambda _: settings(warn_after=0 * SECOND), "warn_after is 0.0", "from 0.001 up"),
    rejected(lambda _: settings(max_delay_ms=SECOND), "is in milliseconds", "max_delay_ms=1000"),
    rejected(lambda _: settings(min_idle_ms=SECOND / 8), "a timedelta", "give min_idle_ms=125"),
    rejected(lambda _: settings(buffer_size=SECOND), "a timedelta", "an int, 1 to 100_000_000"),
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
    rejected(
        lambda _: presets.remote_client(len, pool_threads=ONE),
        "pool_threads is ThreadPolicy.fixed(1)",
        "give shared=True, or threads=ThreadPolicy.fixed(1)",
    ),
    rejected(lambda _: presets.exporter(len, pool_threads=ONE), "pool_threads is", "shared=True"),
    rejected(
        lambda _: presets.exporter(len, threads=ONE, shared=True),
        "threads is ThreadPolicy.fixed(1)",
        "give pool_threads=ThreadPolicy.fixed(1)",
    ),
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

WRONG = POLICIES + CONFIGS


def test_table_is_long():
    assert len(WRONG) >= 100


@pytest.mark.parametrize(("call", "error", "parts"), WRONG)
def test_wrong_setting_is_refused_with_value_and_remedy(call, error, parts):
    with pytest.raises(error) as caught:
        call(None)
    assert_parts_in(str(caught.value), parts)
