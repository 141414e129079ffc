"""A driver dies, is interrupted or has a twin: the next one resumes, and every row counts once."""

import os
import pickle
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from batchqueue.outputs import SqliteStore
from batchqueue.spark import register
from programs import KILLED_DRIVER
from spark_support.faulty_store import (
    AFTER_THE_COMMIT,
    BEFORE_THE_COMMIT,
    BEFORE_THE_END,
    BEFORE_THE_LEDGER_ENTRY,
    IN_A_TASK,
    Store,
    epochs,
)
from spark_support.flight_job import (
    FILES,
    SCHEMA,
    difference,
    expected,
    files_one_by_one,
    flight_job,
    into,
    start_stream,
    stored,
)
from spark_support.pyspark_version import needs_batch_sink, needs_stream_sink
from spark_support.waits import Meeting, wait_until

Stream = Callable[..., None]
Drive = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log"


@pytest.fixture
def drive(flights: Path, store: SqliteStore, log: Path, tmp_path: Path) -> Iterator[Drive]:
    """Start a driver; `killed_driver.py` has its arguments. Drivers left at the end are killed."""
    drivers: list[subprocess.Popen[bytes]] = []

    def start(
        kind: str, place: str, name: str | Path, store: Store = store
    ) -> "subprocess.Popen[bytes]":
        pickled = tmp_path / "store.pickle"
        pickled.write_bytes(pickle.dumps(store))
        command = [sys.executable, KILLED_DRIVER, kind, place, flights, name, pickled]
        with log.open("ab") as output:  # a pipe would stay open until the last orphan is gone
            # A separate process group, as in a terminal, where Ctrl-C reaches the whole group.
            drivers.append(subprocess.Popen(command, stdout=output, stderr=output, process_group=0))
        return drivers[-1]

    yield start
    for driver in drivers:
        if driver.poll() is None:
            os.killpg(driver.pid, signal.SIGKILL)
            driver.wait()


def assert_resumed(
    spark: SparkSession,
    flights: Path,
    store: Store,
    drive: Drive,
    log: Path,
    checkpoint: Path,
    kind: str,
    place: str,
    applied: list[int],
) -> None:
    """Kill a driver in its second epoch, and start the query again in this process."""
    assert drive(kind, place, checkpoint, store).wait() == -signal.SIGKILL, log.read_text()
    assert epochs(store) == applied
    # Spark has recorded only the first epoch, so it replays the second, whether the store has it
    # or not.
    assert [path.name for path in (checkpoint / "commits").glob("[0-9]*")] == ["0"]
    to = into(kind, flight_job(store))
    start_stream(files_one_by_one(spark, flights), to, checkpoint).awaitTermination()
    assert difference(stored(store), expected(spark, flights)) == []
    assert epochs(store) == list(range(FILES))


@pytest.mark.parametrize(
    ("kind", "place"),
    [
        pytest.param("stream", IN_A_TASK, marks=needs_stream_sink),
        pytest.param("stream", BEFORE_THE_COMMIT, marks=needs_stream_sink),
        ("writer", IN_A_TASK),
    ],
)
def test_killed_driver_before_its_commit_is_resumed_and_every_row_counted_once(
    spark: SparkSession,
    flights: Path,
    store: SqliteStore,
    drive: Drive,
    log: Path,
    tmp_path: Path,
    kind: str,
    place: str,
) -> None:
    assert_resumed(spark, flights, store, drive, log, tmp_path / "checkpoint", kind, place, [0])


@pytest.mark.parametrize(
    ("place", "name", "kind"),
    [
        pytest.param(BEFORE_THE_LEDGER_ENTRY, "store", "stream", marks=needs_stream_sink),
        (BEFORE_THE_LEDGER_ENTRY, "postgres", "writer"),
        pytest.param(BEFORE_THE_END, "postgres", "stream", marks=needs_stream_sink),
        (BEFORE_THE_END, "parquet", "writer"),
        (AFTER_THE_COMMIT, "store", "writer"),
        pytest.param(AFTER_THE_COMMIT, "postgres", "stream", marks=needs_stream_sink),
        pytest.param(AFTER_THE_COMMIT, "parquet", "stream", marks=needs_stream_sink),
    ],
)
def test_killed_driver_in_its_commit_or_after_it_is_resumed_and_every_row_counted_once(
    spark: SparkSession,
    flights: Path,
    drive: Drive,
    log: Path,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    place: str,
    name: str,
    kind: str,
) -> None:
    store: Store = request.getfixturevalue(name)
    applied = [0, 1] if place == AFTER_THE_COMMIT else [0]
    assert_resumed(spark, flights, store, drive, log, tmp_path / "checkpoint", kind, place, applied)


@needs_batch_sink
@pytest.mark.parametrize(
    ("place", "applied"), [(BEFORE_THE_LEDGER_ENTRY, []), (AFTER_THE_COMMIT, [0])]
)
def test_batch_of_a_killed_driver_that_is_repeated_with_its_txn_id_counts_once(
    spark: SparkSession,
    flights: Path,
    store: SqliteStore,
    drive: Drive,
    log: Path,
    place: str,
    applied: list[int],
) -> None:
    assert drive("batch", place, "load-1").wait() == -signal.SIGKILL, log.read_text()
    assert epochs(store) == applied
    table = spark.read.schema(SCHEMA).parquet(str(flights))
    table.write.format(register(spark, flight_job(store))).mode("append").option(
        "txnId", "load-1"
    ).save()
    assert difference(stored(store), expected(spark, flights)) == []
    assert epochs(store) == [0]


def test_interrupted_driver_ends_and_is_resumed(
    spark: SparkSession,
    flights: Path,
    store: SqliteStore,
    stream: Stream,
    drive: Drive,
    log: Path,
    tmp_path: Path,
) -> None:
    driver = drive("stream", "waiting", tmp_path / "checkpoint")
    wait_until(lambda: (tmp_path / "waiting").exists() or driver.poll() is not None)
    os.killpg(driver.pid, signal.SIGINT)
    assert driver.wait() != 0, log.read_text()
    assert "KeyboardInterrupt" in log.read_text()
    assert epochs(store) == [0]
    stream(flight_job(store), tmp_path / "checkpoint")
    assert difference(stored(store), expected(spark, flights)) == []
    assert epochs(store) == list(range(FILES))


def test_two_drivers_with_one_checkpoint_count_every_row_once(
    spark: SparkSession,
    flights: Path,
    store: SqliteStore,
    stream: Stream,
    drive: Drive,
    log: Path,
    tmp_path: Path,
) -> None:
    """The other replays the first one's epoch; both commit it, and Spark lets one record it."""
    checkpoint, meeting = tmp_path / "checkpoint", Meeting(tmp_path / "meeting", 2)
    drivers = [drive("stream", "meeting", checkpoint)]
    wait_until(lambda: len(meeting.came()) == 1 or drivers[0].poll() is not None)
    drivers.append(drive("stream", "meeting", checkpoint))
    ends = [driver.wait() for driver in drivers]
    assert len(meeting.came()) == 2
    assert sorted(ends) == [0, 1], log.read_text()
    assert re.search("concurrently using .*commits|Concurrent update to the log", log.read_text())
    assert difference(stored(store), expected(spark, flights)) == []
    assert epochs(store) == list(range(FILES))
    stream(flight_job(store), checkpoint)  # there is nothing new
    assert epochs(store) == list(range(FILES))
