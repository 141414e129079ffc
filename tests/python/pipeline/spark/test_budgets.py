"""Epochs of the sizes that a run is given, with pauses between them: every row once."""

from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from batchqueue.pipeline import Source
from batchqueue.pipeline.spark.control import DriverControl
from batchqueue.pipeline.spark.epoch_size import EpochGoal, EpochSize
from batchqueue.pipeline.spark.epochs import EpochSettings
from batchqueue.pipeline.spark.pipeline import SparkRun
from batchqueue.pipeline.spark.source import PickledSource
from batchqueue.pipeline.spark.stages import spark_schema
from pipeline_support.numbered_tables import numbered
from spark_support.pyspark_version import VERSION
from spark_support.retried import started
from spark_support.waits import wait_until

pytestmark = [
    pytest.mark.timeout(900),
    pytest.mark.skipif(VERSION < (4, 2), reason="sources on Spark need pyspark 4.2"),
]

ROWS = 100_000
BUDGETS = (0, 3_000, 0, 10_000, 500, 0, 7_000, 0, 20_000)
"""Rows of an epoch, in turn; 0 is a pause, and behind the last one the rest comes."""


class Given(EpochSize):
    """A size that does not follow from the epochs before."""

    def __init__(self, rows: int) -> None:
        super().__init__(EpochGoal(first_rows=max(rows, 1), max_rows=1 << 40))

    def after(self, rows: int, busy_s: float) -> None:
        pass


def register(spark: SparkSession, source: Source, control: Path) -> Callable[[], list[str]]:
    """Register a format whose reader gets one budget after the other.

    Returns what returns the budgets that it was given so far.
    """
    from batchqueue.pipeline.spark.reader import (
        PipelineDataSource,
        ReaderSettings,
        SourceStreamReader,
    )

    taken = control / "taken"
    taken.touch()

    class Budgeted(SourceStreamReader):
        def latestOffset(self, start, limit):
            count = len(taken.read_text().splitlines())
            budget = BUDGETS[count] if count < len(BUDGETS) else None
            if budget == 0:
                DriverControl(control).pause("no budget")
            else:
                DriverControl(control).resume()
            self._epochs._size = Given(1 << 40 if budget is None else budget)
            end = super().latestOffset(start, limit)
            with taken.open("a") as file:
                file.write(f"{budget}\n")
            return end

    class BudgetedSource(PipelineDataSource):
        format = "budgeted"
        settings = ReaderSettings(
            source=PickledSource.of(source, "numbers"),
            struct=spark_schema(source.schema(), "source"),
            epochs=EpochSettings(
                query="q", goal=EpochGoal(), max_bytes=1 << 40, max_tasks=4, commits=True
            ),
            control=DriverControl(control),
        )

        def streamReader(self, schema):
            return Budgeted(self.settings)

    spark.dataSource.register(BudgetedSource)
    return lambda: taken.read_text().splitlines()


@pytest.mark.parametrize(
    "kind",
    [
        "files",
        pytest.param("iceberg", marks=pytest.mark.slow),
        pytest.param("lance", marks=pytest.mark.slow),
    ],
)
def test_every_row_comes_once_whatever_the_budgets_of_epochs_are(
    kind: str, spark: SparkSession, tmp_path: Path
):
    epochs: list[list[int]] = []
    (tmp_path / "control").mkdir()
    source = numbered(kind, tmp_path / "source", ROWS)
    taken = register(spark, source, tmp_path / "control")

    def start() -> SparkRun:
        writer = spark.readStream.format("budgeted").load().select("id").writeStream
        writer = writer.foreachBatch(
            lambda df, number: epochs.append(df.toArrow()["id"].to_pylist())
        )
        writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
        return SparkRun([writer.trigger(processingTime="0 seconds").start()], lambda: None)

    run = started(start, taken)
    wait_until(lambda: sum(map(len, epochs)) >= ROWS or not run.isActive, deadline_s=600)
    assert run.isActive, run.exception()
    run.stop()
    # Spark begins a stream that is paused with an epoch without rows.
    assert [len(epoch) for epoch in epochs if epoch] == [3_000, 10_000, 500, 7_000, 20_000, 59_500]
    assert sorted(id for epoch in epochs for id in epoch) == list(range(ROWS))
    assert taken()[: len(BUDGETS) + 1] == [*map(str, BUDGETS), "None"]
