"""Attempts, without Spark: whatever fails in them fails the attempt, with its message."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from batchqueue import HandlerConsumer
from batchqueue.aggregation import CountMetrics
from batchqueue.outputs import SqliteStore
from batchqueue.spark import SinkError
from batchqueue.spark.commit.commit import EpochCommit
from batchqueue.spark.options import SinkOptions
from batchqueue.spark.task.attempt import run_attempt
from spark_support.attempts import OPTIONS, attempts, batches, departures, summaries
from spark_support.flight_job import DEPARTURES, FILES, METRICS, ROWS_PER_FILE, flight_job


class Broken(CountMetrics):
    """A metric that cannot merge one of the entities."""

    __slots__ = ()

    def combine(self, other: CountMetrics) -> None:
        if self.entity == "B":
            raise ValueError("B does not add up")
        super().combine(other)


def broken_items(batch: pa.RecordBatch) -> Iterator[Broken]:
    for carrier in batch.column("carrier").to_pylist():
        yield Broken(carrier, 0)


def test_handler_that_raises_fails_the_attempt_with_its_message(
    flights: Path, store: SqliteStore
) -> None:
    with pytest.raises(
        SinkError, match=r"(?s)lost \d+ of \d+ items .*first error: ValueError: B does not add up"
    ) as info:
        attempts(flights, store, items=broken_items, metrics=[Broken])
    assert isinstance(info.value.__cause__, ValueError)


class FailingInConsume(HandlerConsumer[Any]):
    """A user's handler that takes its own errors, so that the queue does not report them."""

    def consume(self, batch: list[Any]) -> None:
        raise OSError("the disk is gone")

    def on_error(self, batch: list[Any], error: BaseException) -> None:
        pass


class FailingInClose(HandlerConsumer[Any]):
    """A user's handler that cannot emit its results."""

    def consume(self, batch: list[Any]) -> None:
        pass

    def on_close(self) -> None:
        raise OSError("the disk is gone")


@pytest.mark.parametrize("handler", [FailingInConsume, FailingInClose])
def test_users_handler_fails_the_attempt_wherever_it_raises(
    flights: Path, store: SqliteStore, handler: type[HandlerConsumer[Any]]
) -> None:
    with pytest.raises(SinkError, match="first error: OSError: the disk is gone"):
        attempts(flights, store, handlers={DEPARTURES: lambda emit: handler()})


def test_items_of_a_type_without_a_handler_fail_the_attempt(
    flights: Path, store: SqliteStore
) -> None:
    lost = r"\(0 failed, 0 refused, (\d+) without a handler.*metrics or handlers"
    with pytest.raises(SinkError, match=lost) as info:
        attempts(flights, store, metrics=METRICS[1:])
    # An attempt that sees a loss reads no more rows.
    found = re.search(lost, str(info.value))
    assert found
    assert 1 <= int(found[1]) <= ROWS_PER_FILE


def test_error_in_items_fails_the_attempt(flights: Path, store: SqliteStore) -> None:
    def wrong(batch: pa.RecordBatch) -> Iterator[CountMetrics]:
        yield DEPARTURES("A", 0)
        raise KeyError("no such thing")

    with pytest.raises(KeyError, match="no such thing"):
        attempts(flights, store, items=wrong)


class CarrierCounter:
    """A user's handler for items that are not metrics: str to departures."""

    def __init__(self, emit: Callable[[list[Any]], None]) -> None:
        self.emit = emit
        self.counts: dict[str, int] = {}

    def consume(self, batch: list[str]) -> None:
        for carrier in batch:
            self.counts[carrier] = self.counts.get(carrier, 0) + 1

    def on_close(self) -> None:
        self.emit([DEPARTURES(carrier, 0, count) for carrier, count in self.counts.items()])


def test_users_items_go_to_the_users_handler(flights: Path, store: SqliteStore) -> None:
    changes = {
        "items": lambda batch: batch.column("carrier").to_pylist(),
        "handlers": {str: CarrierCounter},
        "metrics": [DEPARTURES],
    }
    EpochCommit(
        flight_job(store, **changes), OPTIONS, attempts(flights, store, **changes)
    ).apply_epoch(0)
    assert departures(store) == FILES * ROWS_PER_FILE
    assert {item.entity for item in store.read(DEPARTURES, "flights")} == {"A", "B", "C"}


def test_partial_of_an_undeclared_metric_fails_the_attempt(
    flights: Path, store: SqliteStore
) -> None:
    changes = {
        "items": lambda batch: batch.column("carrier").to_pylist(),
        "handlers": {str: CarrierCounter},
        "metrics": METRICS[1:],
    }
    with pytest.raises(
        SinkError, match=r"partial of departures cannot be stored.*add it to the metrics"
    ):
        attempts(flights, store, **changes)


def test_partials_larger_than_max_commit_bytes_are_refused(
    flights: Path, store: SqliteStore
) -> None:
    job = flight_job(store)
    too_small = SinkOptions("flights", None, None, 100)
    with pytest.raises(SinkError, match=r"take \d+ bytes, more than maxCommitBytes=100"):
        run_attempt(job, too_small, batches(flights, 0), "q1")
    messages = attempts(flights, store)
    sizes = [message.size for message in messages]
    enough_for_one = SinkOptions("flights", None, None, max(sizes))
    with pytest.raises(
        SinkError, match=f"take {sum(sizes)} bytes, more than maxCommitBytes={max(sizes)}"
    ):
        EpochCommit(job, enough_for_one, messages).apply_epoch(0)
    assert summaries(store) == []
