"""A driver that dies by SIGKILL in mid-stream: the next one resumes, and nothing is lost or counted twice."""

import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from flight_job import FILES, difference, expected, flight_job, stored
from pyspark.sql import SparkSession

from batchqueue.outputs import SqliteStore

Stream = Callable[..., None]


def epochs(store: SqliteStore) -> list[int]:
    with store.transaction("flights") as transaction:
        return [epoch.batch_id for epoch in transaction.summaries()]


@pytest.mark.parametrize(
    ("place", "applied"), [("in a task", [0]), ("in the transaction", [0]), ("after the commit", [0, 1])]
)
def test_killed_driver_is_resumed_and_every_row_counted_once(
    spark: SparkSession,
    flights: Path,
    store: SqliteStore,
    stream: Stream,
    tmp_path: Path,
    place: str,
    applied: list[int],
) -> None:
    checkpoint = tmp_path / "checkpoint"
    script = Path(__file__).with_name("killed_driver.py")
    command = [sys.executable, script, place, flights, checkpoint, store.path]
    log = tmp_path / "log"
    with log.open("wb") as output:  # a pipe would stay open until the last orphan is gone
        killed = subprocess.run(command, stdout=output, stderr=output)
    assert killed.returncode == -signal.SIGKILL, log.read_text()
    assert epochs(store) == applied
    # Spark has noted the first epoch only, so it replays the second, whether the store has that or not.
    assert [path.name for path in (checkpoint / "commits").glob("[0-9]*")] == ["0"]
    stream(flight_job(store), checkpoint)
    assert difference(stored(store), expected(spark, flights)) == []
    assert epochs(store) == list(range(FILES))
