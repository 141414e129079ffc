"""Settings: what cannot be used is refused with the value, the limit and the remedy; what can be used travels."""

import copy
import pickle

import pytest

from batchqueue import (
    BatchQueue,
    BatchQueueConfig,
    BatchQueueError,
    BufferStrategy,
    ConfigError,
    HandlerConsumer,
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


WRONG = [
    ({}, r"neither of threads and shared_scheduler.*give exactly one"),
    (
        {"threads": ONE, "shared_scheduler": ("io", ONE)},
        r"both of threads and shared_scheduler.*give exactly one",
    ),
    (
        {"shared_scheduler": ("", ONE)},
        r"shared_scheduler is \('', .*give a name and a ThreadPolicy",
    ),
    (
        {"shared_scheduler": ("io", 4)},
        r"shared_scheduler is \('io', 4\).*give a name and a ThreadPolicy",
    ),
    ({"shared_scheduler": "io"}, r"shared_scheduler is 'io'.*give a name and a ThreadPolicy"),
    ({"threads": ONE, "balancer": "lpt"}, r"balancer is 'lpt', a str; give DrainBalancer or None"),
    ({"threads": ONE, "retry": 3}, r"retry is 3, a int; give RetryPolicy or None"),
    ({"threads": ONE, "rebalance_interval_ms": -1}, r"rebalance_interval_ms is -1; give"),
    ({"threads": ONE, "buffer_size": 0}, r"buffer_size is 0; give"),
    ({"threads": ONE, "buffer_size": -3}, r"buffer_size is -3; give"),
    ({"threads": ONE, "buffer_size": 1.5}, r"buffer_size is 1\.5, a float; give int"),
    ({"threads": ONE, "buffer_size": True}, r"buffer_size is True"),
    ({"threads": ONE, "buffer_size": None}, r"buffer_size is None"),
    ({"threads": ONE, "buffer_size": 10**15}, r"buffer_size is 1000000000000000"),
    ({"threads": ONE, "buffer_size": 2**63}, r"buffer_size is 9223372036854775808"),
    ({"threads": ONE, "max_batch_items": 0}, r"max_batch_items is 0; give"),
    ({"threads": ONE, "max_batch_items": 2**64}, r"max_batch_items is"),
    (
        {"threads": ONE, "min_idle_ms": 10, "max_idle_ms": 5},
        r"max_idle_ms \(5\) is below min_idle_ms \(10\).*raise",
    ),
    ({"threads": ONE, "min_idle_ms": -1}, r"min_idle_ms is -1; give"),
    ({"threads": ONE, "max_idle_ms": float("nan")}, r"max_idle_ms is nan; give"),
    ({"threads": ONE, "max_idle_ms": float("inf")}, r"max_idle_ms is inf"),
    ({"threads": ONE, "min_idle_ms": "5"}, r"min_idle_ms is '5', a str; give"),
    ({"threads": ONE, "shutdown_timeout": -1}, r"shutdown_timeout is -1; give"),
    ({"threads": ONE, "shutdown_timeout": "soon"}, r"shutdown_timeout is 'soon'"),
    ({"threads": 4}, r"threads is 4, a int; give ThreadPolicy"),
    ({"threads": ONE, "partitions": 4}, r"partitions is 4, a int; give PartitionPolicy"),
    (
        {"threads": ONE, "strategy": "BLOCKING"},
        r"strategy is 'BLOCKING', a str; give BufferStrategy",
    ),
    (
        {"threads": ONE, "selector": "by_type"},
        r"selector is 'by_type', a str; give PartitionSelector",
    ),
    ({"threads": ONE, "consumer": 3}, r"a int cannot be a handler.*consume"),
    (
        {"threads": ONE, "consumer": ModuleLevelConsumer},
        r"the class ModuleLevelConsumer cannot be a handler",
    ),
    ({"threads": ONE, "consumer_factory": 3}, r"consumer_factory is 3; it must be callable"),
    ({"threads": ONE, "error_handler": 3}, r"error_handler is 3; it must be callable"),
    (
        {"threads": ONE, "consumer": len, "consumer_factory": ModuleLevelConsumer},
        r"consumer and consumer_factory are both given; give one",
    ),
]


@pytest.mark.parametrize(
    ("settings", "message"), WRONG, ids=[str(index) for index in range(len(WRONG))]
)
def test_a_wrong_setting_is_refused_when_the_config_is_made(settings, message):
    with pytest.raises(ConfigError, match=message):
        BatchQueueConfig(**settings)


def test_settings_are_keyword_only_and_known():
    with pytest.raises(TypeError):
        BatchQueueConfig(ONE)
    with pytest.raises(TypeError):
        BatchQueueConfig(threads=ONE, buffersize=3)


def test_a_config_error_is_a_value_error_and_a_batch_queue_error():
    assert issubclass(ConfigError, ValueError)
    assert issubclass(ConfigError, BatchQueueError)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ThreadPolicy.fixed(0), r"fixed.*0.*give"),
        (lambda: ThreadPolicy.fixed(-2), r"-2.*give"),
        (lambda: ThreadPolicy.cpu_cores(0), r"is 0.*above 0"),
        (lambda: ThreadPolicy.cpu_cores(-1), r"is -1.*above 0"),
        (lambda: ThreadPolicy.cpu_cores(float("nan")), r"NaN|nan"),
        (lambda: ThreadPolicy.cpu_cores(float("inf")), r"inf"),
        (lambda: ThreadPolicy.cpu_cores_with_base(-1, 1.0), r"-1.*give"),
        (lambda: PartitionPolicy.fixed(0), r"fixed is 0; give"),
        (lambda: PartitionPolicy.fixed(-1), r"-1.*give"),
        (lambda: PartitionPolicy.thread_multiply(0), r"thread_multiply is 0; give"),
        (lambda: PartitionPolicy.adaptive(0), r"adaptive is 0; give"),
        (lambda: PartitionSelector.by_key(3), r"by_key: 3 is not callable; give a function"),
        (lambda: PartitionSelector.custom("x"), r"custom: 'x' is not callable; give a function"),
    ],
)
def test_a_wrong_policy_is_refused(make, message):
    with pytest.raises(ConfigError, match=message):
        make()


@pytest.mark.parametrize(
    ("policy", "cores", "threads"),
    [
        (ThreadPolicy.fixed(3), 64, 3),
        (ThreadPolicy.cpu_cores(1.0), 8, 8),
        (ThreadPolicy.cpu_cores(0.5), 1, 1),
        (ThreadPolicy.cpu_cores(0.5), 3, 2),
        (ThreadPolicy.cpu_cores(0.5), 5, 3),
        (ThreadPolicy.cpu_cores(0.01), 4, 1),
        (ThreadPolicy.cpu_cores_with_base(1, 0.25), 8, 3),
        (ThreadPolicy.cpu_cores_with_base(1, 0.25), 2, 2),
    ],
)
def test_thread_policies_round_half_up_and_give_at_least_one(policy, cores, threads):
    assert policy.resolve(cores) == threads


def test_thread_policies_ask_for_the_cores_of_this_process():
    assert ThreadPolicy.cpu_cores(1.0).resolve() >= 1
    assert ThreadPolicy.cpu_cores(1.0).resolve() == ThreadPolicy.cpu_cores(1.0).resolve(None)


@pytest.mark.parametrize(
    ("policy", "threads", "handlers", "partitions"),
    [
        (PartitionPolicy.fixed(7), 4, 100, 7),
        (PartitionPolicy.thread_multiply(3), 4, 100, 12),
        (PartitionPolicy.adaptive(), 8, 0, 8),
        (PartitionPolicy.adaptive(), 8, 100, 100),
        (PartitionPolicy.adaptive(), 8, 200, 200),
        (PartitionPolicy.adaptive(), 8, 460, 330),
        (PartitionPolicy.adaptive(), 8, 500, 350),
        (PartitionPolicy.adaptive(2), 2, 10, 7),
    ],
)
def test_partition_policies(policy, threads, handlers, partitions):
    assert policy.resolve(threads, handlers) == partitions


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
    ids=repr,
)
@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_configs_and_policies_pickle_and_compare_by_value(value, protocol):
    again = pickle.loads(pickle.dumps(value, protocol))
    assert again == value
    assert hash(again) == hash(value)
    assert repr(again) == repr(value)


def test_a_pickled_config_makes_a_working_queue(make_queue):
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
def test_a_live_queue_refuses_to_travel_and_says_what_to_do(make_queue, do):
    queue = make_queue("orders")
    with pytest.raises(
        TypeError, match=r"orders.*cannot be pickled.*BatchQueueConfig.*other process"
    ):
        do(queue)


def test_errors_pickle_with_what_they_carry():
    error = pickle.loads(pickle.dumps(ProduceTimeoutError("partition 0 is full", 7)))
    assert str(error) == "partition 0 is full"
    assert error.accepted == 7


@pytest.mark.parametrize("name", ["", None, 3, b"bytes", "a\0b", "\ud800"])
def test_a_wrong_name_is_refused(name):
    with pytest.raises(ConfigError, match="name"):
        BatchQueue(name, config())


@pytest.mark.parametrize("name", ["a", "x" * 1_000, "Zähler-Ω", "with space", "{braces} %s"])
def test_any_other_name_will_do(make_queue, name):
    queue = make_queue(name)
    assert queue.name == name == queue.stats().name
    assert name in repr(queue) or repr(name) in repr(queue)


def test_a_config_of_another_kind_is_refused():
    with pytest.raises(ConfigError, match=r"config is a dict; give a BatchQueueConfig"):
        BatchQueue("queue", {"threads": 1})


class NoConsume:
    pass


class ConsumeIsData:
    consume = 3


class IdleIsData(HandlerConsumer):
    on_idle = 3


@pytest.mark.parametrize(
    ("handler", "message"),
    [
        (NoConsume(), r"NoConsume cannot be a handler: it has no method consume"),
        (ConsumeIsData(), r"ConsumeIsData cannot be a handler"),
        (ModuleLevelConsumer, r"the class ModuleLevelConsumer.*give an instance"),
        (IdleIsData(), r"on_idle of IdleIsData is 3; it must be a method"),
        (None, r"a NoneType cannot be a handler"),
        (3, r"a int cannot be a handler"),
    ],
)
def test_a_handler_without_consume_is_refused(make_queue, handler, message):
    queue = make_queue()
    with pytest.raises(ConfigError, match=message):
        queue.add_handler(int, handler)
    assert queue.stats().handlers() == {}


@pytest.mark.parametrize("item_type", [None, 3, list[int]])
def test_an_item_type_that_is_neither_class_nor_tag_is_refused(make_queue, item_type):
    with pytest.raises(ConfigError, match=r"item_type is .*give a class"):
        make_queue().add_handler(item_type, Recorder())


@pytest.mark.parametrize("weight", [0, -1, float("nan"), float("inf")])
def test_a_weight_that_is_not_above_zero_is_refused(make_queue, weight):
    with pytest.raises(ConfigError, match=r"weight is .*above 0"):
        make_queue().add_handler(int, Recorder(), weight=weight)


def test_a_second_handler_of_a_type_takes_the_place_of_the_first(make_queue):
    queue = make_queue("orders")
    first, second = Recorder(), Recorder()
    queue.add_handler(int, first)
    queue.produce(1)
    assert queue.flush(30)
    queue.add_handler(int, second)
    assert first.closed == 1
    queue.produce(2)
    queue.shutdown(30)
    assert (first.items, second.items) == ([1], [2])
    assert (first.closed, second.closed) == (1, 1)


def test_weights_share_partitions(make_queue):
    queue = make_queue(threads=1, partitions=PartitionPolicy.adaptive())
    for index in range(20):
        queue.add_handler(type(f"Rare{index}", (), {}), Recorder(), weight=0.1)
    assert queue.stats().partition_count == 2


@pytest.mark.parametrize("chosen", [3, -1, 2**70, "0", None, 1.0])
def test_a_custom_selector_is_validated(make_queue, chosen):
    queue = make_queue(partitions=3, selector=PartitionSelector.custom(lambda item, count: chosen))
    for put in (queue.produce, lambda item: queue.produce_many([item])):
        with pytest.raises(ConfigError, match=r"custom selector chose partition .*from 0 to 2"):
            put(1)
    assert queue.stats().attempts == 0


@pytest.mark.parametrize("key", [None, 1.5, (1, 2), object()])
def test_a_key_that_no_other_process_would_hash_alike_is_refused(make_queue, key):
    queue = make_queue(partitions=3, selector=PartitionSelector.by_key(lambda item: key))
    with pytest.raises(ConfigError, match=r"the key .* of type .*return a str, bytes or int"):
        queue.produce(1)
    assert queue.stats().attempts == 0


def test_a_selector_that_raises_raises_at_the_producer(make_queue):
    def select(item, count):
        raise LookupError("no partition")

    queue = make_queue(selector=PartitionSelector.custom(select))
    with pytest.raises(LookupError):
        queue.produce(1)
    with pytest.raises(LookupError):
        queue.produce_many([1])


def test_keys_go_to_the_same_partition_in_every_process(make_queue):
    """FNV-1a of the key's bytes, never Python's own hash, which differs from process to process."""

    def fnv1a(data):
        value = 0xCBF29CE484222325
        for byte in data:
            value = (value ^ byte) * 0x100000001B3 % 2**64
        return value

    queue = make_queue(partitions=16, selector=PartitionSelector.by_key(lambda item: item))
    expected = [0] * 16
    for word in ("a", "flight", "ORD", "Zähler"):
        for key in (word, word.encode()):
            queue.produce(key)
            expected[fnv1a(word.encode()) % 16] += 1
    stats = queue.stats()
    assert [stats.partition(index).attempts for index in range(16)] == expected


def test_the_handler_decorator_takes_functions_and_classes(make_queue):
    queue = make_queue()
    seen = []

    @queue.handler(int)
    def take(batch):
        seen.extend(batch)

    @queue.handler(str, weight=0.5)
    class Take:
        def consume(self, batch):
            seen.extend(batch)

    assert callable(take)
    assert isinstance(Take, type)
    queue.produce_many([1, "a"])
    queue.shutdown(30)
    assert sorted(map(str, seen)) == ["1", "a"]


def test_a_typed_queue_can_be_made(make_queue):
    queue = BatchQueue[int]("typed", config())
    assert queue.shutdown(5) == 0


def test_a_subclass_may_call_init_as_usual():
    class Counting(BatchQueue):
        def __init__(self, name, config):
            super().__init__(name, config)
            self.seen = []
            self.add_handler(int, self.seen.extend)

    with Counting("counting", config()) as queue:
        assert queue.produce(1)
    assert queue.seen == [1]
    assert queue.name == "counting"
