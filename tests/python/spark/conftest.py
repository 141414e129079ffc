"""One Spark session for all tests here. Tests and their helpers go to the workers by value."""

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

import outputs_support
import spark_support
from batchqueue.outputs import IcebergStore, ParquetStore, PostgresStore, SqliteStore
from batchqueue.spark import AggregationJob, MetricsWriter, local_session
from outputs_support.postgres_server import PostgresServer, postgres_server
from outputs_support.stores import iceberg_catalog
from spark_support import deliveries, flight_job
from spark_support.pyspark_version import needs_stream_sink

__all__ = ["postgres_server"]

cloudpickle.register_pickle_by_value(outputs_support)
cloudpickle.register_pickle_by_value(spark_support)


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    session = local_session("tests", "local[2,2]")  # each attempt that fails ends its worker
    yield session
    session.stop()


@pytest.fixture(autouse=True)
def _pickle_test_module_by_value(request: pytest.FixtureRequest) -> Iterator[None]:
    cloudpickle.register_pickle_by_value(request.module)
    yield
    cloudpickle.unregister_pickle_by_value(request.module)


@pytest.fixture(scope="session")
def flights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return flight_job.write_flights(tmp_path_factory.mktemp("flights") / "files")


@pytest.fixture
def table(spark: SparkSession, flights: Path) -> DataFrame:
    return spark.read.schema(flight_job.SCHEMA).parquet(str(flights))


@pytest.fixture(scope="session")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return deliveries.write_rows(tmp_path_factory.mktemp("rows") / "files")


@pytest.fixture
def df(spark: SparkSession, rows: Path) -> DataFrame:
    return spark.read.parquet(str(rows))


@pytest.fixture
def store(tmp_path: Path) -> SqliteStore:
    return SqliteStore(tmp_path / "metrics.db")


@pytest.fixture
def parquet(tmp_path: Path) -> ParquetStore:
    return ParquetStore(tmp_path / "metrics")


_schemas = itertools.count()


@pytest.fixture
def postgres(postgres_server: PostgresServer) -> PostgresStore:
    """A store in its own schema."""
    return PostgresStore(postgres_server.conninfo(), schema=f"spark_{next(_schemas)}")


@pytest.fixture
def iceberg(tmp_path: Path) -> IcebergStore:
    pytest.importorskip("pyiceberg", reason="pyiceberg is not installed")
    return IcebergStore("metrics", catalog=iceberg_catalog(tmp_path))


@pytest.fixture(params=["store", "parquet", "postgres", "iceberg"])
def any_store(request: pytest.FixtureRequest) -> Any:
    return request.getfixturevalue(request.param)


Start = Callable[..., StreamingQuery]
Stream = Callable[..., Any]


@pytest.fixture
def start(spark: SparkSession, flights: Path, tmp_path: Path) -> Iterator[Start]:
    """Start a query over all files, one per epoch; see `start_stream` for what it writes to."""
    queries: list[StreamingQuery] = []

    def start(
        to: AggregationJob | MetricsWriter | str,
        checkpoint: Path = tmp_path / "checkpoint",
        **options: Any,
    ) -> StreamingQuery:
        if needs_stream_sink.args[0] and not isinstance(to, MetricsWriter):
            pytest.skip(needs_stream_sink.kwargs["reason"])
        source = flight_job.files_one_by_one(spark, flights)
        queries.append(flight_job.start_stream(source, to, checkpoint, **options))
        return queries[-1]

    yield start
    for query in queries:
        query.stop()


@pytest.fixture
def stream(start: Start) -> Stream:
    """The same, and wait for the end of the query; raise what it raises."""

    def run(*args: Any, **options: Any) -> None:
        start(*args, **options).awaitTermination()

    return run


@pytest.fixture
def each_batch(spark: SparkSession, rows: Path, tmp_path: Path) -> Stream:
    """Run a foreachBatch function over all rows, one file per epoch, as `stream` does."""

    def run(
        function: Callable[..., None],
        checkpoint: Path = tmp_path / "checkpoint",
        change: Callable[[DataFrame], DataFrame] = lambda df: df,
    ) -> str:
        source = (
            spark.readStream.schema(deliveries.SCHEMA)
            .option("maxFilesPerTrigger", 1)
            .parquet(str(rows))
        )
        writer = change(source).writeStream.foreachBatch(function)
        query = (
            writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
        )
        query.awaitTermination()
        return query.id

    return run
