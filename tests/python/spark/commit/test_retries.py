"""Commits that meet a store which is away for a while: retried, and applied once."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from batchqueue import RetryPolicy
from batchqueue.outputs import SqliteStore, StoreError, StoreTransaction, StoreUnavailableError
from batchqueue.spark import SinkError
from batchqueue.spark.commit.commit import EpochCommit
from batchqueue.spark.task.message import EpochId
from spark_support.attempts import OPTIONS, departures, run_attempts
from spark_support.flight_job import (
    FILES,
    ROWS_PER_FILE,
    flight_job,
)

IMMEDIATELY = RetryPolicy(attempts=3, backoff_ms=0)
ROWS = FILES * ROWS_PER_FILE


class AwayStore(SqliteStore):
    """A store that is away in some transactions: at the start, in the middle or at the commit."""

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
            raise StoreUnavailableError("the connection was lost at an unknown time")

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


@pytest.mark.parametrize(
    "place", ["at the beginning", "while merging", "before the commit", "after the commit"]
)
def test_store_that_comes_back_gets_the_epoch_once(
    flights: Path, away: AwayStore, caplog: pytest.LogCaptureFixture, place: str
) -> None:
    job = flight_job(away, store_retry=IMMEDIATELY)
    messages = run_attempts(flights, job, EpochId("q", 0))
    away.away = [place, place]
    with caplog.at_level(logging.WARNING, "batchqueue.spark"):
        EpochCommit(job, OPTIONS, messages).apply_epoch(0)
    assert departures(away) == ROWS
    assert len(away.summaries("flights")) == 1
    said = [
        record.message
        for record in caplog.records
        if "the commit of sink 'flights' failed in attempt" in record.message
    ]
    assert len(said) == 2


def test_without_a_limit_of_attempts_a_commit_waits_for_the_store(
    flights: Path, away: AwayStore, caplog: pytest.LogCaptureFixture
) -> None:
    job = flight_job(away, store_retry=RetryPolicy(attempts=None, backoff_ms=0))
    messages = run_attempts(flights, job, EpochId("q", 0))
    away.away = ["at the beginning"] * 20
    with caplog.at_level(logging.WARNING, "batchqueue.spark"):
        EpochCommit(job, OPTIONS, messages).apply_epoch(0)
    assert departures(away) == ROWS
    assert "failed in attempt 20: " in caplog.text


@pytest.mark.parametrize("place", ["before the commit", "after the commit"])
def test_retried_batch_write_without_a_name_counts_once(
    flights: Path, away: AwayStore, place: str
) -> None:
    job = flight_job(away, store_retry=IMMEDIATELY)
    messages = run_attempts(flights, job, None)
    for times in (1, 2):
        away.away = [place, place]
        assert EpochCommit(job, OPTIONS, messages).apply_batch(overwrite=False)["applied"]
        assert departures(away) == times * ROWS
        assert len(away.summaries("flights")) == times


@pytest.mark.parametrize("place", ["at the beginning", "while merging", "before the commit"])
def test_store_that_stays_away_fails_the_epoch_with_the_reason_and_it_can_be_repeated(
    flights: Path, away: AwayStore, place: str
) -> None:
    job = flight_job(away, store_retry=IMMEDIATELY)
    messages = run_attempts(flights, job, EpochId("q", 0))
    away.away = [place] * 3
    with pytest.raises(
        SinkError,
        match=r"failed after 3 attempts: .*(the server is|connection was lost).*Start the query",
    ):
        EpochCommit(job, OPTIONS, messages).apply_epoch(0)
    assert away.away == []
    assert away.summaries("flights") == []
    EpochCommit(job, OPTIONS, messages).apply_epoch(0)
    assert departures(away) == ROWS


def test_other_errors_of_the_store_are_not_retried(flights: Path, away: AwayStore) -> None:
    class FullStore(AwayStore):
        tries = 0

        @contextmanager
        def transaction(self, sink_id: str = "default") -> Iterator[StoreTransaction]:
            type(self).tries += 1
            raise StoreError("the disk is full")
            yield

    store = FullStore(away.path)
    job = flight_job(store, store_retry=IMMEDIATELY)
    with pytest.raises(StoreError, match="the disk is full"):
        EpochCommit(job, OPTIONS, run_attempts(flights, job, EpochId("q", 0))).apply_epoch(0)
    assert FullStore.tries == 1
