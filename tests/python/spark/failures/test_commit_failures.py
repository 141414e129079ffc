"""A failing commit or an unwritable store: an epoch is stored as a whole or not at all."""

import ctypes
import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery

from batchqueue.aggregation import Metrics
from batchqueue.outputs import SqliteStore, StoreTransaction
from batchqueue.outputs.sqlite_store import SqliteTransaction
from batchqueue.spark import AggregationJob, MetricsWriter
from spark_support.faulty_store import (
    AFTER_THE_COMMIT,
    BEFORE_THE_COMMIT,
    BEFORE_THE_END,
    BEFORE_THE_LEDGER_ENTRY,
    FaultyStore,
    epochs,
)
from spark_support.flight_job import FILES, difference, expected, flight_job, into, items, stored
from spark_support.pyspark_version import needs_stream_sink
from spark_support.waits import wait_until

Start = Callable[..., StreamingQuery]
Stream = Callable[..., None]


def fail() -> None:
    raise OSError("the network is gone")


def register_with_noted_aborts(spark: SparkSession, job: AggregationJob, folder: Path) -> str:
    """Register a job as `register` does; each `abort` leaves a file with its epoch's number."""
    from pyspark.sql.datasource import DataSourceStreamArrowWriter

    from batchqueue.spark.driver.format import data_source

    class Writer(DataSourceStreamArrowWriter):
        def __init__(self, writer: DataSourceStreamArrowWriter) -> None:
            self.writer = writer

        def write(self, iterator: Iterator[pa.RecordBatch]) -> Any:
            return self.writer.write(iterator)

        def commit(self, messages: list[Any], batchId: int) -> None:
            self.writer.commit(messages, batchId)

        def abort(self, messages: list[Any], batchId: int) -> None:
            (folder / f"aborted {batchId}").touch()
            self.writer.abort(messages, batchId)

    class Source(data_source(job)):  # type: ignore[misc]
        def streamWriter(self, schema: Any, overwrite: bool) -> Writer:
            return Writer(super().streamWriter(schema, overwrite))

    spark.dataSource.register(Source)
    return str(Source.name())


@pytest.mark.parametrize(
    ("place", "applied"),
    [
        (BEFORE_THE_COMMIT, [0]),
        (BEFORE_THE_LEDGER_ENTRY, [0]),
        (BEFORE_THE_END, [0]),
        # Spark calls `abort` here, too: it must not undo.
        (AFTER_THE_COMMIT, [0, 1]),
    ],
)
@pytest.mark.parametrize("sink", [pytest.param("format", marks=needs_stream_sink), "writer"])
def test_commit_that_raises_fails_the_query_and_a_later_start_resumes(
    spark: SparkSession,
    flights: Path,
    store: SqliteStore,
    stream: Stream,
    tmp_path: Path,
    sink: str,
    place: str,
    applied: list[int],
) -> None:
    job = flight_job(FaultyStore(store, place, 1, fail))
    with pytest.raises(StreamingQueryException, match="OSError: the network is gone"):
        stream(
            MetricsWriter(job)
            if sink == "writer"
            else register_with_noted_aborts(spark, job, tmp_path)
        )
    # A foreachBatch has no `abort`.
    assert [path.name for path in tmp_path.glob("aborted *")] == ["aborted 1"] * (sink == "format")
    assert epochs(store) == applied
    assert stored_rows(store) == ledger_rows(store)
    stream(into(sink, flight_job(store)))
    assert difference(stored(store), expected(spark, flights)) == []
    assert epochs(store) == list(range(FILES))


def stored_rows(store: SqliteStore) -> int:
    return sum(stored(store)["departures"].values())


def ledger_rows(store: SqliteStore) -> int:
    return sum(epoch.summary["rows"] for epoch in store.summaries("flights"))


HOLD_LOCK = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("BEGIN IMMEDIATE")
print("locked", flush=True)
sys.stdin.read()
"""


@contextmanager
def locked(store: SqliteStore) -> Iterator[None]:
    """Let another process hold the right to write while the context is open."""
    command = [sys.executable, "-c", HOLD_LOCK, store.path]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"locked\n"
        yield
        other.communicate()


class Latches:
    """The first task waits for the test, and the commit notifies the test before it begins."""

    def __init__(self, directory: Path) -> None:
        self.reading = directory / "a task reads"
        self.may_read_on = directory / "it may read on"
        self.committing = directory / "the commit begins"

    def items(self, batch: pa.RecordBatch) -> Iterator[Metrics]:
        self.reading.touch()
        wait_until(self.may_read_on.exists)
        yield from items(batch)

    def lock_and_commit(self) -> None:
        """Call it inside `locked`."""
        self.may_read_on.touch()
        wait_until(self.committing.exists)


@pytest.fixture
def latches(tmp_path: Path) -> Latches:
    return Latches(tmp_path)


class LatchedStore(SqliteStore):
    """A store that reports when it is opened after the tasks have continued."""

    def __init__(self, path: Path, busy_timeout_s: float, latches: Latches) -> None:
        super().__init__(path, busy_timeout_s=busy_timeout_s)
        self.latches = latches

    def transaction(self, sink_id: str = "default") -> AbstractContextManager[StoreTransaction]:
        if self.latches.may_read_on.exists():
            self.latches.committing.touch()
        return super().transaction(sink_id)


def test_commit_waits_for_another_writer(
    spark: SparkSession, flights: Path, store: SqliteStore, start: Start, latches: Latches
) -> None:
    query = start(flight_job(LatchedStore(store.path, 120, latches), items=latches.items))
    wait_until(lambda: latches.reading.exists() or not query.isActive)
    with locked(store):
        latches.lock_and_commit()
        assert query.isActive
        assert epochs(store) == []
    query.awaitTermination()
    assert difference(stored(store), expected(spark, flights)) == []
    assert epochs(store) == list(range(FILES))


def test_store_locked_for_too_long_fails_the_query_and_a_later_start_resumes(
    spark: SparkSession,
    flights: Path,
    store: SqliteStore,
    start: Start,
    stream: Stream,
    latches: Latches,
) -> None:
    query = start(flight_job(LatchedStore(store.path, 0.1, latches), items=latches.items))
    wait_until(lambda: latches.reading.exists() or not query.isActive)
    with locked(store):
        latches.lock_and_commit()
        with pytest.raises(
            StreamingQueryException, match=r"database is locked; .*raise busy_timeout_s"
        ):
            query.awaitTermination()
    assert epochs(store) == []
    stream(flight_job(store))
    assert difference(stored(store), expected(spark, flights)) == []


class StoreOnAFullDisk(SqliteStore):
    """SQLite reports a file at its size limit as it reports a full disk."""

    def _transaction(self, connection: sqlite3.Connection, sink_id: str) -> SqliteTransaction:
        connection.execute("PRAGMA max_page_count = 12")
        return super()._transaction(connection, sink_id)


def test_full_disk_fails_the_query_and_a_later_start_resumes(
    spark: SparkSession, flights: Path, store: SqliteStore, stream: Stream
) -> None:
    with pytest.raises(
        StreamingQueryException, match="database or disk is full; make room on the disk"
    ):
        stream(flight_job(StoreOnAFullDisk(store.path)))
    assert stored_rows(store) == ledger_rows(store)
    assert len(epochs(store)) < FILES
    stream(flight_job(store))
    assert difference(stored(store), expected(spark, flights)) == []


CAP_DAC_OVERRIDE = 1


@contextmanager
def as_an_ordinary_owner() -> Iterator[None]:
    """Take from this thread the capability by which root writes to read-only files."""
    libc = ctypes.CDLL(None, use_errno=True)
    version_3_of_this_thread = (ctypes.c_uint32 * 2)(0x20080522, 0)
    before = (ctypes.c_uint32 * 6)()
    assert libc.capget(version_3_of_this_thread, before) == 0, os.strerror(ctypes.get_errno())
    without = type(before)(*before)
    without[0] &= ~(1 << CAP_DAC_OVERRIDE)
    assert libc.capset(version_3_of_this_thread, without) == 0, os.strerror(ctypes.get_errno())
    try:
        yield
    finally:
        libc.capset(version_3_of_this_thread, before)


class StoreOfAnOrdinaryOwner(SqliteStore):
    """A store for which the mode of its file holds, even if root runs the tests."""

    @contextmanager
    def transaction(self, sink_id: str = "default") -> Iterator[StoreTransaction]:
        with as_an_ordinary_owner(), super().transaction(sink_id) as transaction:
            yield transaction


def test_read_only_store_fails_the_query_before_any_task_and_a_later_start_resumes(
    spark: SparkSession, flights: Path, store: SqliteStore, stream: Stream
) -> None:
    def items_of_no_task(batch: pa.RecordBatch) -> Iterator[Metrics]:
        raise AssertionError("a task ran, though nothing can be stored")

    owners = StoreOfAnOrdinaryOwner(store.path)
    owners.prepare()
    store.path.chmod(0o444)
    with pytest.raises(
        StreamingQueryException, match="readonly database; let this user write"
    ) as info:
        stream(flight_job(owners, items=items_of_no_task))
    assert "a task ran" not in str(info.value)
    for path in store.path.parent.glob(
        "metrics.db*"
    ):  # SQLite gives the files beside it the same mode
        path.chmod(0o644)
    stream(flight_job(owners))
    assert difference(stored(store), expected(spark, flights)) == []


@pytest.mark.parametrize("below", ["no directory", "a file"])
def test_store_without_a_directory_fails_the_query_and_creates_nothing(
    stream: Stream, tmp_path: Path, below: str
) -> None:
    (tmp_path / "a file").touch()
    before = set(tmp_path.iterdir())
    store = SqliteStore(tmp_path / below / "metrics.db")
    with pytest.raises(
        StreamingQueryException, match=r"unable to open database file; its directory must"
    ):
        stream(flight_job(store))
    assert {path for path in tmp_path.iterdir() if path.name != "checkpoint"} == before
