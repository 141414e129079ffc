"""`batchqueue top`: the live queues of the processes that let it see them, again and again."""

import argparse
import json
import sys
import time
from dataclasses import asdict
from typing import Any

from batchqueue.base.words import counted, duration
from batchqueue.cli.command import OK, UNKNOWN, Command, count, table, whole_number
from batchqueue.exceptions import BatchQueueError
from batchqueue.top import ProcessReading, read_all

_REFRESH_S = 1.0
_CLEAR = "\x1b[H\x1b[2J"
_MOST_HANDLERS = 5
_COUNTS = ("produced", "consumed")
_LOST = ("failed", "unhandled", "abandoned")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.description = (
        "Show the live queues of this user's processes that have called "
        "batchqueue.top.serve_top(), once a second until Ctrl-C."
    )
    parser.add_argument(
        "process", nargs="?", type=whole_number(1), help="the number of one process (all)"
    )
    parser.add_argument("--once", action="store_true", help="show them once")
    parser.add_argument(
        "--json", action="store_true", help="print a JSON list with an object per process"
    )


def run(arguments: argparse.Namespace) -> int:
    """Show them."""
    only: int | None = arguments.process
    earlier = _read(only)
    if arguments.json:
        print(json.dumps([asdict(reading) for reading in earlier], allow_nan=False))
        return OK
    if arguments.once:
        print(as_text(earlier, []))
        return OK
    before = _CLEAR if sys.stdout.isatty() else ""
    readings = earlier
    while True:
        print(f"{before}{as_text(readings, earlier)}\n", flush=True)
        time.sleep(_REFRESH_S)
        earlier, readings = readings, _read(only)


def _read(only: int | None) -> list[ProcessReading]:
    readings = read_all(only)
    if not readings:
        silent = (
            "no process of this user has called"
            if only is None
            else f"process {only} does not answer, or has not called"
        )
        raise BatchQueueError(
            f"{silent} batchqueue.top.serve_top(); call it in the program that you want to see, as "
            "the same user and with the same XDG_RUNTIME_DIR"
        )
    return readings


def as_text(readings: list[ProcessReading], earlier: list[ProcessReading]) -> str:
    """Return a table of queues and one of the slowest handlers, for each process.

    Args:
        readings: The readings to show.
        earlier: The previous readings, for the rates; empty if there are none.
    """
    before = {reading.process: reading for reading in earlier}
    return "\n\n".join(
        part for reading in readings for part in _process(reading, before.get(reading.process))
    )


def _process(reading: ProcessReading, earlier: ProcessReading | None) -> list[str]:
    queues = counted(len(reading.queues), "queue")
    parts = [f"process {reading.process}, {queues}: {reading.command[:80]}"]
    if not reading.queues:
        return parts
    columns = ("QUEUE", "IN/S", "OUT/S", "IN USE", "OLDEST", "REFUSED", "LOST", "STUCK")
    rows = [
        _queue(queue, _rates(reading, earlier, number))
        for number, queue in enumerate(reading.queues)
    ]
    parts.append(table("<>>>>>><", columns, rows))
    handlers = [
        (queue["name"], kind, handler)
        for queue in reading.queues
        for kind, handler in queue["handlers"].items()
    ]
    handlers.sort(key=lambda each: -each[2]["ns_per_item"] * each[2]["consumed"])
    if handlers:
        columns = ("HANDLER", "QUEUE", "CONSUMED", "FAILED", "PER CALL", "P50", "P99", "IN CALL")
        shown = [_handler(*each) for each in handlers[:_MOST_HANDLERS]]
        parts.append(table("<<>>>>>>", columns, shown))
    return parts


def _rates(reading: ProcessReading, earlier: ProcessReading | None, number: int) -> list[str]:
    """Return the items in and out per second, if the same queue was read before."""
    queue = reading.queues[number]
    known = earlier.queues[number : number + 1] if earlier is not None else []
    interval_s = reading.read_at_s - earlier.read_at_s if earlier is not None else 0.0
    is_same = any(before["name"] == queue["name"] for before in known)
    if not is_same or interval_s <= 0 or queue["attempts"] < known[0]["attempts"]:
        return [UNKNOWN for _ in _COUNTS]
    return [f"{(queue[name] - known[0][name]) / interval_s:,.0f}" for name in _COUNTS]


def _queue(queue: dict[str, Any], rates: list[str]) -> tuple[str, ...]:
    return (
        queue["name"],
        *rates,
        f"{count(queue['total_used'])} of {count(queue['total_capacity'])}",
        duration(queue["oldest_age_ms"] / 1e3),
        count(queue["refused"]),
        count(sum(queue[name] for name in _LOST)),
        ", ".join(queue["stuck_handlers"][:3]),
    )


def _handler(queue: str, kind: str, handler: dict[str, Any]) -> tuple[str, ...]:
    return (
        kind[:50],
        queue,
        count(handler["consumed"]),
        count(handler["failed"]),
        f"{handler['batch_items_mean']:.3g}",
        duration(handler["call_ms_p50"] / 1e3),
        duration(handler["call_ms_p99"] / 1e3),
        duration(handler["in_call_s"]) if handler["in_call_s"] else "",
    )


TOP = Command(
    name="top",
    help="show the live queues of running processes",
    add_arguments=add_arguments,
    run=run,
)
