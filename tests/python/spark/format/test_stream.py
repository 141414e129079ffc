"""`df.writeStream` counts exactly once, whatever happens to tasks, epochs and handlers."""

import os
import signal
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from batchqueue.aggregation import CountMetrics, Metrics, metric_type
from batchqueue.outputs import SqliteStore
from batchqueue.spark import register
from spark_support.faulty_store import epochs
from spark_support.flight_job import (
    FILES,
    ROWS_PER_FILE,
    SCHEMA,
    difference,
    expected,
    flight_job,
    items,
    stored,
)
from spark_support.pyspark_version import needs_stream_sink

pytestmark = needs_stream_sink

Stream = Callable[..., None]


def test_stream_is_equal_to_spark_sql(
    spark: SparkSession, flights: Path, store: SqliteStore, stream: Stream
) -> None:
    stream(flight_job(store))
    assert difference(stored(store), expected(spark, flights)) == []
    assert epochs(store) == list(range(FILES))
    with store.transaction("flights") as transaction:
        assert [epoch.summary["rows"] for epoch in transaction.summaries()] == [
            ROWS_PER_FILE
        ] * FILES


def in_first_attempt_of_a_task(
    action: Callable[[], None],
) -> Callable[[pa.RecordBatch], Iterator[Metrics]]:
    """Return `items` that run an action in each task's first attempt, after rows are enqueued."""

    def wrapped(batch: pa.RecordBatch) -> Iterator[Metrics]:
        yield from items(batch)
        context = TaskContext.get()
        if context is not None and context.attemptNumber() == 0:
            action()

    return wrapped


def fail() -> None:
    raise ValueError("only once")


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("action", [fail, die])
def test_task_that_fails_or_whose_worker_is_killed_is_counted_once(
    spark: SparkSession,
    flights: Path,
    store: SqliteStore,
    stream: Stream,
    tmp_path: Path,
    action: Callable[[], None],
) -> None:
    bad_attempts = tmp_path / "bad attempts"
    bad_attempts.mkdir()

    def note_and_act() -> None:
        (bad_attempts / str(uuid.uuid4())).touch()
        action()

    stream(flight_job(store, items=in_first_attempt_of_a_task(note_and_act)))
    assert len(list(bad_attempts.iterdir())) >= FILES
    assert difference(stored(store), expected(spark, flights)) == []
    assert epochs(store) == list(range(FILES))


def test_epoch_that_spark_forgot_is_replayed_and_counted_once(
    spark: SparkSession, flights: Path, store: SqliteStore, stream: Stream, tmp_path: Path
) -> None:
    checkpoint = tmp_path / "checkpoint"
    stream(flight_job(store), checkpoint)
    for name in (f"{FILES - 1}", f".{FILES - 1}.crc"):
        (checkpoint / "commits" / name).unlink()
    stream(flight_job(store), checkpoint)
    assert (checkpoint / "commits" / f"{FILES - 1}").exists()
    assert difference(stored(store), expected(spark, flights)) == []
    assert epochs(store) == list(range(FILES))


class Raising(CountMetrics):
    """A metric that cannot merge the content of one file."""

    __slots__ = ()

    def combine(self, other: CountMetrics) -> None:
        if self.entity == "bad":
            raise ArithmeticError("the sky fell on our heads")
        super().combine(other)


def items_with_a_bad_file(batch: pa.RecordBatch) -> Iterator[Metrics]:
    yield from items(batch)
    for flight in batch.column("id").to_pylist():
        yield Raising("bad" if flight.startswith("flight-2-") else "good", 0)


def test_handler_that_raises_fails_the_query_with_its_message_and_commits_nothing(
    spark: SparkSession, flights: Path, store: SqliteStore, stream: Stream
) -> None:
    job = flight_job(store)
    metrics = [*job.metrics, Raising]
    broken = flight_job(store, items=items_with_a_bad_file, metrics=metrics)
    with pytest.raises(StreamingQueryException) as info:
        stream(broken)
    assert "ArithmeticError: the sky fell on our heads" in str(info.value)
    assert "nothing of this epoch is committed" in str(info.value)
    assert len(epochs(store)) < FILES
    assert sum(stored(store)["departures"].values()) == len(epochs(store)) * ROWS_PER_FILE
    # With the same metrics: unless the bad file was the first, the sink has them already.
    stream(flight_job(store, metrics=metrics))
    assert difference(stored(store), expected(spark, flights)) == []
    assert epochs(store) == list(range(FILES))


def test_missing_column_fails_before_any_task_runs(
    flights: Path, store: SqliteStore, stream: Stream
) -> None:
    job = flight_job(store, columns=("carrier", "wind"), items=in_first_attempt_of_a_task(fail))
    with pytest.raises(StreamingQueryException) as info:
        stream(job)
    message = (
        "job 'flights' needs column wind, but the rows have id, carrier, hour, delay, distance:"
        " select"
    )
    assert message in str(info.value)
    assert "only once" not in str(info.value)
    assert not store.path.exists()


def test_store_that_cannot_be_written_stops_the_query_and_a_later_start_resumes(
    spark: SparkSession, flights: Path, tmp_path: Path, stream: Stream
) -> None:
    store = SqliteStore(tmp_path / "later" / "metrics.db")
    with pytest.raises(
        StreamingQueryException, match=r"cannot use the store .*metrics.db: unable to open"
    ):
        stream(flight_job(store))
    store.path.parent.mkdir()
    stream(flight_job(store))
    assert difference(stored(store), expected(spark, flights)) == []


def test_invalid_option_stops_the_query(store: SqliteStore, stream: Stream) -> None:
    with pytest.raises(
        StreamingQueryException, match="option onNewQuery='ignore': use 'append' or 'replace'"
    ):
        stream(flight_job(store), onNewQuery="ignore")


def test_new_metric_is_refused_before_tasks_run_in_the_words_of_the_sink(
    store: SqliteStore, stream: Stream, tmp_path: Path
) -> None:
    job = flight_job(store)
    stream(job)
    changed = replace(job, metrics=[*job.metrics, metric_type("later", CountMetrics)])
    with pytest.raises(StreamingQueryException) as refused:
        stream(changed, tmp_path / "another checkpoint", onNewQuery="append")
    message = str(refused.value)
    assert "was written by another job: metric 'later' is new. Give this job another" in message
    assert "PicklingError" not in message


def test_complete_mode_is_refused(
    spark: SparkSession, flights: Path, store: SqliteStore, tmp_path: Path
) -> None:
    source = spark.readStream.schema(SCHEMA).parquet(str(flights)).groupBy("carrier").count()
    writer = source.writeStream.format(register(spark, flight_job(store, columns=()))).outputMode(
        "complete"
    )
    query = (
        writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    with pytest.raises(StreamingQueryException, match="cannot take outputMode\\('complete'\\)"):
        query.awaitTermination()
