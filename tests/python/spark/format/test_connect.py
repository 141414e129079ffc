"""The sink on Spark Connect: the same code, the same totals, the same error messages."""

from collections.abc import Callable, Iterator
from io import StringIO
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import AnalysisException, PySparkException, StreamingQueryException
from rich.console import Console

from batchqueue.aggregation import Aggregation, Count, Metrics, Window
from batchqueue.outputs import ParquetStore, SqliteStore
from batchqueue.spark import (
    AggregationJob,
    ArrowAggregation,
    LedgerListener,
    MetricsWriter,
    register,
    show_progress,
)
from spark_support.flight_job import (
    ARROW,
    DECLARED,
    DEPARTURES,
    FILES,
    NO_RANKING,
    ROWS_PER_FILE,
    SCHEMA,
    difference,
    expected,
    files_one_by_one,
    flight_job,
    items,
    start_stream,
    stored,
    write_flights,
)
from spark_support.pyspark_version import VERSION, needs_connect_server, needs_stream_sink

if VERSION < (4, 0):
    pytest.skip(needs_connect_server.kwargs["reason"], allow_module_level=True)
pytest.importorskip("grpc", reason="Spark Connect needs pyspark[connect]")
from pyspark.sql.connect.session import SparkSession

from spark_support.connect_server import connect_server

pytestmark = pytest.mark.matrix(8, name="Spark Connect")


@pytest.fixture(scope="module")
def connect(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    with connect_server(tmp_path_factory.mktemp("connect")) as address:
        session = SparkSession.builder.remote(address).create()
        yield session
        session.stop()


@pytest.fixture
def flights(tmp_path: Path) -> Path:
    """This test's own files, because it adds one."""
    return write_flights(tmp_path / "flights")


def write(connect: SparkSession, flights: Path, job: AggregationJob, **options: Any) -> None:
    table = connect.read.schema(SCHEMA).parquet(str(flights))
    table.write.format(register(connect, job)).mode("append").options(**options).save()


@pytest.fixture
def stream(connect: SparkSession, flights: Path, tmp_path: Path) -> Callable[[AggregationJob], str]:
    """Run a job over the new files; return the id of the query."""

    def run(job: AggregationJob) -> str:
        query = start_stream(files_one_by_one(connect, flights), job, tmp_path / "checkpoint")
        query.awaitTermination()
        return str(query.id)

    return run


@pytest.mark.parametrize("l1", [{}, {"items": None, "arrow": [ARROW]}], ids=["items", "arrow"])
def test_batch_is_equal_to_spark_sql_and_idempotent_with_a_txn_id(
    connect: SparkSession, flights: Path, store: SqliteStore, l1: dict[str, Any]
) -> None:
    for _ in range(2):
        write(connect, flights, flight_job(store, **l1), txnId="once")
    assert difference(stored(store), expected(connect, flights)) == []


@needs_stream_sink
def test_stream_is_equal_to_spark_sql_and_continues_where_it_was(
    connect: SparkSession,
    flights: Path,
    store: SqliteStore,
    stream: Callable[[AggregationJob], str],
) -> None:
    query_id = stream(flight_job(store))
    assert difference(stored(store), expected(connect, flights)) == []
    pq.write_table(pq.read_table(flights / "part-0.parquet"), flights / "more.parquet")
    assert stream(flight_job(store)) == query_id
    assert difference(stored(store), expected(connect, flights)) == []
    assert [epoch[:2] for epoch in store.summaries("flights")] == [
        (query_id, batch) for batch in range(FILES + 1)
    ]


@needs_stream_sink
def test_progress_and_the_listener_work_on_the_client(
    connect: SparkSession,
    flights: Path,
    store: SqliteStore,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO", "batchqueue.spark")
    listener = LedgerListener(store, "flights")
    connect.streams.addListener(listener)
    query = start_stream(
        files_one_by_one(connect, flights), flight_job(store), tmp_path / "checkpoint"
    )
    show_progress(
        query, store, "flights", line_interval_s=0, console=Console(file=(shown := StringIO()))
    )
    connect.streams.removeListener(listener)  # returns when all events are handled
    assert [line.split()[:2] for line in shown.getvalue().splitlines()] == [
        ["epoch", str(number)] for number in range(FILES)
    ]
    logged = [record.message for record in caplog.records]
    assert [line.partition(" rows")[0] for line in logged[:FILES]] == [
        f"sink flights: epoch {number} of query {query.id}: {ROWS_PER_FILE}"
        for number in range(FILES)
    ]


def items_that_raise_in_one_file(batch: pa.RecordBatch) -> Iterator[Metrics]:
    yield from items(batch)
    if any(flight.startswith("flight-2-") for flight in batch.column("id").to_pylist()):
        raise ArithmeticError("the sky fell on our heads")


@needs_stream_sink
def test_task_that_always_raises_fails_the_write_with_its_message_and_commits_nothing(
    connect: SparkSession,
    flights: Path,
    store: SqliteStore,
    stream: Callable[[AggregationJob], str],
) -> None:
    broken = flight_job(store, items=items_that_raise_in_one_file)
    with pytest.raises(PySparkException, match="ArithmeticError: the sky fell on our heads"):
        write(connect, flights, broken)
    assert store.summaries("flights") == []
    with pytest.raises(StreamingQueryException, match="ArithmeticError: the sky fell on our heads"):
        stream(broken)
    applied = len(store.summaries("flights"))
    assert applied < FILES
    assert sum(stored(store)["departures"].values()) == applied * ROWS_PER_FILE
    stream(flight_job(store))
    assert difference(stored(store), expected(connect, flights)) == []


def test_invalid_option_and_column_are_named(
    connect: SparkSession, flights: Path, store: SqliteStore
) -> None:
    with pytest.raises(AnalysisException, match="option onNewQuery='append' is for streams"):
        write(connect, flights, flight_job(store), onNewQuery="append")
    with pytest.raises(AnalysisException, match="needs column wind, but the rows have id, carrier"):
        write(connect, flights, flight_job(store, columns=["wind"]))
    assert not store.path.exists()


@pytest.mark.parametrize("l1", ["tasks", "spark"])
@pytest.mark.parametrize("shards", [None, 2])
def test_writer_is_equal_to_spark_sql(
    connect: SparkSession, flights: Path, tmp_path: Path, l1: Any, shards: int | None
) -> None:
    store = ParquetStore(tmp_path / "metrics")
    job = flight_job(store, items=None, arrow=[DECLARED])
    writer = MetricsWriter(job, l1=l1, shards=shards)
    table = connect.read.schema(SCHEMA).parquet(str(flights))
    for applied in (True, False):
        assert writer.write_batch(table, txn_id="once")["applied"] is applied
    found = [stored(store, sink_id) for sink_id in writer.sink_ids]
    together = {
        name: {key: value for results in found for key, value in results[name].items()}
        for name in found[0]
    }
    wanted = expected(connect, flights)
    assert difference(together, {metric.name: wanted[metric.name] for metric in NO_RANKING}) == []


@pytest.fixture
def each_epoch(
    connect: SparkSession, flights: Path, tmp_path: Path
) -> Callable[[MetricsWriter], None]:
    """Feed a writer the new files, one per epoch."""

    def run(writer: MetricsWriter) -> None:
        query = start_stream(files_one_by_one(connect, flights), writer, tmp_path / "checkpoint")
        query.awaitTermination()

    return run


def test_writer_of_a_stream_learns_the_query_from_its_checkpoint(
    connect: SparkSession,
    flights: Path,
    store: SqliteStore,
    tmp_path: Path,
    stream: Callable[[AggregationJob], str],
    each_epoch: Callable[[MetricsWriter], None],
) -> None:
    writer = MetricsWriter(flight_job(store), checkpoint=f"{tmp_path / 'checkpoint'}/")
    each_epoch(writer)
    pq.write_table(pq.read_table(flights / "part-0.parquet"), flights / "more.parquet")
    each_epoch(writer)
    assert difference(stored(store), expected(connect, flights)) == []
    assert [epoch.batch_id for epoch in store.summaries("flights")] == list(range(FILES + 1))
    # The format has the same id.
    assert stream(flight_job(store)) == store.summaries("flights")[0].query_id


def test_writer_of_a_stream_without_a_checkpoint_is_refused(
    store: SqliteStore, each_epoch: Callable[[MetricsWriter], None]
) -> None:
    with pytest.raises(
        StreamingQueryException, match=r"did not say which query.*MetricsWriter\(checkpoint=...\)"
    ):
        each_epoch(MetricsWriter(flight_job(store)))
    assert store.summaries("flights") == []


def test_second_write_in_an_epoch_is_refused_and_a_replay_is_not(
    connect: SparkSession, flights: Path, store: SqliteStore, tmp_path: Path
) -> None:
    checkpoint = tmp_path / "checkpoint"
    writer = MetricsWriter(flight_job(store), checkpoint=str(checkpoint))

    def write_twice(df: Any, batch_id: int) -> None:
        writer.write_epoch(df, batch_id)
        if batch_id == FILES - 1:
            writer.write_epoch(df, batch_id)

    def run(to: Any) -> None:
        start_stream(files_one_by_one(connect, flights), to, checkpoint).awaitTermination()

    with pytest.raises(
        StreamingQueryException, match="into sink 'flights' by job 'flights' in this run, and now"
    ):
        run(write_twice)
    run(writer)
    assert difference(stored(store), expected(connect, flights)) == []
    assert [epoch.batch_id for epoch in store.summaries("flights")] == list(range(FILES))


def by_day(groups: pa.RecordBatch) -> Iterator[Metrics]:
    for row in groups.to_pylist():
        yield DEPARTURES("all", int(row["day"].timestamp()), row["rows"])


def test_times_without_a_zone_are_read_in_the_zone_of_the_session(
    connect: SparkSession, store: SqliteStore
) -> None:
    day = Window("at", 86_400, "day", zone="America/New_York")
    aggregation = Aggregation(keys=[], window=day, measures={"rows": Count()})
    step = ArrowAggregation(aggregation=aggregation, metrics=by_day)
    job = AggregationJob(name="days", arrow=[step], metrics=[DEPARTURES], store=store)
    connect.conf.set("spark.sql.session.timeZone", "America/New_York")
    try:
        rows = connect.sql(
            "SELECT explode(array(timestamp_ntz'2024-03-09 23:30:00', "
            "timestamp_ntz'2024-03-10 00:30:00', timestamp_ntz'2024-03-10 23:30:00')) at"
        )
        rows.write.format(register(connect, job)).mode("append").save()
        for l1 in ("tasks", "spark"):
            MetricsWriter(job, l1=l1, sinkId=l1).write_batch(rows)  # type: ignore[arg-type]
    finally:
        connect.conf.unset("spark.sql.session.timeZone")
    midnight = 1_710_046_800
    for sink in ("days", "tasks", "spark"):
        found = {item.time_bucket: item.count for item in store.read(DEPARTURES, sink)}
        assert found == {midnight - 86_400: 1, midnight: 2}
