"""Sends orders through a queue with an exporter, until it has sent them or gets SIGTERM.

Its argument is a JSON object, the `Settings` below. A line of its log is `["sent", ids]` before an
attempt, `["done", ids]` for what the exporter reported as delivered, and `["failed", ids]` for what
is tried again or dead. At the end it prints what became of all orders.
"""

import json
import os
import signal
import sys
import threading
from dataclasses import dataclass

from batchqueue import (
    BatchQueue,
    BatchQueueConfig,
    PartitionPolicy,
    RetryPolicy,
    ThreadPolicy,
    run_until_signal,
)
from batchqueue.exporters import ExportFailed, HttpBatches, PostgresRows
from exporters_support.orders import Order, order
from exporters_support.points import AtPoint

BATCH = 20
"""The most orders per attempt."""


@dataclass
class Settings:
    """What the program does.

    Attributes:
        log: The path of its log.
        conninfo, keys: Where `PostgresRows` writes to, and its `on_conflict`.
        url: Where `HttpBatches` sends to instead.
        first, last: The numbers of the orders, the last excluded; None means until SIGTERM.
        kill_at: The attempt, from 0, in which it kills itself.
        point: Where in that attempt: one of `POINTS`, or "answered" for HTTP as well.
        has_bad: Whether some orders are refused by the server.
        timeout: That of the exporter.
        shutdown_s: Seconds that the end may take.
    """

    log: str
    conninfo: str = ""
    keys: list[str] | None = None
    url: str = ""
    first: int = 0
    last: int | None = None
    kill_at: int | None = None
    point: str = ""
    has_bad: bool = False
    timeout: float = 30
    shutdown_s: float = 60


def kill():
    os.kill(os.getpid(), signal.SIGKILL)


class Noting:
    """Notes each attempt of an exporter in the log, and ends the process where it should."""

    attempts = 0

    def consume(self, batch):
        """Export a batch."""
        is_last = self.attempts == settings.kill_at
        self.attempts += 1
        if is_last and settings.point != "answered":
            AtPoint(self, settings.point, kill)
        note("sent", batch)
        try:
            result = super().consume(batch)
        except ExportFailed as failed:
            failures = {item.id for item in failed.items}
            note("done", [item for item in batch if item.id not in failures])
            note("failed", failed.items)
            raise
        if is_last:
            kill()
        note("done", batch)
        return result


class NotingRows(Noting, PostgresRows):
    """Writes into PostgreSQL."""


class NotingBatches(Noting, HttpBatches):
    """Sends over HTTP."""


def note(kind, items):
    line = json.dumps([kind, [item.id for item in items]])
    os.write(log, f"{line}\n".encode())


def produce():
    number = settings.first
    while number != settings.last and queue.produce(order(number, settings.has_bad)):
        accepted.append(number)
        number += 1


def exporter():
    limits = {"timeout": settings.timeout, "connect_timeout": 2}
    if settings.url:
        process = {"X-Process": str(os.getpid())}
        return NotingBatches(settings.url, headers=process, **limits)
    return NotingRows(settings.conninfo, "orders", on_conflict=settings.keys, **limits)


settings = Settings(**json.loads(sys.argv[1]))
log = os.open(settings.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
accepted: list[int] = []
letters: list[int] = []
queue = BatchQueue(
    "exporting",
    BatchQueueConfig(
        threads=ThreadPolicy.fixed(1),
        partitions=PartitionPolicy.fixed(1),
        buffer_size=200,
        max_batch_items=BATCH,
        retry=RetryPolicy(attempts=None, backoff_ms=1, max_backoff_ms=100),
        shutdown_timeout=settings.shutdown_s,
    ),
)
queue.add_handler(
    Order, exporter(), dead_letter=lambda batch: letters.extend(it.item.id for it in batch)
)
if settings.last is None:
    producer = threading.Thread(target=produce)
    producer.start()
    abandoned = run_until_signal(queue, timeout=settings.shutdown_s)
    producer.join()
else:
    produce()
    abandoned = queue.shutdown(settings.shutdown_s)
stats = queue.stats()
outcomes = {"consumed": stats.consumed, "dead": stats.dead_lettered, "abandoned": abandoned}
print(json.dumps({"accepted": accepted, "letters": letters, **outcomes}))
