"""Commits that meet a store which is away for a while, and stores that another job has written."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from batchqueue import ConfigError, RetryPolicy
from batchqueue.aggregation import (
    Aggregation,
    Count,
    Metrics,
    Ranking,
    SumMetrics,
    Window,
    metric_type,
)
from batchqueue.outputs import SqliteStore, StoreError, StoreTransaction, StoreUnavailableError
from batchqueue.spark import AggregationJob, ArrowAggregation, SinkError
from batchqueue.spark.commit.commit import Commit
from batchqueue.spark.job.options import SinkOptions
from batchqueue.spark.task.attempt import run_attempt
from batchqueue.spark.task.context import EpochId
from batchqueue.spark.task.message import AttemptMessage
from spark_support.flight_job import (
    ARROW,
    DEPARTURES,
    DISTANCE,
    FILES,
    METRICS,
    ROWS_PER_FILE,
    flight_job,
    stored,
)

OPTIONS = SinkOptions(sink_id="flights", on_new_query=None, txn_id=None, max_commit_bytes=1_000_000)
AT_ONCE = RetryPolicy(attempts=3, backoff_ms=0)
ROWS = FILES * ROWS_PER_FILE


class AwayStore(SqliteStore):
    """A store that is not there for some transactions, at the beginning, in the middle or at the commit."""

    away: list[str]

    @contextmanager
    def transaction(self, sink_id: str = "default") -> Iterator[StoreTransaction]:
        place = self.away.pop(0) if self.away else "never"
        if place == "at the beginning":
            raise StoreUnavailableError("the server is starting up")
        with super().transaction(sink_id) as transaction:
            if place == "while merging":
                self._break(transaction)
            yield transaction
            if place == "before the commit":
                raise StoreUnavailableError("the connection was lost")
        if place == "after the commit":
            raise StoreUnavailableError("the connection was lost, nobody knows when")

    def _break(self, transaction: StoreTransaction) -> None:
        def save(metrics: Any) -> None:
            raise StoreUnavailableError("the server is shutting down")

        transaction.save = save  # type: ignore[method-assign]


@pytest.fixture
def away(tmp_path: Path) -> AwayStore:
    store = AwayStore(tmp_path / "metrics.db")
    store.away = []
    store.prepare()
    return store


def attempts(flights: Path, job: AggregationJob, batch_id: int = 0) -> list[AttemptMessage]:
    return [
        run_attempt(
            job,
            OPTIONS,
            pq.read_table(flights / f"part-{file}.parquet").to_batches(),
            EpochId("q", batch_id),
        )
        for file in range(FILES)
    ]


def departures(store: SqliteStore) -> int:
    return sum(one.count for one in store.read(DEPARTURES, "flights"))


@pytest.mark.parametrize(
    "place", ["at the beginning", "while merging", "before the commit", "after the commit"]
)
def test_store_that_comes_back_gets_the_epoch_once(
    flights: Path, away: AwayStore, caplog: pytest.LogCaptureFixture, place: str
) -> None:
    job = flight_job(away, store_retry=AT_ONCE)
    messages = attempts(flights, job)
    away.away = [place, place]
    with caplog.at_level(logging.WARNING, "batchqueue.spark"):
        Commit(job, OPTIONS, messages).apply_epoch(0)
    assert departures(away) == ROWS
    assert len(away.summaries("flights")) == 1
    said = [
        one.message
        for one in caplog.records
        if "the commit of sink 'flights' failed in try" in one.message
    ]
    assert len(said) == 2


@pytest.mark.parametrize("place", ["before the commit", "after the commit"])
def test_batch_write_without_a_name_that_is_tried_again_counts_once(
    flights: Path, away: AwayStore, place: str
) -> None:
    job = flight_job(away, store_retry=AT_ONCE)
    messages = [replace(one, epoch=None) for one in attempts(flights, job)]
    for times in (1, 2):
        away.away = [place, place]
        assert Commit(job, OPTIONS, messages).apply_batch(overwrite=False)["applied"]
        assert departures(away) == times * ROWS
        assert len(away.summaries("flights")) == times


@pytest.mark.parametrize("place", ["at the beginning", "while merging", "before the commit"])
def test_store_that_stays_away_fails_the_epoch_with_the_reason_and_it_can_be_repeated(
    flights: Path, away: AwayStore, place: str
) -> None:
    job = flight_job(away, store_retry=AT_ONCE)
    messages = attempts(flights, job)
    away.away = [place] * 3
    with pytest.raises(
        SinkError,
        match=r"failed in 3 tries: .*(the server is|connection was lost).*Start the query",
    ):
        Commit(job, OPTIONS, messages).apply_epoch(0)
    assert away.away == []
    assert away.summaries("flights") == []
    Commit(job, OPTIONS, messages).apply_epoch(0)
    assert departures(away) == ROWS


def test_other_errors_of_the_store_are_not_tried_again(flights: Path, away: AwayStore) -> None:
    class FullStore(AwayStore):
        tries = 0

        @contextmanager
        def transaction(self, sink_id: str = "default") -> Iterator[StoreTransaction]:
            type(self).tries += 1
            raise StoreError("the disk is full")
            yield

    store = FullStore(away.path)
    job = flight_job(store, store_retry=AT_ONCE)
    with pytest.raises(StoreError, match="the disk is full"):
        Commit(job, OPTIONS, attempts(flights, job)).apply_epoch(0)
    assert FullStore.tries == 1


def write(flights: Path, job: AggregationJob, batch_id: int, **options: Any) -> None:
    Commit(job, replace(OPTIONS, **options), attempts(flights, job, batch_id)).apply_epoch(batch_id)


NEW = metric_type("new", SumMetrics, columns={"total": int})
AS_FLOAT = metric_type("distance", SumMetrics, columns={"total": float})
LONGER = metric_type("delay.worst", Ranking, limit=5)


def only_departures(batch: Any) -> Iterator[Metrics]:
    for carrier in batch.column("carrier").to_pylist():
        yield DEPARTURES(carrier, 0)


@pytest.mark.parametrize(
    ("metrics", "difference"),
    [
        ((*METRICS, NEW), "metric 'new' is new"),
        (METRICS[:1], "metric 'delay.max' is gone; metric 'delay.mean' is gone"),
        ((*METRICS[:-1], LONGER), r"'delay.worst' was .*limit 3\) and is .*limit 5\)"),
    ],
)
def test_changed_metrics_are_refused_and_the_difference_named(
    flights: Path, store: SqliteStore, metrics: Any, difference: str
) -> None:
    job = flight_job(store, items=only_departures)
    write(flights, job, 0)
    before = stored(store)
    changed = replace(job, metrics=metrics)
    with pytest.raises(
        SinkError, match=rf"sink 'flights' was written by another job: .*{difference}.*onJobChange"
    ):
        write(flights, changed, 1)
    assert stored(store) == before
    write(flights, changed, 1, on_job_change="accept")
    write(flights, changed, 2)  # from now on this is the job
    assert departures(store) == 3 * ROWS


def test_changed_columns_are_refused_whatever_is_accepted(
    flights: Path, store: SqliteStore
) -> None:
    """Some stores would merge them, and some would begin a new table."""
    job = flight_job(store, items=only_departures)
    write(flights, job, 0)
    changed = replace(job, metrics=(DEPARTURES, AS_FLOAT, *METRICS[2:]))
    message = (
        r"sink 'flights' has other columns: metric 'distance' was sum_metrics \(total int, compensation float\) and "
        r"is sum_metrics \(total float, compensation float\)\. .*give the metric another name"
    )
    with pytest.raises(SinkError, match=message):
        write(flights, changed, 1, on_job_change="accept")
    assert departures(store) == ROWS


@pytest.mark.parametrize(
    "further",
    [ARROW, replace(ARROW, aggregation=Aggregation(keys=["hour"], measures={"n": Count()}))],
)
def test_another_aggregation_beside_the_first_is_refused_and_named(
    flights: Path, store: SqliteStore, further: ArrowAggregation
) -> None:
    """It may add to the same metrics."""
    job = flight_job(store, items=None, arrow=[ARROW])
    write(flights, job, 0)
    more = replace(
        job, arrow=[ARROW, replace(further, type_column=None, tags=(), metrics=lambda _: [])]
    )
    with pytest.raises(SinkError, match="an aggregation is new: "):
        write(flights, more, 1)
    write(flights, more, 1, on_job_change="accept")
    with pytest.raises(SinkError, match="an aggregation is gone: "):
        write(flights, job, 2)


def test_changed_aggregation_is_refused_and_the_difference_named(
    flights: Path, store: SqliteStore
) -> None:
    job = flight_job(store, items=None, arrow=[ARROW])
    write(flights, job, 0)
    window = replace(
        ARROW,
        aggregation=replace(ARROW.aggregation, keys=["carrier"], window=Window("hour", 86_400)),
    )
    with pytest.raises(
        SinkError, match=r"an aggregation was .*\"window\": null.* and is .*\"seconds\": 86400"
    ):
        write(flights, replace(job, arrow=[window]), 1)
    write(flights, replace(job, arrow=[replace(ARROW, tags=["A", "B", "C", "D"])]), 1)
    assert departures(store) == 2 * ROWS


def test_functions_may_change_and_so_may_the_way(flights: Path, store: SqliteStore) -> None:
    job = flight_job(store)
    write(flights, job, 0)
    write(flights, replace(job, items=None, arrow=[ARROW]), 1)
    write(flights, replace(job, items=only_departures), 2)
    assert departures(store) == 3 * ROWS
    assert sum(one.total or 0 for one in store.read(DISTANCE, "flights")) > 0


def test_overwrite_and_replace_forget_the_job(flights: Path, store: SqliteStore) -> None:
    job = flight_job(store, items=only_departures)
    write(flights, job, 0)
    changed = replace(job, metrics=METRICS[:1])
    messages = [replace(one, epoch=None) for one in attempts(flights, changed)]
    Commit(changed, OPTIONS, messages).apply_batch(overwrite=True)
    assert departures(store) == ROWS
    Commit(job, replace(OPTIONS, on_new_query="replace"), attempts(flights, job)).apply_epoch(0)
    assert departures(store) == ROWS


def test_options_of_a_changed_job_are_checked(store: SqliteStore) -> None:
    job = flight_job(store)
    assert SinkOptions.parse({"onjobchange": "accept"}, job, stream=True).on_job_change == "accept"
    with pytest.raises(ConfigError, match="option onJobChange='migrate': use 'accept'"):
        SinkOptions.parse({"onjobchange": "migrate"}, job, stream=False)
