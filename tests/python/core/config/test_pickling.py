"""Configs, policies and errors are immutable values that pickle; a live queue cannot travel."""

import copy
import pickle

import pytest

from batchqueue import (
    BatchQueueConfig,
    BufferStrategy,
    PartitionPolicy,
    PartitionSelector,
    ProduceTimeoutError,
    ThreadPolicy,
)
from core_support.handlers import Recorder
from core_support.queues import config

ONE = ThreadPolicy.fixed(1)


class ModuleLevelConsumer:
    def consume(self, batch):
        pass


def module_level_key(item):
    return str(item)


@pytest.mark.parametrize(
    "value",
    [
        ThreadPolicy.fixed(3),
        ThreadPolicy.cpu_cores(0.75),
        ThreadPolicy.cpu_cores_with_base(1, 0.25),
        PartitionPolicy.fixed(3),
        PartitionPolicy.thread_multiply(2),
        PartitionPolicy.adaptive(30),
        PartitionSelector.round_robin(),
        PartitionSelector.by_key(module_level_key),
        BatchQueueConfig(threads=ONE),
        BatchQueueConfig(
            threads=ThreadPolicy.cpu_cores(2.0),
            partitions=PartitionPolicy.adaptive(),
            selector=PartitionSelector.by_key(module_level_key),
            buffer_size=7,
            strategy=BufferStrategy.IF_POSSIBLE,
            consumer_factory=ModuleLevelConsumer,
            min_idle_ms=0.5,
            max_idle_ms=3,
            max_batch_items=9,
            shutdown_timeout=None,
        ),
    ],
    ids=lambda value: type(value).__name__,
)
@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_configs_and_policies_pickle_and_compare_by_value(value, protocol):
    again = pickle.loads(pickle.dumps(value, protocol))
    assert again == value
    assert hash(again) == hash(value)
    assert repr(again) == repr(value)


def test_pickled_config_makes_a_working_queue(make_queue):
    settings = pickle.loads(pickle.dumps(config(threads=2, buffer_size=5)))
    queue = make_queue(settings=settings)
    seen = Recorder()
    queue.add_handler(int, seen)
    queue.produce(1)
    assert queue.shutdown(30) == 0
    assert seen.items == [1]


def test_configs_are_frozen():
    settings = config()
    with pytest.raises(AttributeError):
        settings.buffer_size = 3


@pytest.mark.parametrize(
    "do", [pickle.dumps, copy.copy, copy.deepcopy], ids=["pickle", "copy", "deepcopy"]
)
def test_live_queue_cannot_be_pickled_or_copied(make_queue, do):
    queue = make_queue("orders")
    with pytest.raises(
        TypeError, match=r"orders.*cannot be pickled.*BatchQueueConfig.*other process"
    ):
        do(queue)


def test_errors_pickle_with_their_values():
    error = pickle.loads(pickle.dumps(ProduceTimeoutError("partition 0 is full", 7)))
    assert str(error) == "partition 0 is full"
    assert error.accepted == 7
