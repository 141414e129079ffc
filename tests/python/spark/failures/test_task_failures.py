"""Tasks that raise, hang or send too much: their epoch is not committed, and a restart resumes."""

import os
import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from batchqueue import HandlerConsumer
from batchqueue.aggregation import Metrics
from batchqueue.outputs import SqliteStore
from batchqueue.spark import AggregationJob, MetricsWriter, register
from spark_support.faulty_store import BEFORE_THE_END, FaultyStore, epochs
from spark_support.flight_job import (
    DECLARED,
    DEPARTURES,
    DISTANCE,
    FILES,
    NO_RANKING,
    difference,
    expected,
    flight_job,
    into,
    items,
    stored,
)
from spark_support.pyspark_version import needs_batch_sink, needs_stream_sink
from spark_support.waits import is_alive, wait_until

pytestmark = needs_batch_sink

Start = Callable[..., StreamingQuery]
Stream = Callable[..., None]


def write(table: DataFrame, job: AggregationJob, **options: Any) -> None:
    table.write.format(register(table.sparkSession, job)).mode("append").options(**options).save()


@pytest.fixture
def table(table: DataFrame) -> DataFrame:
    """All flights, in four partitions."""
    return table.repartition(4)


def test_task_that_always_raises_fails_the_batch_with_its_message_although_others_succeed(
    spark: SparkSession, flights: Path, store: SqliteStore, table: DataFrame, tmp_path: Path
) -> None:
    def raising(batch: pa.RecordBatch) -> Iterator[Metrics]:
        yield from items(batch)
        context = TaskContext.get()
        assert context is not None
        partition = context.partitionId()
        (tmp_path / f"{partition} in attempt {context.attemptNumber()}").touch()
        if partition == 1:
            raise ArithmeticError("the sky fell on our heads")

    with pytest.raises(PySparkException, match="ArithmeticError: the sky fell on our heads"):
        write(table, flight_job(store, items=raising), txnId="load-1")
    attempts = {path.name for path in tmp_path.glob("* in attempt *")}
    assert {f"1 in attempt {number}" for number in range(2)} | {"0 in attempt 0"} <= attempts
    assert epochs(store) == []
    assert stored(store)["departures"] == {}
    write(table, flight_job(store), txnId="load-1")
    assert difference(stored(store), expected(spark, flights)) == []


ROWS = 1_000_000
BAD_ROW = 777_777


class Adding(HandlerConsumer[int]):
    """Counts and sums by the last digit."""

    def __init__(self, emit: Callable[[list[Metrics]], None]) -> None:
        self.emit = emit
        self.rows: dict[int, tuple[int, int]] = {}

    def consume(self, batch: list[int]) -> None:
        for number in batch:
            count, total = self.rows.get(number % 10, (0, 0))
            self.rows[number % 10] = (count + 1, total + number)

    def on_close(self) -> None:
        for digit, (count, total) in self.rows.items():
            self.emit([DEPARTURES(str(digit), 0, count), DISTANCE(str(digit), 0, total)])


class AddingAllButBad(Adding):
    def consume(self, batch: list[int]) -> None:
        super().consume(batch)
        if BAD_ROW in batch:
            raise ArithmeticError(f"row {BAD_ROW} is bad")


def test_handler_that_raises_on_one_row_in_a_million_commits_nothing(
    spark: SparkSession, store: SqliteStore
) -> None:
    numbers = spark.range(ROWS, numPartitions=4)
    changes = {
        "items": lambda batch: batch.column("id").to_pylist(),
        "metrics": [DEPARTURES, DISTANCE],
        "columns": ["id"],
    }
    with pytest.raises(PySparkException, match=rf"ArithmeticError: row {BAD_ROW} is bad"):
        write(
            numbers, flight_job(store, handlers={int: AddingAllButBad}, **changes), txnId="load-1"
        )
    assert epochs(store) == []
    assert store.read(DEPARTURES, "flights") == []
    write(numbers, flight_job(store, handlers={int: Adding}, **changes), txnId="load-1")
    wanted = numbers.selectExpr("string(id % 10) digit", "id").groupBy("digit")
    counts = {row.digit: row["count"] for row in wanted.count().collect()}
    totals = {row.digit: row["sum(id)"] for row in wanted.sum("id").collect()}
    assert {item.entity: item.count for item in store.read(DEPARTURES, "flights")} == counts
    assert {item.entity: item.total for item in store.read(DISTANCE, "flights")} == totals


@pytest.mark.parametrize(
    ("sink", "place"),
    [
        pytest.param("format", "handler", marks=needs_stream_sink),
        pytest.param("format", "items", marks=needs_stream_sink),
        ("writer", "handler"),
    ],
)
def test_query_whose_task_hangs_can_be_stopped_and_a_later_start_resumes(
    spark: SparkSession,
    flights: Path,
    store: SqliteStore,
    start: Start,
    stream: Stream,
    tmp_path: Path,
    sink: str,
    place: str,
) -> None:
    """Spark kills a worker that outlives the stop by `spark.python.task.killTimeout`, 2 s."""
    hanging = tmp_path / "hanging"

    def hang_in_the_second_epoch() -> None:
        if epochs(SqliteStore(store.path)) == [0]:
            hanging.with_suffix(".new").write_text(str(os.getpid()))
            hanging.with_suffix(".new").rename(hanging)
            threading.Event().wait()

    class Hanging(HandlerConsumer[Metrics]):
        def __init__(self, emit: Callable[[list[Metrics]], None]) -> None:
            self.emit = emit

        def consume(self, batch: list[Metrics]) -> None:
            hang_in_the_second_epoch()
            self.emit(batch)

    def hanging_items(batch: pa.RecordBatch) -> Iterator[Metrics]:
        yield from items(batch)
        hang_in_the_second_epoch()

    changes: dict[str, Any] = {
        "handler": {"handlers": {DEPARTURES: Hanging}},
        "items": {"items": hanging_items},
    }[place]
    query = start(into(sink, flight_job(store, **changes)))
    wait_until(lambda: hanging.exists() or not query.isActive)
    worker = int(hanging.read_text())
    assert is_alive(worker)
    query.stop()
    assert not query.isActive
    wait_until(lambda: not is_alive(worker))
    assert epochs(store) == [0]
    stream(into(sink, flight_job(store)))
    assert difference(stored(store), expected(spark, flights)) == []
    assert epochs(store) == list(range(FILES))


def stop_is_waiting(spark: SparkSession) -> bool:
    """Return whether a thread of the JVM is inside `stop`, where it waits for the query's end."""
    threads = spark._jvm.org.apache.spark.util.Utils.getThreadDump()  # type: ignore[union-attr]
    return any(
        "interruptAndAwaitExecutionThreadTermination" in str(thread.stackTrace())
        for thread in threads
    )


def test_query_stopped_while_it_commits_ends_with_the_commit_and_a_later_start_resumes(
    spark: SparkSession,
    flights: Path,
    store: SqliteStore,
    start: Start,
    stream: Stream,
    tmp_path: Path,
) -> None:
    """Spark waits for a running commit: `stop` takes as long as the store."""
    committing, may_continue = tmp_path / "committing", tmp_path / "may continue"

    def hold() -> None:
        committing.touch()
        wait_until(may_continue.exists)

    query = start(flight_job(FaultyStore(store, BEFORE_THE_END, 1, hold)))
    wait_until(lambda: committing.exists() or not query.isActive)
    stopping = threading.Thread(target=query.stop)
    stopping.start()
    wait_until(lambda: stop_is_waiting(spark) or not stopping.is_alive())
    assert stopping.is_alive()
    assert epochs(store) == [0]
    may_continue.touch()
    stopping.join()
    assert not query.isActive
    assert epochs(store)[:2] == [0, 1]
    stream(flight_job(store))
    assert difference(stored(store), expected(spark, flights)) == []
    assert epochs(store) == list(range(FILES))


@pytest.mark.parametrize(
    ("entity", "value", "message"),
    [
        ("A", "far", r"total is 'far', a str; give a number"),
        ("A", 1.5, r"1\.50* was truncated"),
        (None, 1, r"entity is None; leave such rows out in `items`"),
        ("A", 2**70, r"too large to convert"),
    ],
    ids=["text", "fraction", "no entity", "huge"],
)
def test_value_of_a_wrong_type_fails_the_batch_and_commits_nothing(
    store: SqliteStore, table: DataFrame, entity: Any, value: Any, message: str
) -> None:
    job = flight_job(store, items=lambda batch: [DISTANCE(entity, 0, value)])
    with pytest.raises(PySparkException, match=message):
        write(table.coalesce(1), job)
    assert epochs(store) == []


def test_partials_of_one_task_above_max_commit_bytes_fail_the_task(
    store: SqliteStore, table: DataFrame
) -> None:
    with pytest.raises(
        PySparkException, match=r"(?s)in write\n.*more than maxCommitBytes=100,"
    ) as info:
        write(table, flight_job(store), maxCommitBytes=100)
    assert "in commit\n" not in str(info.value)
    assert epochs(store) == []


def test_partials_of_all_tasks_above_max_commit_bytes_fail_the_commit(
    spark: SparkSession, flights: Path, store: SqliteStore, table: DataFrame
) -> None:
    write(table, flight_job(store), sinkId="measured")
    (measured,) = store.summaries("measured")
    # Four tasks of about the same size: each is far below the limit, the sum is above it.
    limit = measured.summary["commit_bytes"] * 3 // 4
    with pytest.raises(
        PySparkException, match=rf"(?s)in commit\n.*more than maxCommitBytes={limit},"
    ) as info:
        write(table, flight_job(store), maxCommitBytes=limit, txnId="load-1")
    assert "in write\n" not in str(info.value)
    assert re.search(r"take (\d+) bytes", str(info.value))
    assert epochs(store) == []
    write(table, flight_job(store), txnId="load-1")
    assert difference(stored(store), expected(spark, flights)) == []


def test_groups_of_spark_above_max_commit_bytes_fail_the_stream_and_a_larger_limit_resumes_it(
    spark: SparkSession, flights: Path, store: SqliteStore, stream: Stream
) -> None:
    """With `l1="spark"` they reach the driver by `collect`, not in messages of tasks."""
    job = flight_job(store, items=None, arrow=[DECLARED])
    too_small = MetricsWriter(job, l1="spark", maxCommitBytes=100)
    with pytest.raises(
        StreamingQueryException, match=r"take \d+ bytes, more than maxCommitBytes=100,"
    ):
        stream(too_small)
    assert epochs(store) == []
    assert stored(store)["departures"] == {}
    larger = MetricsWriter(job, l1="spark", maxCommitBytes=10_000_000)
    stream(larger)
    wanted = expected(spark, flights)
    assert (
        difference(stored(store), {metric.name: wanted[metric.name] for metric in NO_RANKING}) == []
    )
    assert epochs(store) == list(range(FILES))
