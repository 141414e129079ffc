"""What statistics say about calls and waits: of handlers, of consumers, and while they run."""

import json
import math
import random
import threading

import pytest

from batchqueue import (
    BatchQueue,
    BatchQueueConfig,
    BatchQueueRates,
    ConfigError,
    ThreadPolicy,
    _core,
)
from core_support.handlers import Held, Recorder
from core_support.queues import assert_conserved
from core_support.waits import WAIT_S, eventually

COUNTS = [
    "attempts",
    "produced",
    "refused",
    "consumed",
    "dead_lettered",
    "failed",
    "unhandled",
    "abandoned",
]


class Order:
    pass


def raise_error(batch):
    raise ValueError("bad")


def test_a_running_call_and_the_oldest_item_behind_it_grow_older(make_queue):
    queue, handler = make_queue(), Held()
    queue.add_handler(int, handler)
    assert queue.stats().oldest_age_ms == 0.0
    assert queue.stats().handlers()[int].in_call_s == 0.0
    handler.hold(queue, 1)
    in_call = queue.stats().handlers()[int].in_call_s
    assert in_call > 0
    assert queue.stats().oldest_age_ms == 0.0, "its item is in the call"
    queue.produce(2)
    age = queue.stats().oldest_age_ms
    eventually(lambda: queue.stats().handlers()[int].in_call_s > in_call, "a longer call")
    eventually(lambda: queue.stats().oldest_age_ms > age, "an older item")
    handler.released.set()
    assert queue.flush(WAIT_S)
    stats = queue.stats()
    handler_stats = stats.handlers()[int]
    assert (stats.oldest_age_ms, handler_stats.in_call_s) == (0.0, 0.0)
    assert handler_stats.call_ms_max >= in_call * 1e3
    assert handler_stats.call_ms_p50 <= handler_stats.call_ms_p99 <= handler_stats.call_ms_max
    assert handler_stats.batch_items_mean == 1.0


def test_what_waits_for_its_batch_to_become_full_grows_older(make_queue):
    queue = make_queue(max_delay_ms=600_000)
    queue.add_handler(int, Recorder())
    queue.produce(1)
    eventually(lambda: queue.stats().held == 1, "the take")
    age = queue.stats().oldest_age_ms
    eventually(lambda: queue.stats().oldest_age_ms > age > 0, "an older item")


def test_the_mean_of_batches_is_exact(make_queue):
    queue, sizes = make_queue(max_batch_items=7), []
    queue.add_handler(int, lambda batch: sizes.append(len(batch)))
    for _ in range(20):
        queue.produce_many(range(random.randrange(1, 30)))
    assert queue.flush(WAIT_S)
    assert queue.stats().handlers()[int].batch_items_mean == pytest.approx(sum(sizes) / len(sizes))


@pytest.mark.parametrize("settings", ["consumer", "consumer_factory"])
def test_consumers_have_the_statistics_of_one_handler(settings):
    seen = []
    given = {"consumer": seen.extend, "consumer_factory": lambda: seen.extend}[settings]
    config = BatchQueueConfig(threads=ThreadPolicy.fixed(1), **{settings: given})
    with BatchQueue("consumed", config) as queue:
        queue.produce_many([1, "a", 2.5] * 10)
    stats = queue.stats()
    assert list(stats.handlers()) == ["consumer"]
    consumer = stats.handlers()["consumer"]
    assert (consumer.consumed, consumer.failed) == (30, 0)
    assert consumer.batches >= 1
    assert consumer.batch_items_mean == pytest.approx(30 / consumer.batches)
    assert consumer.ns_per_item > 0
    assert_conserved(stats)


def test_a_dict_of_statistics_is_json_with_every_attribute(make_queue):
    queue = make_queue(threads=2, partitions=2)
    other = type("Order", (), {"__module__": Order.__module__, "__qualname__": "Order"})
    for kind in (int, Order, other, "tag"):
        queue.add_handler(kind, Recorder())
    queue.produce_many([1, Order(), other()])
    assert queue.flush(WAIT_S)
    stats = queue.stats()
    found = stats.to_dict()
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    public = {name for name in vars(stats) if not name.startswith("_")}
    assert found.keys() == public | {"partitions", "handlers"}
    name = f"{Order.__module__}.Order"
    assert found["handlers"].keys() == {"int", name, f"{name} #2", "tag"}
    assert found["handlers"]["int"] == vars(stats.handlers()[int])
    assert {kind for part in found["partitions"] for kind in part["types"]} == {"int", name, "tag"}
    assert found["consumed"] == 3


def test_an_infinite_load_ratio_is_null_as_json(make_queue):
    queue = make_queue()
    object.__setattr__(stats := queue.stats(), "load_ratio", math.inf)
    assert stats.to_dict()["load_ratio"] is None


def test_rates_are_the_counts_over_the_interval(make_queue):
    queue = make_queue(error_handler=lambda batch, error: None)
    queue.add_handler(int, Recorder())
    queue.add_handler(str, raise_error)
    queue.produce_many([1, 2, "a"])
    assert queue.flush(WAIT_S)
    earlier = queue.stats()
    queue.produce_many([3, 4, 5, 6, "b", 2.5])
    assert queue.flush(WAIT_S)
    later = queue.stats()
    rates = later - earlier
    assert isinstance(rates, BatchQueueRates)
    assert rates.name == later.name
    assert rates.interval_s > 0
    items = {count: getattr(rates, count) * rates.interval_s for count in COUNTS}
    exact = {count: getattr(later, count) - getattr(earlier, count) for count in COUNTS}
    assert items == pytest.approx(exact)
    assert (exact["produced"], exact["consumed"], exact["failed"]) == (6, 4, 1)
    assert json.loads(json.dumps(rates.to_dict())) == rates.to_dict()


def test_rates_of_two_queues_are_refused(make_queue):
    first, second = make_queue("one").stats(), make_queue("two").stats()
    with pytest.raises(ConfigError, match=r"of one queue, not of 'two' and 'one'"):
        second - first


def test_rates_of_two_queues_with_one_name_are_refused(make_queue):
    first, second = make_queue("same").stats(), make_queue("same").stats()
    with pytest.raises(ConfigError, match=r"two queues named 'same'"):
        second - first


def test_rates_of_a_negative_or_empty_interval_are_refused(make_queue):
    queue = make_queue("orders")
    earlier, later = queue.stats(), queue.stats()
    with pytest.raises(ConfigError, match=r"queue 'orders' is -.* later - earlier"):
        earlier - later
    with pytest.raises(ConfigError, match=r"is 0\.0 s"):
        later - later
    with pytest.raises(TypeError):
        later - 1


def test_histograms_agree_with_a_model_of_all_calls(make_queue):
    queue, sizes, lock = make_queue(threads=2, max_batch_items=50), [], threading.Lock()

    def note(batch):
        with lock:
            sizes.append(len(batch))

    queue.add_handler(int, note)
    for _ in range(100):
        queue.produce_many(range(random.randrange(1, 200)))
    assert queue.flush(WAIT_S)
    limits = [1, 2, 4, 8, 16, 32, 64]
    ((kind, waits, items, calls),) = _core.histograms_of(queue, [1 << 40], limits)
    assert kind is int
    assert items[:2] == (len(sizes), sum(sizes))
    assert items[2] == [sum(size <= limit for size in sizes) for limit in limits]
    assert waits[0] == calls[0] == len(sizes)
    longest_ns = queue.stats().handlers()[int].call_ms_max * 1e6
    assert 0 < calls[1] <= longest_ns * len(sizes) * 1.001
