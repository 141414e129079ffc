"""Presets have the settings of the documented table, and every size is an argument."""

import inspect
import subprocess
import sys
from typing import NamedTuple

import pytest

from batchqueue import (
    BatchQueue,
    BatchQueueConfig,
    BufferStrategy,
    DrainBalancer,
    HandlerConsumer,
    PartitionPolicy,
    RetryPolicy,
    ThreadPolicy,
    presets,
)

BLOCKING, IF_POSSIBLE = BufferStrategy.BLOCKING, BufferStrategy.IF_POSSIBLE
ONE, ADAPTIVE = PartitionPolicy.fixed(1), PartitionPolicy.adaptive()
BY_LOAD = DrainBalancer.load_weighted()
HALF_OF_CORES = ThreadPolicy.cpu_cores(0.5)
HANDLERS = [presets.l1_aggregation, presets.l2_persistence, presets.top_n]


class Row(NamedTuple):
    """One row of the table."""

    threads: ThreadPolicy | None
    shared_scheduler: tuple[str, ThreadPolicy] | None
    partitions: PartitionPolicy
    buffer_size: int
    strategy: BufferStrategy
    min_idle_ms: float
    max_idle_ms: float
    balancer: DrainBalancer | None
    consumer: object
    consumer_factory: object


def send(batch):
    """A consumer."""


def own(threads, *settings, consumer=None, consumer_factory=None):
    return Row(threads, None, *settings, consumer, consumer_factory)


def on_pool(*settings):
    return Row(None, ("IO_POOL", HALF_OF_CORES), *settings, send, None)


FIXED, CORES = ThreadPolicy.fixed, ThreadPolicy.cpu_cores
TABLE = {
    "l1_aggregation": (
        presets.l1_aggregation(),
        own(CORES(1.0), ADAPTIVE, 20_000, IF_POSSIBLE, 1, 50, BY_LOAD),
    ),
    "l2_persistence": (
        presets.l2_persistence(),
        own(
            ThreadPolicy.cpu_cores_with_base(1, 0.25),
            ADAPTIVE,
            2_000,
            BLOCKING,
            1,
            50,
            BY_LOAD,
        ),
    ),
    "top_n": (presets.top_n(), own(FIXED(1), ADAPTIVE, 1_000, BLOCKING, 10, 100, None)),
    "remote_client": (
        presets.remote_client(send),
        own(FIXED(1), ONE, 10_000, BLOCKING, 1, 50, None, consumer=send),
    ),
    "remote_client, shared": (
        presets.remote_client(send, shared=True),
        on_pool(ONE, 10_000, BLOCKING, 1, 50, None),
    ),
    "exporter, gRPC": (
        presets.exporter(send),
        own(FIXED(1), ONE, 20_000, BLOCKING, 1, 200, None, consumer=send),
    ),
    "exporter, gRPC, shared": (
        presets.exporter(send, shared=True),
        on_pool(ONE, 20_000, BLOCKING, 1, 200, None),
    ),
    "exporter, Kafka": (
        presets.exporter(send, strategy=IF_POSSIBLE),
        own(FIXED(1), ONE, 20_000, IF_POSSIBLE, 1, 200, None, consumer=send),
    ),
    "exporter, Kafka, shared": (
        presets.exporter(send, strategy=IF_POSSIBLE, shared=True),
        on_pool(ONE, 20_000, IF_POSSIBLE, 1, 200, None),
    ),
    "sql_batch": (
        presets.sql_batch(HandlerConsumer),
        own(
            FIXED(4),
            PartitionPolicy.fixed(4),
            10_000,
            BLOCKING,
            1,
            20,
            None,
            consumer_factory=HandlerConsumer,
        ),
    ),
}


@pytest.mark.parametrize(("config", "row"), TABLE.values(), ids=TABLE.keys())
def test_defaults_are_those_of_the_table(config, row):
    assert Row(*(getattr(config, name) for name in Row._fields)) == row


GIVEN = {
    "threads": FIXED(3),
    "partitions": PartitionPolicy.fixed(7),
    "buffer_size": 5,
    "min_idle_ms": 2,
    "max_idle_ms": 3,
    "balancer": DrainBalancer.throughput_weighted(),
    "rebalance_interval_ms": 7,
    "consumer": send,
    "consumer_factory": HandlerConsumer,
}
NOT_SETTINGS = {"writers", "shared", "pool_threads", "batches"}


@pytest.mark.parametrize("strategy", BufferStrategy)
@pytest.mark.parametrize(
    "preset", [*HANDLERS, presets.remote_client, presets.exporter, presets.sql_batch]
)
def test_every_argument_reaches_the_config(preset, strategy):
    given = {"strategy": strategy, **GIVEN}
    names = inspect.signature(preset).parameters.keys() - NOT_SETTINGS
    config = preset(**{name: given[name] for name in names})
    assert {name: getattr(config, name) for name in names} == {name: given[name] for name in names}


@pytest.mark.parametrize("preset", [presets.remote_client, presets.exporter])
def test_size_of_the_pool_is_an_argument(preset):
    config = preset(send, shared=True, pool_threads=FIXED(3))
    assert (config.threads, config.shared_scheduler) == (None, (presets.IO_POOL, FIXED(3)))


def test_sql_batch_has_one_consumer_and_partition_per_writer():
    made = []

    class Writer:
        def __init__(self):
            made.append(self)

        def consume(self, batch):
            pass

    with BatchQueue("sql", presets.sql_batch(Writer, writers=3)) as queue:
        assert (queue.stats().thread_count, queue.stats().partition_count) == (3, 3)
    assert len(made) == 3


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("preset", [presets.remote_client, presets.exporter])
def test_queue_for_the_network_delivers_in_order(preset, shared):
    sent = []
    with BatchQueue("peer", preset(sent.extend, shared=shared)) as queue:
        assert queue.produce_many(list(range(100))) == 100
        assert (queue.stats().thread_count, queue.stats().partition_count) == (1, 1)
    assert sent == list(range(100))


def test_presets_are_plain_configs():
    assert all(type(config) is BatchQueueConfig for config, _ in TABLE.values())


def test_presets_name_their_queues_and_pool():
    names = {presets.METRICS_L1_AGGREGATION, presets.METRICS_L2_PERSISTENCE, presets.TOPN_WORKER}
    assert names == {"METRICS_L1_AGGREGATION", "METRICS_L2_PERSISTENCE", "TOPN_WORKER"}
    assert presets.IO_POOL == "IO_POOL"


TYPED = """
from typing import Any, assert_type
from batchqueue import BatchQueueConfig, HandlerConsumer
from batchqueue.presets import (
    exporter, l1_aggregation, l2_persistence, remote_client, sql_batch, top_n
)

class Sender(HandlerConsumer[bytes]): ...
def send(batch: list[int]) -> None: ...

assert_type(l1_aggregation(), BatchQueueConfig[Any])
assert_type(l2_persistence(), BatchQueueConfig[Any])
assert_type(top_n(), BatchQueueConfig[Any])
assert_type(remote_client(send), BatchQueueConfig[int])
assert_type(remote_client(Sender(), shared=True), BatchQueueConfig[bytes])
assert_type(exporter(send), BatchQueueConfig[int])
assert_type(sql_batch(Sender), BatchQueueConfig[bytes])
"""


@pytest.mark.matrix(3, name="type checkers")
@pytest.mark.parametrize(
    ("wrong", "complaint"),
    [
        ("", None),
        ("exporter(send, shared=1)", "arg-type"),
        ("remote_client(3)", "arg-type"),
        ("sql_batch(Sender())", "arg-type"),
        ("top_n(balancer=None)", "call-arg"),
    ],
    ids=["right", "no bool", "no consumer", "no factory", "no such argument"],
)
def test_type_checker_knows_the_items_of_a_preset(tmp_path, wrong, complaint):
    page = tmp_path / "page.py"
    page.write_text(TYPED + wrong)
    command = [
        sys.executable,
        "-m",
        "mypy",
        "--strict",
        "--config-file=",
        "--cache-dir",
        tmp_path,
        page,
    ]
    checked = subprocess.run(command, capture_output=True, text=True, check=False)
    if complaint is None:
        assert checked.returncode == 0, checked.stdout
    else:
        assert checked.returncode == 1
        assert checked.stdout.count("error:") == checked.stdout.count(f"[{complaint}]") == 1, (
            checked.stdout
        )


@pytest.mark.parametrize(
    "preset",
    [
        *HANDLERS,
        lambda **settings: presets.remote_client(send, **settings),
        lambda **settings: presets.exporter(send, shared=True, **settings),
        lambda **settings: presets.sql_batch(lambda: send, **settings),
    ],
)
def test_every_preset_takes_the_settings_of_batches_and_failures(preset):
    settings = {
        "max_batch_items": 500,
        "max_delay_ms": 200,
        "retry": RetryPolicy(bisect=True),
        "error_handler": print,
        "dead_letter": send,
    }
    config = preset(**settings)
    assert {name: getattr(config, name) for name in settings} == settings


def test_exporter_of_this_package_is_the_consumer_of_a_preset():
    pytest.importorskip("httpx")
    from batchqueue.exporters import HttpBatches

    retry = RetryPolicy(attempts=None)
    exporter = HttpBatches("http://127.0.0.1:9/items")
    letters = []
    config = presets.exporter(exporter, retry=retry, dead_letter=letters.extend)
    assert config.consumer is exporter
    queue = BatchQueue("exporter", config)
    queue.produce({"id": 1})
    assert queue.shutdown(0.5) == 0
    assert [letter.item for letter in letters] == [{"id": 1}]
