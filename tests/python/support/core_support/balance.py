"""A queue of four types, and what the tests of balancing read from it."""

import threading
from pathlib import Path

from core_support.handlers import Recorder

TYPES = [type(f"Item{index}", (), {}) for index in range(4)]


def owners(queue):
    stats = queue.stats()
    return [stats.partition(index).owner for index in range(stats.partition_count)]


def balanced(make_queue, balancer, threads=2, **settings):
    """A queue of four types, one per partition; with two threads their owners are 0, 1, 0, 1."""
    settings.setdefault("rebalance_interval_ms", 0)
    queue = make_queue(threads=threads, partitions=4, balancer=balancer, **settings)
    for item_type in TYPES:
        queue.add_handler(item_type, Recorder())
    return queue


def swap(load, owner, threads):
    return [(thread + 1) % threads for thread in owner]


def load(queue, *counts):
    for item_type, count in zip(TYPES, counts, strict=True):
        assert queue.produce_many([item_type() for _ in range(count)]) == count


def thread_name():
    """The name that the system knows; native threads have no other."""
    return Path(f"/proc/self/task/{threading.get_native_id()}/comm").read_text().strip()
