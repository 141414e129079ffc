"""Arguments of a queue: names, handlers, item types, weights and selectors."""

import pytest

from batchqueue import (
    BatchQueue,
    ConfigError,
    HandlerConsumer,
    PartitionPolicy,
    PartitionSelector,
    ThreadPolicy,
    _core,
)
from core_support.handlers import Recorder
from core_support.queues import config
from core_support.waits import WAIT_S

ONE = ThreadPolicy.fixed(1)

PARTITIONS_OF_TUPLES = {
    ("UA", 7): 785_798_158,
    (b"UA", None): 740_230_568,
    (): 69_346_085,
    (-(2**200), True): 1_034_023_872,
}


@pytest.mark.parametrize("name", ["", None, 3, b"bytes", "a\0b", "\ud800"])
def test_invalid_name_is_rejected(name):
    with pytest.raises(ConfigError, match="name"):
        BatchQueue(name, config())


@pytest.mark.parametrize("name", ["a", "x" * 1_000, "Zähler-Ω", "with space", "{braces} %s"])
def test_any_other_name_works(make_queue, name):
    queue = make_queue(name)
    assert queue.name == name == queue.stats().name
    assert name in repr(queue) or repr(name) in repr(queue)


def test_config_of_another_type_is_rejected():
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
        (Recorder, r"the class Recorder.*give an instance"),
        (IdleIsData(), r"on_idle of IdleIsData is 3; it must be a method"),
        (None, r"a NoneType cannot be a handler"),
        (3, r"an int cannot be a handler"),
    ],
)
def test_handler_without_consume_is_rejected(make_queue, handler, message):
    queue = make_queue()
    with pytest.raises(ConfigError, match=message):
        queue.add_handler(int, handler)
    assert queue.stats().handlers() == {}


@pytest.mark.parametrize("item_type", [None, 3, list[int]])
def test_item_type_must_be_a_class_or_a_tag(make_queue, item_type):
    with pytest.raises(ConfigError, match=r"item_type is .*give (a|the) class"):
        make_queue().add_handler(item_type, Recorder())


@pytest.mark.parametrize("weight", [0, -1, 1_000.1, float("nan"), float("inf")])
def test_weight_must_be_above_zero_and_at_most_a_thousand(make_queue, weight):
    with pytest.raises(ConfigError, match=r"weight is .*above 0, at most 1_000"):
        make_queue().add_handler(int, Recorder(), weight=weight)


def test_second_handler_of_a_type_replaces_the_first_on_request(make_queue):
    queue = make_queue("orders")
    first, second = Recorder(), Recorder()
    queue.add_handler(int, first)
    queue.produce(1)
    assert queue.flush(30)
    queue.add_handler(int, second, replace=True)
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
def test_custom_selector_is_validated(make_queue, chosen):
    queue = make_queue(partitions=3, selector=PartitionSelector.custom(lambda item, count: chosen))
    for put in (queue.produce, lambda item: queue.produce_many([item])):
        with pytest.raises(ConfigError, match=r"custom selector chose partition .*from 0 to 2"):
            put(1)
    assert queue.stats().attempts == 0


@pytest.mark.parametrize(
    ("key", "message"),
    [
        *((key, "of type .*return a str, bytes, int or bool") for key in (1.5, (1, 2.5), [1], {})),
        (None, r"is None: have the function return .*like \(None,\)"),
        ((1, (2, 3)), r"the key \(1, \(2, 3\)\) has a tuple inside a tuple; return one tuple"),
    ],
)
def test_key_without_a_stable_hash_is_rejected(make_queue, key, message):
    queue = make_queue(partitions=3, selector=PartitionSelector.by_key(lambda item: key))
    with pytest.raises(ConfigError, match=message):
        queue.produce(1)
    assert queue.stats().attempts == 0


def test_error_of_a_selector_is_raised_at_the_producer(make_queue):
    def select(item, count):
        raise LookupError("no partition")

    queue = make_queue(selector=PartitionSelector.custom(select))
    with pytest.raises(LookupError):
        queue.produce(1)
    with pytest.raises(LookupError):
        queue.produce_many([1])


def test_keys_go_to_the_same_partition_in_every_process(make_queue):
    """FNV-1a of the key's bytes, never Python's own hash, which differs between processes."""

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


def partition_of(key, partitions=1 << 30):
    return _core.partition_of_key(key, partitions)


def test_keys_of_several_parts_go_to_the_same_partition_in_every_version():
    """The numbers are part of the contract: producers of another version use them, too."""
    assert partition_of(("UA", 7)) == PARTITIONS_OF_TUPLES["UA", 7]
    assert partition_of((b"UA", None)) == PARTITIONS_OF_TUPLES[b"UA", None]
    assert partition_of(()) == PARTITIONS_OF_TUPLES[()]
    assert partition_of((-(2**200), True)) == PARTITIONS_OF_TUPLES[-(2**200), True]


def test_parts_of_different_kinds_are_different_keys():
    keys = [(1,), (True,), ("1",), (b"1",), (None,), (0,), (False,), ("",), (b"",), (), ("a", "b")]
    keys += [("ab",), ("ab", ""), ("", "ab"), (2**127,), (2**128,), (-1,), ("\ud800",)]
    assert len({partition_of(key) for key in keys}) == len(keys)
    assert partition_of(1) != partition_of(True) != partition_of("1")
    assert partition_of(2**127 - 1) != partition_of(2**127)


def test_keys_of_several_parts_keep_their_order_in_one_partition(make_queue):
    key = PartitionSelector.by_key(lambda item: (item % 7, str(item % 3), None))
    queue = make_queue(threads=2, partitions=8, selector=key)
    seen = []
    queue.add_handler(int, seen.extend)
    assert queue.produce_many(range(2_000)) == 2_000
    assert queue.shutdown(WAIT_S) == 0
    for remainder in range(21):
        mine = [item for item in seen if item % 21 == remainder]
        assert mine == list(range(remainder, 2_000, 21))


def test_handler_decorator_takes_functions_and_classes(make_queue):
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


def test_typed_queue_can_be_made(make_queue):
    queue = BatchQueue[int]("typed", config())
    assert queue.shutdown(5) == 0


def test_subclass_may_call_init_as_usual():
    class Counting(BatchQueue):
        def __init__(self, name, config):
            super().__init__(name, config)
            self.seen = []
            self.add_handler(int, self.seen.extend)

    with Counting("counting", config()) as queue:
        assert queue.produce(1)
    assert queue.seen == [1]
    assert queue.name == "counting"
