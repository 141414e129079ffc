"""A PostgreSQL server that goes away in mid-stream: commits wait for it, or the query fails and is resumed."""

import logging
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from flight_job import FILES, difference, expected, files_one_by_one, flight_job, start_stream, stored
from postgres_server import PostgresServer
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from batchqueue import RetryPolicy
from batchqueue.outputs import PostgresStore
from batchqueue.spark import AggregationJob, MetricsWriter

Run = Callable[..., None]


@pytest.fixture
def server(postgres_server: PostgresServer) -> Iterator[PostgresServer]:
    """The server, which runs again afterwards, whatever the test did to it."""
    yield postgres_server
    if not postgres_server.running():
        postgres_server.start()


@pytest.fixture
def run(spark: SparkSession, flights: Path, tmp_path: Path) -> Run:
    """Stream all files, one per epoch; do something before the second."""

    def stream(job: AggregationJob, before_the_second: Callable[[], None] = lambda: None) -> None:
        writer = MetricsWriter(job, l1="tasks")

        def write(df: DataFrame, batch_id: int) -> None:
            if batch_id == 1:
                before_the_second()
            writer.write_epoch(df, batch_id)

        start_stream(files_one_by_one(spark, flights), write, tmp_path / "checkpoint").awaitTermination()

    return stream


def epochs(store: PostgresStore) -> list[int]:
    return [epoch.batch_id for epoch in store.summaries("flights")]


class OnFirstWarning(logging.Handler):
    """Does something when a try has failed."""

    def __init__(self, action: Callable[[], None]) -> None:
        super().__init__(logging.WARNING)
        self.action = action
        self.warnings = 0

    def emit(self, record: logging.LogRecord) -> None:
        self.warnings += 1
        if self.warnings == 1:
            self.action()


def test_server_that_comes_back_is_waited_for(
    spark: SparkSession, flights: Path, postgres: PostgresStore, server: PostgresServer, run: Run
) -> None:
    job = flight_job(postgres, store_retry=RetryPolicy(attempts=100, backoff_ms=10, max_backoff_ms=100))
    handler = OnFirstWarning(server.start)
    logging.getLogger("batchqueue.spark").addHandler(handler)
    try:
        run(job, lambda: server.stop("immediate"))
    finally:
        logging.getLogger("batchqueue.spark").removeHandler(handler)
    assert handler.warnings >= 1
    assert difference(stored(postgres), expected(spark, flights)) == []
    assert epochs(postgres) == list(range(FILES))


def test_server_that_stays_away_fails_the_query_and_a_later_start_resumes(
    spark: SparkSession, flights: Path, postgres: PostgresStore, server: PostgresServer, run: Run
) -> None:
    job = flight_job(postgres, store_retry=RetryPolicy(attempts=2, backoff_ms=0))
    with pytest.raises(StreamingQueryException, match=r"failed in 2 tries: .*Start the query again"):
        run(job, lambda: server.stop("immediate"))
    server.start()
    assert epochs(postgres) == [0]
    run(job)
    assert difference(stored(postgres), expected(spark, flights)) == []
    assert epochs(postgres) == list(range(FILES))
