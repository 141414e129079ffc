"""The demo's parts on a slice of the flights: the stream and its faults, and the check."""

import shutil
import sqlite3
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from pathlib import Path

import numpy as np
import pytest
from pyspark.sql import SparkSession

from batchqueue.cli.demo_job import (
    FlightFiles,
    StreamFailedError,
    flight_items,
    flights_job,
    run_stream,
    write_flights,
)
from batchqueue.cli.demo_report import (
    Comparison,
    EpochTotals,
    Results,
    compare_with_spark_sql,
    delays_by_day,
    draw,
    read_epochs,
)
from batchqueue.outputs import SqliteStore
from batchqueue.spark import AggregationJob

ROWS = 3_000
SCALE = 2  # every flight has a twin, so the rankings are full of ties
ITEMS_PER_ROW = 11


@dataclass
class Demo:
    """The parts of one demo, in its own folder."""

    spark: SparkSession
    files: FlightFiles
    folder: Path

    @property
    def store(self) -> SqliteStore:
        return SqliteStore(self.folder / "metrics.sqlite")

    @property
    def job(self) -> AggregationJob:
        return flights_job(self.store)

    def stream(self, job: AggregationJob) -> None:
        run_stream(
            self.spark,
            self.files,
            job,
            self.folder / "checkpoint",
            follow=lambda query: query.awaitTermination(),
        )

    def totals(self) -> EpochTotals:
        return EpochTotals.of(read_epochs(self.store, self.job.name))

    def check(self) -> Comparison:
        return compare_with_spark_sql(self.spark, self.files, Results(self.store, self.job.name))


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> FlightFiles:
    return write_flights(tmp_path_factory.mktemp("demo"), ROWS, SCALE)


@pytest.fixture
def demo(spark: SparkSession, files: FlightFiles, tmp_path: Path) -> Demo:
    return Demo(spark, files, tmp_path)


@pytest.fixture(scope="module")
def done(spark: SparkSession, files: FlightFiles, tmp_path_factory: pytest.TempPathFactory) -> Demo:
    """A completed demo, which tests must not change."""
    demo = Demo(spark, files, tmp_path_factory.mktemp("done"))
    demo.stream(demo.job)
    return demo


def test_every_aggregate_is_equal_to_spark_sql(done: Demo) -> None:
    comparison = done.check()
    assert comparison.differences == ()
    assert comparison.compared > ROWS


def test_every_row_is_counted_once_and_every_item_is_consumed(done: Demo) -> None:
    totals = done.totals()
    assert totals.rows == ROWS * SCALE
    assert totals.items == ROWS * SCALE * ITEMS_PER_ROW
    for counts in totals.stages.values():
        assert counts["produced"] == counts["consumed"] > 0
        assert counts["refused"] == 0


def test_files_make_several_micro_batches(done: Demo) -> None:
    assert len(read_epochs(done.store, done.job.name)) == 3


def test_second_run_finds_nothing_new(done: Demo, tmp_path: Path) -> None:
    again = Demo(done.spark, done.files, shutil.copytree(done.folder, tmp_path / "again"))
    again.stream(again.job)
    assert again.totals() == done.totals()
    assert again.check().differences == ()


def test_task_that_fails_once_is_retried_and_nothing_is_counted_twice(demo: Demo) -> None:
    marker = demo.folder / "failed"

    def items_or_failure(batch):  # type: ignore[no-untyped-def]  # travels to the workers by value
        yield from flight_items(batch)
        if not marker.exists():
            marker.touch()
            raise RuntimeError("this task fails once, after its last item")

    demo.stream(replace(demo.job, items=items_or_failure))
    assert marker.exists()
    assert demo.totals().rows == ROWS * SCALE
    assert demo.check().differences == ()


def test_failing_stream_gives_the_reason_keeps_nothing_of_its_epoch_and_can_continue(
    demo: Demo,
) -> None:
    def no_items(batch):  # type: ignore[no-untyped-def]  # travels to the workers by value
        raise RuntimeError(f"cannot read {batch.num_rows and 'these'} flights")

    demo.store.prepare()
    with pytest.raises(StreamFailedError, match="cannot read these flights"):
        demo.stream(replace(demo.job, items=no_items))
    assert demo.totals().rows == 0
    demo.stream(demo.job)
    assert demo.totals().rows == ROWS * SCALE
    assert demo.check().differences == ()


TEN = 1_357_034_400  # 2013-01-01 10:00 UTC
MIDNIGHT = 1_356_998_400


@pytest.mark.parametrize(
    ("metric", "injection"),
    [
        pytest.param(
            "departures.carrier.UA",
            "UPDATE count_metrics SET count = count + 1"
            " WHERE metric = :metric AND time_bucket = :ten",
            id="count one too high",
        ),
        pytest.param(
            "mean_delay.origin.EWR",
            "UPDATE mean_metrics SET total = total * 1.00000001 "
            "WHERE metric = :metric AND time_bucket = :ten",
            id="mean off by a hundred-millionth",
        ),
        pytest.param(
            "max_delay.origin.JFK",
            "UPDATE max_metrics SET value = NULL WHERE metric = :metric AND time_bucket = :ten",
            id="maximum became null",
        ),
        pytest.param(
            "distance.carrier.AA",
            "DELETE FROM sum_metrics WHERE metric = :metric AND time_bucket = :ten",
            id="group missing",
        ),
        pytest.param(
            "cancellations.carrier.B6",
            "INSERT INTO count_metrics VALUES ('flights', :metric, 'B6', 0, 0)",
            id="group that no flight belongs to",
        ),
        pytest.param(
            "worst_delays",
            "UPDATE ranking_metrics SET id = iif(id LIKE '%#2', rtrim(id, '#2'), id || '#2') "
            "WHERE metric = :metric AND time_bucket = :midnight AND rank <= 2",
            id="tie in the wrong order",
        ),
    ],
)
def test_check_names_an_aggregate_that_was_changed(
    done: Demo, tmp_path: Path, metric: str, injection: str
) -> None:
    changed = Demo(done.spark, done.files, shutil.copytree(done.folder, tmp_path / "changed"))
    with sqlite3.connect(changed.store.path) as connection:
        connection.execute(injection, {"metric": metric, "ten": TEN, "midnight": MIDNIGHT})
    (difference,) = changed.check().differences
    assert difference.metric == metric
    assert difference.stored != difference.expected
    assert str(difference).startswith(f"{metric} of {difference.entity} at ")
    assert f"stored {difference.stored}, Spark SQL {difference.expected}" in str(difference)


def test_picture_is_a_png(done: Demo, tmp_path: Path) -> None:
    results = Results(done.store, done.job.name)
    load = [epoch["l1_thread_items"] for epoch in read_epochs(done.store, done.job.name)]
    draw(tmp_path / "delays.png", results.hourly_delay(), load)
    assert (tmp_path / "delays.png").read_bytes().startswith(b"\x89PNG")


def test_the_picture_has_the_hours_of_new_york() -> None:
    winter, summer = datetime(2013, 1, 1, 10, tzinfo=UTC), datetime(2013, 7, 1, 10, tzinfo=UTC)
    after_midnight_utc = datetime(2013, 7, 2, 1, tzinfo=UTC)
    first, delays = delays_by_day(
        {
            int(winter.timestamp()): 1.0,
            int(summer.timestamp()): 2.0,
            int(after_midnight_utc.timestamp()): 3.0,
        }
    )
    assert first == date(2013, 1, 1)
    days = (date(2013, 7, 1) - first).days
    assert delays.shape == (24, days + 1)
    assert (delays[5, 0], delays[6, days], delays[21, days]) == (1.0, 2.0, 3.0)
    assert np.isnan(delays).sum() == delays.size - 3
