"""A pipeline on Spark Connect: the same rows, pauses through a directory that both sides see."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from batchqueue.outputs import SqliteStore
from spark_support.numbered_rows import NumberedRows, into_store, oracle, stored
from spark_support.pyspark_version import VERSION
from spark_support.retried import retried, started
from spark_support.waits import wait_until

if VERSION < (4, 2):
    pytest.skip("sources on Spark need pyspark 4.2", allow_module_level=True)
pytest.importorskip("grpc", reason="Spark Connect needs pyspark[connect]")
from pyspark.sql.connect.session import SparkSession

from spark_support.connect_server import connect_server

pytestmark = pytest.mark.matrix(8, name="Spark Connect")


@pytest.fixture
def connect(tmp_path: Path) -> Iterator[SparkSession]:
    (tmp_path / "server").mkdir()
    with connect_server(tmp_path / "server") as address:
        session = SparkSession.builder.remote(address).create()
        yield session
        session.stop()


def test_stream_is_exact_and_pauses(connect: SparkSession, tmp_path: Path):
    for folder in ("notes", "control"):
        (tmp_path / folder).mkdir()
    store = SqliteStore(tmp_path / "metrics.db")
    source = NumberedRows(4000, notes=tmp_path / "notes")
    on_spark = into_store(source, store).on_spark(
        connect,
        checkpoint=str(tmp_path / "state"),
        control=str(tmp_path / "control"),
        first_epoch_rows=1000,
    )
    on_spark.pause("night")
    run = started(lambda: on_spark.start(available_now=True), lambda: source.noted("initial"))
    assert source.noted("plan") == []
    on_spark.resume()
    retried(run.awaitTermination)
    wait_until(lambda: not list((tmp_path / "control").iterdir()))
    assert stored(store, "shop") == oracle(4000)
