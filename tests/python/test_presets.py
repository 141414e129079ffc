"""The presets are the table of the design, and every size is an argument."""

import inspect

import pytest

from batchqueue import (
    BatchQueue,
    BatchQueueConfig,
    BufferStrategy,
    HandlerConsumer,
    PartitionPolicy,
    ThreadPolicy,
    presets,
)

HANDLERS = [presets.l1_aggregation, presets.l2_persistence, presets.top_n]


@pytest.mark.parametrize(
    ("config", "threads_on_8_cores", "buffer_size", "strategy", "idle_ms"),
    [
        (presets.l1_aggregation(), 8, 20_000, BufferStrategy.IF_POSSIBLE, (1, 50)),
        (presets.l2_persistence(), 3, 2_000, BufferStrategy.BLOCKING, (1, 50)),
        (presets.top_n(), 1, 1_000, BufferStrategy.BLOCKING, (10, 100)),
        (presets.sql_batch(HandlerConsumer), 4, 10_000, BufferStrategy.BLOCKING, (1, 20)),
    ],
)
def test_defaults(config, threads_on_8_cores, buffer_size, strategy, idle_ms):
    assert config.threads.resolve(8) == threads_on_8_cores
    assert (config.buffer_size, config.strategy) == (buffer_size, strategy)
    assert (config.min_idle_ms, config.max_idle_ms) == idle_ms


@pytest.mark.parametrize("preset", HANDLERS)
def test_handler_presets_are_adaptive_and_have_no_consumer(preset):
    config = preset()
    assert config.partitions.resolve(4, 10) == 10
    assert config.consumer is None
    assert config.consumer_factory is None


@pytest.mark.parametrize("preset", [*HANDLERS, presets.sql_batch])
def test_every_argument_reaches_the_config(preset):
    given = {
        "threads": ThreadPolicy.fixed(3),
        "partitions": PartitionPolicy.fixed(7),
        "buffer_size": 5,
        "strategy": BufferStrategy.IF_POSSIBLE
        if preset is not presets.l1_aggregation
        else BufferStrategy.BLOCKING,
        "min_idle_ms": 2,
        "max_idle_ms": 3,
        "consumer_factory": HandlerConsumer,
    }
    names = [name for name in inspect.signature(preset).parameters if name != "writers"]
    config = preset(**{name: given[name] for name in names})
    assert {name: getattr(config, name) for name in names} == {name: given[name] for name in names}


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


def test_presets_are_plain_configs():
    assert all(isinstance(preset(), BatchQueueConfig) for preset in HANDLERS)
    names = {presets.METRICS_L1_AGGREGATION, presets.METRICS_L2_PERSISTENCE, presets.TOPN_WORKER}
    assert names == {"METRICS_L1_AGGREGATION", "METRICS_L2_PERSISTENCE", "TOPN_WORKER"}
