"""A driver that is killed within an epoch: the next one continues, and every row counts once."""

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from pyspark import cloudpickle
from pyspark.sql import SparkSession

import pipeline_driver as driver
from batchqueue.pipeline import Source
from pipeline_support.numbered_tables import KINDS, numbered
from programs import PIPELINE_DRIVER
from spark_support.numbered_rows import NumberedRows, oracle, stored
from spark_support.pyspark_version import VERSION
from spark_support.retried import TOO_LATE, retried
from spark_support.waits import wait_until

pytestmark = [
    pytest.mark.timeout(1200),
    pytest.mark.skipif(VERSION < (4, 2), reason="sources on Spark need pyspark 4.2"),
]

cloudpickle.register_pickle_by_value(driver)


def source_of(kind: str, folder: Path, rows: int) -> Source:
    if kind == "numbers":
        folder.mkdir()
        return NumberedRows(rows)
    return numbered(kind, folder, rows)


def count_epochs(folder: Path) -> int:
    """How many epochs the store has; 0 before it exists."""
    store = driver.store_of(folder)
    return len(store.summaries("shop")) if (folder / "metrics.db").exists() else 0


def kill_at(folder: Path, stop: int) -> None:
    """Run a driver up to a row, in whose epoch it is killed."""
    for name in ("stopped", "killed"):
        (folder / name).unlink(missing_ok=True)
    command = [sys.executable, PIPELINE_DRIVER, folder, str(stop)]
    log = folder / "log"
    while not (folder / "stopped").exists():
        with log.open("wb") as output:
            process = subprocess.Popen(command, stdout=output, stderr=output, process_group=0)
        try:
            wait_until(
                lambda process=process: (folder / "stopped").exists() or process.poll() is not None,
                deadline_s=300,
            )
            if not (folder / "stopped").exists():
                assert TOO_LATE in log.read_text(), log.read_text()[-5000:]
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    (folder / "killed").touch()  # for workers of that driver, which may outlive it for a moment


def check_killed(kind: str, spark: SparkSession, folder: Path, rows: int, *stops: int) -> None:
    """Kill a driver at each of these rows, then run to the end, and count."""
    source = source_of(kind, folder / "source", rows)
    (folder / "source.pickle").write_bytes(cloudpickle.dumps(source))
    epochs = 0
    for stop in stops:
        kill_at(folder, stop)
        # The epoch with that row is not stored, and those before it are.
        before, epochs = epochs, count_epochs(folder)
        assert before < epochs
        have = sum(orders for orders, _ in stored(driver.store_of(folder), "shop").values())
        assert stop - driver.EPOCH_ROWS < have <= stop
    retried(driver.pipeline(folder, rows).on_spark(spark, **driver.OPTIONS).run)
    assert stored(driver.store_of(folder), "shop") == oracle(rows)
    ids = [epoch.batch_id for epoch in driver.store_of(folder).summaries("shop")]
    assert ids == list(range(len(ids)))


@pytest.mark.parametrize("kind", KINDS)
def test_driver_killed_in_an_epoch_and_the_next_one_count_every_row_once(
    kind: str, spark: SparkSession, tmp_path: Path
):
    check_killed(kind, spark, tmp_path, 6_000, 2_700)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["numbers", *KINDS])
def test_three_drivers_killed_in_epochs_and_a_fourth_count_every_row_once(
    kind: str, spark: SparkSession, tmp_path: Path
):
    check_killed(kind, spark, tmp_path, 20_000, 2_700, 8_000, 13_499)
