"""Bad rows of a job with `DeadLetters`: each is stored once, in the transaction of its epoch."""

import json
import logging
import os
import random
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from batchqueue.aggregation import Aggregation, Count, CountMetrics, Metrics, metric_type
from batchqueue.outputs import BadRows, ParquetStore, SqliteStore
from batchqueue.spark import (
    AggregationJob,
    ArrowAggregation,
    DeadLetters,
    MetricsWriter,
    SinkError,
    register,
)
from batchqueue.spark.commit.commit import EpochCommit
from batchqueue.spark.options import SinkOptions
from batchqueue.spark.task.attempt import run_attempt
from batchqueue.spark.task.message import AttemptMessage, EpochId
from spark_support.pyspark_version import needs_batch_sink

HITS = metric_type("hits", CountMetrics)
DAY = 86_400
TASKS, ROWS = 2, 50
BAD = {f"x{n}" for n in range(0, ROWS, 5)}
"""Texts of a task's rows that are not numbers."""

OPTIONS = SinkOptions(sink_id="pages", on_new_query=None, txn_id=None, max_commit_bytes=1_000_000)


def items(rows: pa.RecordBatch) -> Iterator[Metrics]:
    for text in rows["number"].to_pylist():
        yield HITS("page", int(text) % 2 * DAY)


KEEPING = DeadLetters()


def job(store: Any, on_bad_row: Any = KEEPING, **changes: Any) -> AggregationJob:
    settings = {"name": "pages", "items": items, "metrics": [HITS], "store": store}
    return AggregationJob(**{**settings, "on_bad_row": on_bad_row, **changes})


TEXTS = [f"{'x' if not n % 5 else ''}{n}" for n in range(ROWS)]


FIRST = EpochId("q1", 0)


def attempts(of: AggregationJob, epoch: EpochId | None = FIRST) -> list[AttemptMessage]:
    rows = pa.RecordBatch.from_pydict({"number": TEXTS})
    return [run_attempt(of, OPTIONS, [rows], epoch) for _ in range(TASKS)]


def kept(store: Any, sink_id: str = "pages") -> list[str]:
    stored = store.read(BadRows, sink_id)
    return sorted(json.loads(row.row_json)["number"] for item in stored for row in item.rows)


def hits(store: Any, sink_id: str = "pages") -> int:
    return sum(item.count for item in store.read(HITS, sink_id))


def test_each_bad_row_is_kept_once_and_counted(
    any_store: Any, caplog: pytest.LogCaptureFixture
) -> None:
    for epoch in (0, 0, 1):
        messages = attempts(job(any_store), EpochId("q1", epoch))
        EpochCommit(job(any_store), OPTIONS, messages).apply_epoch(epoch)
    assert kept(any_store) == sorted([*BAD] * TASKS * 2)
    assert hits(any_store) == (ROWS - len(BAD)) * TASKS * 2
    first, second = (summary for _, _, summary in any_store.summaries("pages"))
    assert first["bad_rows"] == second["bad_rows"] == len(BAD) * TASKS
    assert second["totals"]["bad_rows"] == 2 * len(BAD) * TASKS
    assert first["bad_row_error"].startswith("ValueError: invalid literal for int")
    warned = [line for line in caplog.records if line.levelno == logging.WARNING]
    assert len(warned) == 2
    assert "100 rows, 20 bad rows (ValueError: invalid literal" in warned[0].getMessage()


def test_skipped_rows_are_counted_only(any_store: Any) -> None:
    skipping = job(any_store, "skip")
    EpochCommit(skipping, OPTIONS, attempts(skipping)).apply_epoch(0)
    ((_, _, summary),) = any_store.summaries("pages")
    assert summary["bad_rows"] == len(BAD) * TASKS
    assert (kept(any_store), hits(any_store)) == ([], (ROWS - len(BAD)) * TASKS)


def test_rule_may_change_between_epochs(store: SqliteStore) -> None:
    for epoch, rule in enumerate(("skip", DeadLetters(), DeadLetters(limit=99), "skip")):
        changed = job(store, rule)
        messages = attempts(changed, EpochId("q1", epoch))
        EpochCommit(changed, OPTIONS, messages).apply_epoch(epoch)
    assert kept(store) == sorted([*BAD] * TASKS * 2)


def test_days_computed_again_keep_the_bad_rows_and_add_those_of_the_repair(any_store: Any) -> None:
    batches = job(any_store)
    EpochCommit(batches, OPTIONS, attempts(batches, None)).apply_batch(overwrite=False)
    today = int(time.time()) // DAY * DAY
    again = replace(OPTIONS, replaced=range(-DAY, today + 2 * DAY))
    EpochCommit(batches, again, attempts(batches, None)).apply_batch(overwrite=False)
    assert hits(any_store) == (ROWS - len(BAD)) * TASKS
    assert kept(any_store) == sorted([*BAD] * TASKS * 2)


def test_retention_deletes_those_that_were_met_before(any_store: Any) -> None:
    streaming = job(any_store)
    EpochCommit(streaming, OPTIONS, attempts(streaming)).apply_epoch(0)
    (errors,) = any_store.read(BadRows, "pages")[:1]
    assert any_store.delete(before=errors.time_bucket, sink_id="pages") == 2  # the hits
    assert any_store.delete(before=int(time.time()) + 1, sink_id="pages") == len(BAD) * TASKS
    assert kept(any_store) == []


def test_killed_commit_leaves_results_and_bad_rows_of_the_same_epochs(any_store: Any) -> None:
    """The commit, in a child, is killed at any moment."""
    chance = random.Random(7)
    streaming = job(any_store)
    messages = attempts(streaming)

    def commit(epoch: int) -> None:
        moved = [replace(message, epoch=EpochId("q1", epoch)) for message in messages]
        EpochCommit(streaming, OPTIONS, moved).apply_epoch(epoch)

    commit(0)  # the store exists before the first kill
    for epoch in range(1, 12):
        child = os.fork()
        if child == 0:
            signal.signal(signal.SIGALRM, lambda *_: os.kill(os.getpid(), signal.SIGKILL))
            signal.setitimer(signal.ITIMER_REAL, chance.uniform(0.001, 0.2))
            commit(epoch)
            os._exit(0)
        os.waitpid(child, 0)
        applied = len(any_store.summaries("pages"))
        assert applied in (epoch, epoch + 1)
        for commits in (applied, epoch + 1):
            assert len(kept(any_store)) == commits * len(BAD) * TASKS
            assert hits(any_store) == commits * (ROWS - len(BAD)) * TASKS
            commit(epoch)


def test_writer_keeps_them_in_one_sink_or_in_shards(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    df = spark.createDataFrame([(text,) for text in TEXTS], "number string").repartition(3)
    for shards in (None, 3):
        store = ParquetStore(tmp_path / f"shards-{shards}")
        writer = MetricsWriter(job(store), shards=shards)
        summary = writer.write_batch(df, txn_id="once")
        (warning,) = [record for record in caplog.records if record.levelname == "WARNING"]
        assert f"{len(BAD)} bad rows (ValueError" in warning.getMessage()
        writer.write_batch(df, txn_id="once")
        caplog.clear()
        assert sum(hits(store, sink) for sink in writer.sink_ids) == ROWS - len(BAD)
        found = sorted(text for sink in writer.sink_ids for text in kept(store, sink))
        assert found == sorted(BAD)
        of_shards = summary.get("shards", [summary])
        assert sum(shard["bad_rows"] for shard in of_shards) == summary["bad_rows"] == len(BAD)
        writer.write_batch(df, overwrite=True)
        assert sum(len(kept(store, sink)) for sink in writer.sink_ids) == len(BAD)
        caplog.clear()


@needs_batch_sink
def test_format_keeps_them_and_spark_reads_them(spark: SparkSession, store: SqliteStore) -> None:
    df = spark.createDataFrame([(text,) for text in TEXTS], "number string")
    name = register(spark, job(store))
    df.write.format(name).mode("append").save()
    for registered in (name, register(spark, job(store, "fail"))):
        bad = spark.read.format(registered).option("metric", "bad_rows").load()
        found = bad.selectExpr("from_json(row_json, 'number string').number n", "error").collect()
        assert {row.n for row in found} == BAD
        assert all(row.error.startswith("ValueError") for row in found)


def tagged(store: Any, on_bad_row: Any, kinds: pa.Array) -> tuple[AggregationJob, pa.RecordBatch]:
    step = ArrowAggregation(
        type_column="kind",
        tags=["1", "2"],
        aggregation=Aggregation(keys=["kind"], measures={"hits": Count()}),
        metrics=lambda groups: (
            HITS(str(row["kind"]), 0, row["hits"]) for row in groups.to_pylist()
        ),
    )
    rows = pa.RecordBatch.from_pydict({"kind": kinds})
    return job(store, on_bad_row, items=None, arrow=[step]), rows


KINDS = [1, 2, 3, None, 1, 3]


@pytest.mark.parametrize(
    "kinds",
    [
        pa.array(KINDS),
        pa.array([kind and str(kind) for kind in KINDS]),
        pa.array([kind and str(kind) for kind in KINDS]).dictionary_encode(),
    ],
    ids=["integers", "text", "dictionary"],
)
def test_rows_with_a_tag_of_no_step_are_set_apart(store: SqliteStore, kinds: pa.Array) -> None:
    keeping, rows = tagged(store, DeadLetters(), kinds)
    message = run_attempt(keeping, OPTIONS, [rows, rows], None)
    EpochCommit(keeping, OPTIONS, [message]).apply_batch(overwrite=False)
    assert {item.entity: item.count for item in store.read(HITS, "pages")} == {"1": 4, "2": 2}
    (errors,) = store.read(BadRows, "pages")
    assert errors.entity == "UnknownTag"
    assert len(errors.rows) == message.summary.bad_rows == 6
    assert {str(json.loads(row.row_json)["kind"]) for row in errors.rows} == {"3", "None"}
    assert errors.rows[0].error.endswith("which is not a tag of a step: 1, 2")


def test_rows_with_a_tag_of_no_step_fail_by_default(store: SqliteStore) -> None:
    failing, rows = tagged(store, "fail", pa.array(KINDS))
    with pytest.raises(SinkError, match="every tag in one of `arrow`"):
        run_attempt(failing, OPTIONS, [rows], None)
