"""A driver that is killed in mid-stream: the next one continues, and every row counts once."""

import os
import signal
import subprocess
import sys
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from batchqueue.outputs import SqliteStore
from programs import PIPELINE_DRIVER
from spark_support.numbered_rows import NumberedRows, into_store, oracle, stored
from spark_support.pyspark_version import VERSION
from spark_support.retried import TOO_LATE, retried
from spark_support.waits import wait_until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(VERSION < (4, 2), reason="sources on Spark need pyspark 4.2"),
]

ROWS = 20_000


def epochs(path: Path) -> int:
    """How many epochs the store has; 0 before it exists."""
    return len(SqliteStore(path).summaries("shop")) if path.exists() else 0


def has_gone_on(database: Path, wanted: int, driver: "subprocess.Popen[bytes]") -> bool:
    return epochs(database) >= wanted or driver.poll() is not None


def test_three_killed_drivers_and_a_fourth_count_every_row_once(
    spark: SparkSession, tmp_path: Path
):
    database, checkpoint, notes = tmp_path / "m.db", tmp_path / "state", tmp_path / "notes"
    notes.mkdir()
    command = [sys.executable, PIPELINE_DRIVER, checkpoint, database, str(ROWS), notes]
    killed = 0
    while killed < 3:
        before, log = epochs(database), tmp_path / f"log {len(list(tmp_path.iterdir()))}"
        with log.open("wb") as output:
            driver = subprocess.Popen(command, stdout=output, stderr=output, process_group=0)
        try:
            wait_until(partial(has_gone_on, database, before + 2, driver), deadline_s=300)
            if driver.poll() is None:
                killed += 1
            else:
                assert TOO_LATE in log.read_text(), log.read_text()[-5000:]
        finally:
            with suppress(ProcessLookupError):
                os.killpg(driver.pid, signal.SIGKILL)
            driver.wait()
    assert stored(SqliteStore(database), "shop") != oracle(ROWS)
    source = NumberedRows(ROWS, notes=notes)
    flow = into_store(source, SqliteStore(database))
    retried(flow.on_spark(spark, checkpoint=str(checkpoint)).run)
    assert stored(SqliteStore(database), "shop") == oracle(ROWS)
    ids = [epoch.batch_id for epoch in SqliteStore(database).summaries("shop")]
    assert ids == list(range(len(ids)))
