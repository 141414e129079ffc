"""`for_each_partition`: DataFrames and RDDs, order, back-pressure; nothing outlives an attempt."""

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from batchqueue import BatchQueueConfig, PartitionPolicy, ThreadPolicy
from batchqueue.spark import TaskInfo, for_each_partition
from spark_support.deliveries import (
    CLASSES,
    KINDS,
    ROWS,
    KeyedWriter,
    Once,
    Recorder,
    by_handler,
    create_keyed,
    delivered,
    item_recorders,
    items,
    read,
    read_keyed,
    recorders,
)

ALL = sorted(ROWS.items())
DEADLINE_S = 60


def test_rows_of_a_dataframe_reach_the_handlers_of_their_tags_once_and_in_order(
    df: DataFrame, tmp_path: Path
) -> None:
    in_partitions = df.repartition(3).sortWithinPartitions("id")
    summary = for_each_partition(in_partitions, recorders(tmp_path / "log"), type_column="kind")
    batches = read(tmp_path / "log")
    assert delivered(batches) == sorted((row.id, row.kind) for row in df.collect()) == ALL
    assert all(set(batch.kinds) == {batch.handler} for batch in batches)
    assert all(ids == sorted(ids) for ids in by_handler(batches).values())
    assert {(batch.query_id, batch.epoch, batch.partition) for batch in batches} == {
        (None, None, partition) for partition in range(3)
    }
    assert (summary.query_id, summary.epoch) == (None, None)
    assert (summary.partitions, summary.attempts, summary.rows, summary.items) == (
        3,
        3,
        len(ALL),
        len(ALL),
    )


def test_any_column_name_works(df: DataFrame, tmp_path: Path) -> None:
    odd = df.select(
        "*",
        F.col("id").alias("a.b"),
        F.col("id").alias("`"),
        F.col("id").alias("x"),
        F.lit(1).alias("X"),
    )
    seen = tmp_path / "names"

    def handlers(task: TaskInfo) -> dict[str, Any]:
        def note(batches: list[pa.RecordBatch]) -> None:
            seen.write_text(" ".join(batches[0].schema.names))

        return dict.fromkeys(KINDS, note)

    for_each_partition(odd, handlers, type_column="kind", columns=["a.b"])
    assert seen.read_text() == "id kind a.b ` x X"


def test_partition_with_several_record_batches_keeps_its_order(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Spark passes 10,000 rows at a time, and the queue has room for 100."""
    config: BatchQueueConfig[Any] = BatchQueueConfig(
        threads=ThreadPolicy.fixed(2), partitions=PartitionPolicy.fixed(2), buffer_size=100
    )
    many = spark.range(0, 25_000, 1, 1).selectExpr("id", "id % 2 as kind")

    def handlers(
        task: TaskInfo,
    ) -> dict[str, Any]:  # tags are strings, even if the column has integers
        return {tag: Recorder(tmp_path / "log", tag, task) for tag in ("0", "1")}

    summary = for_each_partition(many, handlers, type_column="kind", config=config)
    batches = read(tmp_path / "log")
    found = by_handler(batches)
    assert {tag: ids for (_, tag), ids in found.items()} == {
        "0": [*range(0, 25_000, 2)],
        "1": [*range(1, 25_000, 2)],
    }
    assert max(len(batch.ids) for batch in batches) <= 200
    assert summary.peak_used_percent == 100


def test_elements_of_an_rdd_are_the_items(df: DataFrame, tmp_path: Path) -> None:
    in_partitions = df.repartition(3).sortWithinPartitions("id")
    made = in_partitions.rdd.flatMap(lambda row: [CLASSES[row.kind](row.id)])
    summary = for_each_partition(
        made, item_recorders(tmp_path / "log"), query_id="nightly", epoch=7
    )
    batches = read(tmp_path / "log")
    assert delivered(batches) == ALL
    assert all(ids == sorted(ids) for ids in by_handler(batches).values())
    assert all(set(batch.kinds) == {batch.handler} for batch in batches)
    assert {(batch.query_id, batch.epoch, batch.partition) for batch in batches} == {
        ("nightly", 7, partition) for partition in range(3)
    }
    assert (summary.query_id, summary.epoch, summary.rows, summary.items) == (
        "nightly",
        7,
        len(ALL),
        len(ALL),
    )


@pytest.mark.parametrize("kind", ["df", "rdd"])
def test_handler_that_raises_in_its_last_call_fails_the_job(df: DataFrame, kind: str) -> None:
    class Closing:
        def consume(self, batch: list[Any]) -> None: ...

        def on_close(self) -> None:
            raise ConnectionError("could not commit")

    data, arguments = (
        (df, {"items": items})
        if kind == "df"
        else (df.rdd.map(lambda row: CLASSES[row.kind](row.id)), {})
    )
    with pytest.raises(Exception, match="first error: ConnectionError: could not commit"):
        for_each_partition(
            data, lambda _: {item_type: Closing() for item_type in CLASSES.values()}, **arguments
        )


def test_items_function_that_raises_fails_the_job_and_handlers_are_closed(
    df: DataFrame, tmp_path: Path
) -> None:
    def some_items(batch: pa.RecordBatch) -> Iterator[Any]:
        for item in items(batch):
            if item == 5:
                raise ZeroDivisionError("at the fifth")
            yield item

    with pytest.raises(PySparkException, match="ZeroDivisionError: at the fifth"):
        for_each_partition(df.coalesce(1), item_recorders(tmp_path / "log"), items=some_items)
    read(tmp_path / "log")  # asserts that they are closed


def test_failed_attempt_reads_no_further(spark: SparkSession, tmp_path: Path) -> None:
    """Of ten record batches, only those under way when the first failed may be delivered."""
    log = tmp_path / "log"

    def handlers(task: TaskInfo) -> dict[str, Any]:
        recorder = Recorder(log, "a", task)

        def fail(batch: list[pa.RecordBatch]) -> None:
            recorder.consume(batch)
            raise ValueError("broken")

        return {"a": fail}

    many = spark.range(0, 100_000, 1, 1).selectExpr("id", "'a' as kind")
    config: BatchQueueConfig[Any] = BatchQueueConfig(
        threads=ThreadPolicy.fixed(1), buffer_size=10_000
    )
    with pytest.raises(PySparkException, match="ValueError: broken"):
        for_each_partition(many, handlers, type_column="kind", config=config)
    attempts = list(log.iterdir())
    assert len(attempts) == 2
    for attempt in attempts:
        assert 0 < attempt.read_text().count('"handler"') < 10


def test_job_without_partitions_or_rows_has_an_empty_summary(
    spark: SparkSession, tmp_path: Path
) -> None:
    nothing = spark.createDataFrame([], "id long, kind string")
    for data, arguments in (
        (nothing, {"type_column": "kind"}),
        (spark.sparkContext.emptyRDD(), {}),
        (spark.sparkContext.parallelize([], 2), {}),
    ):
        summary = for_each_partition(
            data, recorders(tmp_path / "log"), query_id="nothing", **arguments
        )
        assert (summary.query_id, summary.rows, summary.items) == ("nothing", 0, 0)
    assert not (tmp_path / "log").exists()


def test_items_wait_in_spark_while_a_handler_is_slow(spark: SparkSession, tmp_path: Path) -> None:
    """The handler continues only when the producer is as far ahead as it can be, and waits."""
    room, rows = 10, 500
    config: BatchQueueConfig[Any] = BatchQueueConfig(
        threads=ThreadPolicy.fixed(1), buffer_size=room, max_batch_items=room
    )
    made: list[int] = []  # in the worker, where items and handlers see the same list

    def numbers(batch: pa.RecordBatch) -> Iterator[int]:
        for number in batch.column("id").to_pylist():
            made.append(number)
            yield number

    def handlers(task: TaskInfo) -> dict[type, Any]:
        handled: list[int] = []

        def consume(batch: list[int]) -> None:
            deadline = time.monotonic() + DEADLINE_S
            while (
                len(made) < min(rows, len(handled) + len(batch) + room + 1)
                and time.monotonic() < deadline
            ):
                time.sleep(0.001)
            handled.extend(batch)
            (tmp_path / f"{task.attempt}-{len(handled)}").write_text(f"{len(made) - len(handled)}")

        return {int: consume}

    summary = for_each_partition(spark.range(0, rows, 1, 1), handlers, items=numbers, config=config)
    ahead = [int(file.read_text()) for file in tmp_path.iterdir()]
    assert summary.items == rows
    assert max(ahead) == room + 1  # one item waits for room


def test_attempt_leaves_nothing_in_a_reused_worker(spark: SparkSession, tmp_path: Path) -> None:
    def handlers(task: TaskInfo) -> dict[str, Any]:
        threads = len(os.listdir("/proc/self/task"))
        (tmp_path / task.attempt).write_text(f"{time.monotonic()} {os.getpid()} {threads}")
        return {"a": len}

    for _ in range(4):
        data = spark.range(0, 10, 1, 2).selectExpr("id", "'a' as kind")
        for_each_partition(data, handlers, type_column="kind")
    by_worker: dict[str, list[str]] = {}
    for line in sorted(
        (file.read_text() for file in tmp_path.iterdir()), key=lambda line: float(line.split()[0])
    ):
        _, worker, threads = line.split()
        by_worker.setdefault(worker, []).append(threads)
    assert max(map(len, by_worker.values())) > 1  # a worker was reused
    # The first attempt of a worker may be the first to import Arrow, which has its own threads.
    assert all(len(set(threads[1:])) <= 1 for threads in by_worker.values())


def test_failed_handler_gets_no_more_batches_so_that_positions_stay(
    spark: SparkSession, tmp_path: Path
) -> None:
    """A batch is missing; the next ones in the queue would be written with its keys."""
    room, rows = 10, 200
    config: BatchQueueConfig[Any] = BatchQueueConfig(
        threads=ThreadPolicy.fixed(1), buffer_size=room, max_batch_items=room
    )
    database = tmp_path / "rows.db"
    create_keyed(database)
    first = Once(tmp_path / "failed")
    made: list[int] = []

    def numbers(batch: pa.RecordBatch) -> Iterator[int]:
        for number in batch.column("id").to_pylist():
            made.append(number)
            yield number

    class Writer(KeyedWriter):
        def consume(self, batch: list[Any]) -> None:
            if first():
                deadline = time.monotonic() + DEADLINE_S
                while len(made) <= len(batch) + room and time.monotonic() < deadline:
                    time.sleep(0.001)
                raise ConnectionError("before anything is written")
            super().consume([pa.RecordBatch.from_pydict({"id": batch})])

    def handlers(task: TaskInfo) -> dict[type, Any]:
        return {int: Writer(database, "number", task)}

    summary = for_each_partition(
        spark.range(0, rows, 1, 1), handlers, items=numbers, config=config, query_id="q", epoch=0
    )
    assert summary.attempts == 2
    assert read_keyed(database) == [(number, "number") for number in range(rows)]


def test_methods_of_one_object_are_never_entered_concurrently(
    spark: SparkSession, tmp_path: Path
) -> None:
    """As bound methods, and as one handler of several tags whose `on_close` is called once."""

    class Writer:
        def __init__(self, log: Path) -> None:
            self.inside = threading.Lock()
            self.log = log

        def consume(self, batch: list[pa.RecordBatch]) -> None:
            entered_alone = self.inside.acquire(blocking=False)
            with self.log.open("a") as log:
                print(entered_alone, file=log)
            if entered_alone:
                threading.Event().wait(0.01)  # a second thread would enter here
                self.inside.release()

        def on_order(self, batch: list[pa.RecordBatch]) -> None:
            self.consume(batch)

        def on_refund(self, batch: list[pa.RecordBatch]) -> None:
            self.consume(batch)

    class Closing(Writer):
        def on_close(self) -> None:
            with self.log.open("a") as log:
                print("closed", file=log)

    def bound(task: TaskInfo) -> dict[str, Any]:
        writer = Writer(tmp_path / f"bound-{task.attempt}")
        return {"order": writer.on_order, "refund": writer.on_refund}

    def single(task: TaskInfo) -> dict[str, Any]:
        return dict.fromkeys(("order", "refund"), Closing(tmp_path / f"single-{task.attempt}"))

    def both(task: TaskInfo) -> dict[str, Any]:
        writer = Writer(tmp_path / f"both-{task.attempt}")
        return {"order": writer.on_order, "refund": writer}

    config: BatchQueueConfig[Any] = BatchQueueConfig(
        threads=ThreadPolicy.fixed(2), partitions=PartitionPolicy.fixed(2), buffer_size=10
    )
    data = spark.range(0, 500, 1, 1).selectExpr("id", "if(id % 2 = 0, 'order', 'refund') as kind")
    for handlers in (bound, single, both):
        for_each_partition(data, handlers, type_column="kind", config=config)
    for name in ("bound", "both"):
        (by_method,) = tmp_path.glob(f"{name}-*")
        assert set(by_method.read_text().split()) == {"True"}
    (by_object,) = tmp_path.glob("single-*")
    *calls, last = by_object.read_text().split()
    assert (set(calls), last) == ({"True"}, "closed")
