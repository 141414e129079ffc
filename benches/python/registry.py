"""The cost of types: with 20,000 of them, and for 100,000 that come and go.

Prints the microseconds to register, replace and remove the 20,000th type, the processor time of a
queue that is idle with that many, the time and resident memory of sessions (each registers a
handler for its own class, produces a few items and removes the handler), and what one producer
gets through while the handler of another class is replaced every 10 ms, as a ratio to the same
without. Two drain threads, `PartitionPolicy.adaptive()`.

    python benches/python/registry.py [--types N] [--sessions N] [--with-flush]
"""

import argparse
import gc
import resource
import statistics
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from pathlib import Path

from batchqueue import BatchQueue, BatchQueueConfig, PartitionPolicy, ThreadPolicy

ITEMS_PER_SESSION = 3
ROUNDS = 101
TURNS = 21
SECONDS_PER_TURN = 0.5
REPLACED_EVERY_S = 0.01


class Idle:
    """A handler that is called when there is nothing to do."""

    def consume(self, batch: list[object]) -> None:
        """Handle a batch."""

    def on_idle(self) -> None:
        """Do nothing."""


def make_queue(name: str) -> BatchQueue:
    """Start a queue."""
    config = BatchQueueConfig(
        threads=ThreadPolicy.fixed(2), partitions=PartitionPolicy.adaptive(), buffer_size=1_000
    )
    return BatchQueue(name, config)


def new_class(number: int) -> type:
    """Make the class of a session."""
    return type(f"Session{number}", (), {})


def timed_us(action: Callable[..., object], *arguments: object) -> float:
    """Return the microseconds that a call takes."""
    began = time.perf_counter_ns()
    action(*arguments)
    return (time.perf_counter_ns() - began) / 1e3


def resident_mb() -> float:
    """Return the resident memory of the process."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * resource.getpagesize() / 1e6


def measure_types(count: int, make_handler: Callable[[], object], label: str) -> None:
    """Register so many types; then register, replace and remove the last one, many times."""
    with make_queue("types") as queue:
        for number in range(count - 1):
            queue.add_handler(new_class(number), make_handler())
        replace = partial(queue.add_handler, replace=True)
        took: dict[str, list[float]] = {"register": [], "replace": [], "remove": []}
        for number in range(ROUNDS):
            last, first, second = new_class(-number), make_handler(), make_handler()
            took["register"].append(timed_us(queue.add_handler, last, first))
            took["replace"].append(timed_us(replace, last, second))
            took["remove"].append(timed_us(queue.remove_handler, last))
        medians = ", ".join(f"{name} {statistics.median(us):.1f}" for name, us in took.items())
        print(f"type {count:,}, {label}: {medians} us")
        time.sleep(1)
        cpu, began = time.process_time(), time.perf_counter()
        time.sleep(3)
        share = (time.process_time() - cpu) / (time.perf_counter() - began)
        print(f"idle with {count:,} types, {label}: {share * 1e3:.2f} ms of CPU per second")


def measure_sessions(count: int, *, flushes: bool) -> None:
    """Let sessions come and go, and print what each costs at intervals."""
    with make_queue("sessions") as queue:
        gc.collect()
        start_mb = resident_mb()
        step = max(count // 5, 1)
        began = time.perf_counter()
        for number in range(1, count + 1):
            session = new_class(number)
            queue.add_handler(session, lambda batch: None)
            for _ in range(ITEMS_PER_SESSION):
                queue.produce(session())
            if flushes:
                queue.flush()
            queue.remove_handler(session)
            if number % step == 0:
                us = (time.perf_counter() - began) / step * 1e6
                partitions = queue.stats().partition_count
                more_mb = resident_mb() - start_mb
                print(
                    f"{number:>9,} sessions: {us:7.1f} us each, {more_mb:6.1f} MB more than at "
                    f"the start, {partitions:,} partitions"
                )
                began = time.perf_counter()
        stats = queue.stats()
        assert stats.produced == count * ITEMS_PER_SESSION


def produced_per_second(queue: BatchQueue, items: list[object]) -> float:
    """Produce as fast as possible for a while, and return the items per second."""
    count, began = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - began) < SECONDS_PER_TURN:
        queue.produce_many(items)
        count += len(items)
    return count / elapsed


def measure_replacements(types: int) -> None:
    """Produce in turns with and without another thread that replaces a handler every 10 ms."""
    with make_queue("replacements") as queue:
        classes = [new_class(number) for number in range(types)]
        for a_class in classes:
            queue.add_handler(a_class, deque[object](maxlen=0).extend)
        items: list[object] = [a_class() for a_class in classes for _ in range(100)]
        replaced = new_class(-1)
        ended, replaces = threading.Event(), threading.Event()
        replacements = 0

        def replace() -> None:
            nonlocal replacements
            while not ended.wait(REPLACED_EVERY_S):
                if replaces.is_set():
                    queue.add_handler(replaced, deque[object](maxlen=0).extend, replace=True)
                    replacements += 1

        thread = threading.Thread(target=replace)
        thread.start()
        ratios = []
        produced_per_second(queue, items)
        for turn in range(TURNS):
            rates = {}
            for with_replacements in (turn % 2 == 0, turn % 2 == 1):
                (replaces.set if with_replacements else replaces.clear)()
                rates[with_replacements] = produced_per_second(queue, items)
            ratios.append(rates[True] / rates[False])
        ended.set()
        thread.join()
        print(
            f"while 1 of {types + 1} handlers is replaced every 10 ms ({replacements} times): "
            f"{statistics.median(ratios):.3f} of the items per second without"
        )


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--types", type=int, default=20_000)
    parser.add_argument("--sessions", type=int, default=100_000)
    parser.add_argument("--with-flush", action="store_true", help="each session flushes the queue")
    options = parser.parse_args()
    # First, because later their memory could be what the types have left free.
    measure_sessions(options.sessions, flushes=options.with_flush)
    measure_types(options.types, lambda: lambda batch: None, "functions")
    measure_types(options.types, Idle, "handlers with on_idle")
    measure_replacements(16)


if __name__ == "__main__":
    main()
