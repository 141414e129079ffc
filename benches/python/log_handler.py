"""`batchqueue.logging.QueueHandler` beside the standard `QueueHandler` with its `QueueListener`.

Three figures, interleaved in one process, so that they compare whatever else the machine does:

* the caller: nanoseconds of one call of `handle` with a record that exists already, so without the
  making of a `LogRecord`, which is the same for both; the target's thread is held meanwhile, so
  that it takes no part;
* handled: records per second from `handle` to the target, from one thread, with an equal target
  that counts;
* logged: the same from `logger.info`, with the making of each record, which both have to pay.

Run as `python benches/python/log_handler.py`; `--rounds` and `--records` change how much.
"""

import argparse
import gc
import logging
import logging.handlers
import queue
import statistics
import threading
import time
from collections.abc import Callable

from batchqueue.logging import QueueHandler

MESSAGE, ARGUMENTS = "order %d of %s", (4711, "oslo")


class Ours:
    """This package's handler; its target counts."""

    name = "batchqueue"

    def __init__(self, records: int) -> None:
        self.delivered = 0
        self.go = threading.Event()
        self.handler = QueueHandler(self.count, buffer_size=records + 1, shutdown_timeout=600)

    def count(self, batch):
        self.go.wait()
        for _ in batch:
            self.delivered += 1

    def finish(self):
        self.handler.close()
        assert self.handler.stats().dropped == 0


class Standard:
    """The standard handler and listener, on the standard queue; the target counts."""

    name = "standard"

    def __init__(self, records: int) -> None:
        self.delivered = 0
        self.go = threading.Event()
        waiting: queue.Queue = queue.Queue(records + 1)
        self.handler = logging.handlers.QueueHandler(waiting)
        self.listener = logging.handlers.QueueListener(waiting, self)
        self.listener.start()

    def handle(self, record):
        self.go.wait()
        self.delivered += 1

    def finish(self):
        self.listener.stop()


def new_records(count: int) -> list[logging.LogRecord]:
    """Return equal records; each is used once, because the first use is the dearest."""
    return [
        logging.LogRecord("shop", logging.INFO, __file__, 1, MESSAGE, ARGUMENTS, None, "f")
        for _ in range(count)
    ]


def caller_ns(make: Callable, records: int) -> tuple[float, float]:
    """Return the nanoseconds per call of `handle`, by the clock and of the thread's CPU time."""
    warm = make(records)  # so that both find the memory that they need
    for record in new_records(records):
        warm.handler.handle(record)
    warm.go.set()
    warm.finish()
    del warm
    side = make(records)
    made = new_records(records)
    side.handler.handle(made[0])
    handle, clock, cpu = side.handler.handle, time.perf_counter_ns, time.thread_time_ns
    gc.collect()
    gc.disable()
    cpu_began, began = cpu(), clock()
    for record in made:
        handle(record)
    took, cpu_took = clock() - began, cpu() - cpu_began
    gc.enable()
    side.go.set()
    side.finish()
    return took / records, cpu_took / records


def bare_ns(records: int) -> float:
    """Return what the loop itself and a handler that does nothing cost."""
    made = list(range(records))
    handle, cpu = logging.NullHandler().handle, time.thread_time_ns
    began = cpu()
    for record in made:
        handle(record)
    return (cpu() - began) / records


def rate(make: Callable, records: int, is_logged: bool) -> float:
    """Return records per second, from the first call to the last record in the target."""
    side = make(records)
    side.go.set()
    logger = logging.Logger("shop")
    logger.addHandler(side.handler)
    made = [] if is_logged else new_records(records)
    handle = side.handler.handle
    gc.collect()
    began = time.perf_counter()
    if is_logged:
        for _ in range(records):
            logger.info(MESSAGE, *ARGUMENTS)
    else:
        for record in made:
            handle(record)
    side.finish()
    took = time.perf_counter() - began
    assert side.delivered == records
    return records / took


def main() -> None:
    """Measure both by turns, and print the medians and their ratio."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--records", type=int, default=50_000)
    options = parser.parse_args()
    sides = (Ours, Standard)
    figures: dict[str, dict[str, list[float]]] = {}

    def note(what: str, name: str, value: float) -> None:
        figures.setdefault(what, {}).setdefault(name, []).append(value)

    for turn in range(options.rounds):
        for side in sides[:: 1 if turn % 2 else -1]:
            clock, cpu = caller_ns(side, options.records)
            note("caller, ns", side.name, clock)
            note("caller, ns of CPU", side.name, cpu)
            note("handled per s", side.name, rate(side, options.records, False))
            note("logged per s", side.name, rate(side, options.records, True))
        note("caller, ns of CPU", "bare loop", bare_ns(options.records))
    for what, by_name in figures.items():
        ours, standard = by_name[Ours.name], by_name[Standard.name]
        pairs = zip(ours, standard, strict=True)
        ratio = statistics.median(b / a if "ns" in what else a / b for a, b in pairs)
        shown = ", ".join(
            f"{name} {statistics.median(values):,.0f} (best "
            f"{min(values) if 'ns' in what else max(values):,.0f})"
            for name, values in by_name.items()
        )
        print(f"{what}: {shown}; {ratio:.2f} times as good")


if __name__ == "__main__":
    main()
