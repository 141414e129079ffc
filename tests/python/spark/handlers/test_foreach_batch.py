"""`foreach_batch`: every row of a stream reaches its handler, in batches by type."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, Row

from batchqueue import BatchQueueConfig, PartitionPolicy, RetryPolicy, ThreadPolicy
from batchqueue.spark import DeliverySummary, TaskInfo, for_each_partition, foreach_batch
from spark_support.deliveries import (
    FILES,
    KINDS,
    ROWS,
    ROWS_PER_FILE,
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

EachBatch = Callable[..., str]
ALL = sorted(ROWS.items())


def test_every_row_reaches_the_handler_of_its_tag_once_and_in_order(
    each_batch: EachBatch, tmp_path: Path
) -> None:
    query_id = each_batch(foreach_batch(recorders(tmp_path / "log"), type_column="kind"))
    batches = read(tmp_path / "log")
    assert delivered(batches) == ALL
    assert all(set(batch.kinds) == {batch.handler} for batch in batches)
    assert all(ids == sorted(ids) for ids in by_handler(batches).values())
    assert {batch.query_id for batch in batches} == {query_id}
    assert {batch.epoch for batch in batches} == set(range(FILES))
    for batch in batches:  # one file per epoch
        assert {number // ROWS_PER_FILE for number in batch.ids} == {batch.epoch}


def test_every_row_reaches_the_handler_of_its_items_class_once_and_in_order(
    each_batch: EachBatch, tmp_path: Path
) -> None:
    function = foreach_batch(item_recorders(tmp_path / "log"), items=items, columns=["id", "kind"])
    each_batch(function, change=lambda df: df.repartition(3, "id"))
    batches = read(tmp_path / "log")
    assert delivered(batches) == ALL
    assert all(set(batch.kinds) == {batch.handler} for batch in batches)
    assert {batch.partition for batch in batches} == {0, 1, 2}
    assert len({(batch.epoch, batch.partition) for batch in batches}) == FILES * 3
    assert len({batch.attempt for batch in batches}) == FILES * 3


def test_each_epoch_is_summarized_once(
    each_batch: EachBatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    summaries: list[DeliverySummary] = []
    function = foreach_batch(
        recorders(tmp_path / "log"), type_column="kind", on_summary=summaries.append
    )
    with caplog.at_level(logging.INFO, "batchqueue.spark"):
        query_id = each_batch(function)
    assert [(summary.query_id, summary.epoch) for summary in summaries] == [
        (query_id, epoch) for epoch in range(FILES)
    ]
    for summary in summaries:
        assert (summary.rows, summary.items, summary.partitions, summary.attempts) == (
            ROWS_PER_FILE,
            ROWS_PER_FILE,
            1,
            1,
        )
        assert (summary.failed, summary.refused, summary.unhandled, summary.abandoned) == (
            0,
            0,
            0,
            0,
        )
        # A sample, which misses rows that are handled immediately.
        assert 0 <= summary.peak_used_percent <= 100
        assert summary.seconds > 0
    lines = [record.getMessage() for record in caplog.records if record.name == "batchqueue.spark"]
    assert len(lines) == FILES
    assert lines[0].startswith(
        f"query {query_id}, epoch 0: 300 rows delivered as 300 items from 1 partition,"
    )


def failing_once(
    once: Once, make: Callable[[TaskInfo], dict[str, Any]]
) -> Callable[[TaskInfo], dict[str, Any]]:
    """The refund handler fails after its work, in the very first attempt."""

    def handlers(task: TaskInfo) -> dict[str, Any]:
        made = make(task)
        refunds = made["refund"]

        def consume(batch: list[pa.RecordBatch]) -> None:
            refunds.consume(batch)
            if once():
                raise ValueError("only once")

        return {**made, "refund": consume}

    return handlers


def test_failed_attempt_is_repeated_and_an_idempotent_handler_ends_with_exact_totals(
    each_batch: EachBatch, tmp_path: Path
) -> None:
    database = tmp_path / "rows.db"
    create_keyed(database)
    seen = tmp_path / "seen"
    seen.mkdir()
    summaries: list[DeliverySummary] = []

    def make(task: TaskInfo) -> dict[str, Any]:
        (seen / task.attempt).touch()
        return {kind: KeyedWriter(database, kind, task) for kind in KINDS}

    handlers = failing_once(Once(tmp_path / "failed"), make)
    each_batch(foreach_batch(handlers, type_column="kind", on_summary=summaries.append))
    assert read_keyed(database) == ALL
    assert len(list(seen.iterdir())) == FILES + 1
    assert [summary.attempts for summary in summaries] == [2, *[1] * (FILES - 1)]


def test_rows_of_a_failed_attempt_come_again_without_idempotence(
    each_batch: EachBatch, tmp_path: Path
) -> None:
    once = Once(tmp_path / "failed")

    class Failing(Recorder):
        def consume(self, batch: list[pa.RecordBatch]) -> None:
            super().consume(batch)
            if once():
                raise ValueError("only once")

    each_batch(
        foreach_batch(
            lambda task: {kind: Failing(tmp_path / "log", kind, task) for kind in KINDS},
            type_column="kind",
        )
    )
    found = delivered(read(tmp_path / "log"))
    assert set(found) == set(ALL)
    assert len(found) > len(ALL)


def test_handler_that_always_raises_fails_the_query_which_continues_once_it_is_fixed(
    each_batch: EachBatch, tmp_path: Path
) -> None:
    def broken(task: TaskInfo) -> dict[str, Any]:
        if task.epoch != 2:
            return recorders(tmp_path / "log")(task)

        def fail(_: list[pa.RecordBatch]) -> None:
            raise ArithmeticError(f"the sky fell on {task.epoch}")

        return dict.fromkeys(KINDS, fail)

    with pytest.raises(StreamingQueryException) as info:
        each_batch(foreach_batch(broken, type_column="kind"))
    assert "partition 0 is not delivered" in str(info.value)
    assert "first error: ArithmeticError: the sky fell on 2" in str(info.value)
    assert {batch.epoch for batch in read(tmp_path / "log")} == {0, 1}
    each_batch(foreach_batch(recorders(tmp_path / "log"), type_column="kind"))
    assert delivered(read(tmp_path / "log")) == ALL


def test_summary_function_that_raises_fails_the_query(
    each_batch: EachBatch, tmp_path: Path
) -> None:
    def refuse(summary: DeliverySummary) -> None:
        raise ArithmeticError(f"{summary.rows} rows are not enough")

    function = foreach_batch(recorders(tmp_path / "log"), type_column="kind", on_summary=refuse)
    with pytest.raises(StreamingQueryException, match="ArithmeticError: 300 rows are not enough"):
        each_batch(function)


def test_replayed_epoch_has_the_same_names_and_rows(each_batch: EachBatch, tmp_path: Path) -> None:
    checkpoint = tmp_path / "checkpoint"
    three = {"change": lambda df: df.repartition(3, "id")}
    each_batch(
        foreach_batch(recorders(tmp_path / "first"), type_column="kind"), checkpoint, **three
    )
    for name in (f"{FILES - 1}", f".{FILES - 1}.crc"):
        (checkpoint / "commits" / name).unlink()
    each_batch(
        foreach_batch(recorders(tmp_path / "again"), type_column="kind"), checkpoint, **three
    )

    def named(directory: Path) -> dict[tuple[Any, ...], list[int]]:
        found: dict[tuple[Any, ...], list[int]] = {}
        for batch in read(directory):
            key = (batch.query_id, batch.epoch, batch.partition, batch.handler)
            found.setdefault(key, []).extend(batch.ids)
        return found

    first, again = named(tmp_path / "first"), named(tmp_path / "again")
    assert again == {key: ids for key, ids in first.items() if key[1] == FILES - 1}
    attempts = [{batch.attempt for batch in read(tmp_path / name)} for name in ("first", "again")]
    assert not attempts[0] & attempts[1]


def test_epoch_that_was_delivered_but_not_recorded_by_spark_is_delivered_again(
    each_batch: EachBatch, tmp_path: Path
) -> None:
    def stop(summary: DeliverySummary) -> None:
        if summary.epoch == 1:
            raise KeyError("stop here")

    log, checkpoint = tmp_path / "log", tmp_path / "checkpoint"
    with pytest.raises(StreamingQueryException, match="stop here"):
        each_batch(foreach_batch(recorders(log), type_column="kind", on_summary=stop), checkpoint)
    assert {batch.epoch for batch in read(log)} == {0, 1}
    each_batch(foreach_batch(recorders(log), type_column="kind"), checkpoint)
    found = delivered(read(log))
    assert set(found) == set(ALL)
    assert len(found) == len(ALL) + ROWS_PER_FILE
    assert len({batch.query_id for batch in read(log)}) == 1


def test_epochs_and_partitions_without_rows_make_no_handlers(
    each_batch: EachBatch, tmp_path: Path
) -> None:
    summaries: list[DeliverySummary] = []
    function = foreach_batch(
        recorders(tmp_path / "log"), type_column="kind", on_summary=summaries.append
    )
    each_batch(
        function,
        change=lambda df: df.where("id < 3 or id = 700").selectExpr("*").repartition(5, "kind"),
    )
    batches = read(tmp_path / "log")
    assert delivered(batches) == [(number, ROWS[number]) for number in (0, 1, 2, 700)]
    assert [summary.rows for summary in summaries] == [3, 0, 1, 0]
    assert [summary.partitions for summary in summaries] == [5] * FILES
    assert len(list((tmp_path / "log").iterdir())) == len(KINDS) * len(
        {batch.attempt for batch in batches}
    )


def test_rows_without_a_handler_fail_the_query_and_the_tag_is_named(
    each_batch: EachBatch, tmp_path: Path
) -> None:
    def handlers(task: TaskInfo) -> dict[str, Any]:
        return {kind: Recorder(tmp_path / "log", kind, task) for kind in ("order", "refund")}

    message = (
        "column 'kind' has a row with 'visit', and there are handlers for 'order', 'refund' only:"
        " add one, or"
    )
    with pytest.raises(StreamingQueryException, match=message):
        each_batch(foreach_batch(handlers, type_column="kind"))
    assert read(tmp_path / "log") == []


def test_items_without_a_handler_fail_the_query_and_the_classes_with_one_are_named(
    each_batch: EachBatch,
) -> None:
    def handlers(_: TaskInfo) -> dict[type, Any]:
        return {str: len, int: len}

    with pytest.raises(StreamingQueryException) as info:
        each_batch(foreach_batch(handlers, items=items))
    message = str(info.value)
    assert "lost 300 of 300 items (0 failed, 0 refused, 300 without a handler (" in message
    assert "spark_support.deliveries.Order" in message
    assert "every class of items needs a handler, and there are those for str, int" in message


def test_missing_column_fails_the_query_before_any_task_runs(
    each_batch: EachBatch, tmp_path: Path
) -> None:
    for arguments in ({"items": items, "columns": ["id", "Kind"]}, {"type_column": "Kind"}):
        with pytest.raises(
            StreamingQueryException,
            match="the handlers need column Kind, but the rows have id, kind",
        ):
            each_batch(foreach_batch(recorders(tmp_path / "log"), **arguments))
    assert not (tmp_path / "log").exists()


def test_retries_are_kept_to_the_last_batch_and_spark_sees_no_failure(
    each_batch: EachBatch, tmp_path: Path
) -> None:
    """The waits between retries are longer than all else; a queue that cut them would fail."""
    config: BatchQueueConfig[Any] = BatchQueueConfig(
        threads=ThreadPolicy.fixed(1),
        partitions=PartitionPolicy.fixed(1),
        retry=RetryPolicy(attempts=2, backoff_ms=1_000),
    )

    def handlers(task: TaskInfo) -> dict[str, Any]:
        import time

        failed: list[float] = []

        def consume(batch: list[pa.RecordBatch]) -> None:
            failed.append(time.monotonic())
            if failed[-1] - failed[0] < 0.9:
                raise ValueError("still down")
            recorder.consume(batch)

        recorder = Recorder(tmp_path / "log", "visit", task)
        return {"visit": consume, "order": recorder}

    summaries: list[DeliverySummary] = []
    function = foreach_batch(
        handlers, type_column="kind", config=config, on_summary=summaries.append
    )
    each_batch(function, change=lambda df: df.where("id < 300 and kind = 'visit'"))
    expected = [row for row in ALL if row[0] < 300 and row[1] == "visit"]
    assert delivered(read(tmp_path / "log")) == expected
    assert {summary.attempts for summary in summaries} == {1}


def test_users_own_function_may_deliver_a_dataframe_and_an_rdd_of_one_epoch(
    each_batch: EachBatch, tmp_path: Path
) -> None:
    def rows_of(directory: Path) -> Callable[[TaskInfo], dict[type, Any]]:
        def handlers(task: TaskInfo) -> dict[type, Any]:
            recorder = Recorder(directory, "row", task)

            class Rows:
                def consume(self, batch: list[Row]) -> None:
                    recorder.write([row.kind for row in batch], [row.id for row in batch])

                def on_close(self) -> None:
                    recorder.on_close()

            return {Row: Rows()}

        return handlers

    summaries: list[DeliverySummary] = []

    def function(df: DataFrame, epoch: int) -> None:
        summaries.append(for_each_partition(df, recorders(tmp_path / "df"), type_column="kind"))
        summaries.append(for_each_partition(df.rdd, rows_of(tmp_path / "rdd")))

    query_id = each_batch(function)
    assert delivered(read(tmp_path / "df")) == ALL
    by_rdd = read(tmp_path / "rdd")
    assert (
        sorted((n, k) for batch in by_rdd for n, k in zip(batch.ids, batch.kinds, strict=True))
        == ALL
    )
    assert {(batch.query_id, batch.epoch) for batch in by_rdd} == {
        (query_id, epoch) for epoch in range(FILES)
    }
    assert [(summary.query_id, summary.epoch) for summary in summaries] == [
        (query_id, n) for n in range(FILES) for _ in "12"
    ]
