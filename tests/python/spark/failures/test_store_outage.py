"""PostgreSQL goes away in mid-stream: commits wait for it, or the query fails and is resumed."""

import logging
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from batchqueue import RetryPolicy
from batchqueue.outputs import PostgresStore
from batchqueue.spark import AggregationJob, MetricsWriter
from outputs_support.postgres_server import PostgresServer
from spark_support.faulty_store import BEFORE_THE_END, BEFORE_THE_LEDGER_ENTRY, FaultyStore, epochs
from spark_support.flight_job import (
    FILES,
    difference,
    expected,
    files_one_by_one,
    flight_job,
    into,
    start_stream,
    stored,
)
from spark_support.pyspark_version import needs_stream_sink

Run = Callable[..., None]
OFTEN = RetryPolicy(attempts=100, backoff_ms=10, max_backoff_ms=100)
TWICE = RetryPolicy(attempts=2, backoff_ms=0)


@pytest.fixture
def server(postgres_server: PostgresServer) -> Iterator[PostgresServer]:
    """The server, which runs again afterwards, whatever the test did to it."""
    yield postgres_server
    if not postgres_server.running():
        postgres_server.start()


@pytest.fixture
def run(spark: SparkSession, flights: Path, tmp_path: Path) -> Run:
    """Stream all files, one per epoch, with an action before the second epoch."""

    def stream(
        to: AggregationJob | MetricsWriter, before_the_second: Callable[[], None] | None = None
    ) -> None:
        def write(df: DataFrame, batch_id: int) -> None:
            assert isinstance(to, MetricsWriter)
            if batch_id == 1 and before_the_second is not None:
                before_the_second()
            to.write_epoch(df, batch_id)

        source = files_one_by_one(spark, flights)
        start_stream(
            source, write if before_the_second else to, tmp_path / "checkpoint"
        ).awaitTermination()

    return stream


class ComesBack(logging.Handler):
    """Starts the server after a failed try, and notes what was logged about the try."""

    def __init__(self, server: PostgresServer, said: Path) -> None:
        super().__init__(logging.WARNING)
        self.server = server
        self.said = said

    def emit(self, record: logging.LogRecord) -> None:
        with self.said.open("a") as file:
            print(record.getMessage(), file=file)
        if not self.server.running():
            self.server.start()


class Outage:
    """Stops the server once, in the process that commits; it returns after a failed try, or not."""

    def __init__(self, server: PostgresServer, said: Path, *, comes_back: bool) -> None:
        self.server = server
        self.said = said
        self.comes_back = comes_back

    def __call__(self) -> None:
        if self.said.exists():
            return
        self.said.touch()
        if self.comes_back:
            logging.getLogger("batchqueue.spark").addHandler(ComesBack(self.server, self.said))
        self.server.stop("immediate")


@pytest.fixture(autouse=True)
def _no_handler_is_left() -> Iterator[None]:
    logger = logging.getLogger("batchqueue.spark")
    before = list(logger.handlers)
    yield
    logger.handlers[:] = before


def test_server_that_comes_back_is_waited_for_when_the_store_is_opened(
    spark: SparkSession,
    flights: Path,
    postgres: PostgresStore,
    server: PostgresServer,
    run: Run,
    tmp_path: Path,
) -> None:
    outage = Outage(server, tmp_path / "said", comes_back=True)
    run(MetricsWriter(flight_job(postgres, store_retry=OFTEN)), outage)
    assert outage.said.read_text().startswith("opening PostgresStore(")
    assert difference(stored(postgres), expected(spark, flights)) == []
    assert epochs(postgres) == list(range(FILES))


@pytest.mark.parametrize(
    ("sink", "place"),
    [
        ("writer", BEFORE_THE_LEDGER_ENTRY),
        ("writer", BEFORE_THE_END),
        pytest.param("format", BEFORE_THE_END, marks=needs_stream_sink),
    ],
)
def test_server_that_comes_back_is_waited_for_when_it_goes_in_the_commit(
    spark: SparkSession,
    flights: Path,
    postgres: PostgresStore,
    server: PostgresServer,
    run: Run,
    tmp_path: Path,
    sink: str,
    place: str,
) -> None:
    outage = Outage(server, tmp_path / "said", comes_back=True)
    job = flight_job(FaultyStore(postgres, place, 1, outage), store_retry=OFTEN)
    run(into(sink, job))
    assert outage.said.read_text().startswith(
        "the commit of sink 'flights' failed in attempt 1 of 100: "
    )
    assert difference(stored(postgres), expected(spark, flights)) == []
    assert epochs(postgres) == list(range(FILES))


@pytest.mark.parametrize("place", ["opening", BEFORE_THE_END])
def test_server_that_stays_away_fails_the_query_and_a_later_start_resumes(
    spark: SparkSession,
    flights: Path,
    postgres: PostgresStore,
    server: PostgresServer,
    run: Run,
    tmp_path: Path,
    place: str,
) -> None:
    outage = Outage(server, tmp_path / "said", comes_back=False)
    job = flight_job(FaultyStore(postgres, place, 1, outage), store_retry=TWICE)
    what = "opening" if place == "opening" else "the commit of sink 'flights'"
    with pytest.raises(
        StreamingQueryException, match=rf"{what}.* failed after 2 attempts: .*Start the query again"
    ):
        run(MetricsWriter(job), outage if place == "opening" else None)
    server.start()
    assert epochs(postgres) == [0]
    run(MetricsWriter(flight_job(postgres)))
    assert difference(stored(postgres), expected(spark, flights)) == []
    assert epochs(postgres) == list(range(FILES))
