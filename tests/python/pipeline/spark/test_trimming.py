"""What a source on Spark may trim: Spark commits an epoch when it plans the next one."""

from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from batchqueue.outputs import SqliteStore
from batchqueue.pipeline import MetricsSink, Pipeline
from batchqueue.pipeline.spark.pipeline import SparkPipeline
from spark_support.faulty_store import BEFORE_THE_END, FaultyStore
from spark_support.numbered_rows import (
    BY_CITY,
    ORDERS,
    REVENUE,
    NumberedRows,
    oracle,
    revenue,
    stored,
)
from spark_support.pyspark_version import VERSION
from spark_support.retried import retried

pytestmark = [
    pytest.mark.timeout(900),
    pytest.mark.skipif(VERSION < (4, 2), reason="sources on Spark need pyspark 4.2"),
]

ROWS = 2_500


class Trimming(NumberedRows):
    """Removes all below what was committed, and fails if that is asked for once more."""

    def commit(self, end):
        super().commit(end)
        self.note("calls", "commit", end["row"])

    def plan(self, start, limit):
        self.check(start["row"])
        plan = super().plan(start, limit)
        self.note("calls", "plan", start["row"], plan.end["row"])
        return plan

    def between(self, start, end):
        self.check(start["row"])
        self.note("calls", "between", start["row"], end["row"])
        return super().between(start, end)

    def read(self, split):
        self.check(split.start["row"])
        self.note("calls", "read", split.start["row"])
        return super().read(split)

    def check(self, row):
        trimmed = max((int(call[2]) for call in self.noted("commit")), default=0)
        assert row >= trimmed, f"row {row} is asked for, and all below {trimmed} was removed"

    def calls(self) -> list[tuple[str, list[int]]]:
        return [(call[2], [int(row) for row in call[3:]]) for call in self.noted("calls")]


def fail() -> None:
    raise OSError("the disk is full")


def test_epoch_is_committed_behind_the_next_plan_and_nothing_below_is_asked_for_again(
    spark: SparkSession, tmp_path: Path
):
    (tmp_path / "notes").mkdir()
    source, store = Trimming(ROWS, notes=tmp_path / "notes"), SqliteStore(tmp_path / "metrics.db")

    def into(store) -> SparkPipeline:
        flow = Pipeline("revenue", checkpoint=str(tmp_path / "state"))
        sink = MetricsSink(store, revenue, sink_id="shop", metrics=[ORDERS, REVENUE])
        flow.source(source).aggregate(BY_CITY).to(sink)
        return flow.on_spark(spark, first_epoch_rows=500, max_epoch_rows=1_000)

    # The third epoch is read, and its effects are lost.
    broken = into(FaultyStore(store, BEFORE_THE_END, 2, fail))
    with pytest.raises(StreamingQueryException, match="disk is full"):
        retried(broken.run)
    before = source.calls()
    retried(into(store).run)

    assert stored(store, "shop") == oracle(ROWS)
    ends = [0]
    for epoch in store.summaries("shop"):
        ends.append(ends[-1] + epoch.summary["rows"])
    calls = source.calls()
    committed = [rows[0] for word, rows in calls if word == "commit"]
    # Each epoch in turn; the last one is committed only if Spark plans once more behind it.
    assert committed == sorted(committed)
    assert sorted(set(committed)) in (ends[1:-1], ends[1:])
    for at, (word, rows) in enumerate(calls):
        if word == "commit":
            earlier = [begin for call, (begin, *_) in calls[:at] if call == "plan"]
            later = [begin for call, (begin, *_) in calls[at + 1 :] if call != "commit"]
            assert rows[0] in earlier
            assert not [begin for begin in later if begin < rows[0]]
    # What was before the lost epoch could be removed, and the epoch comes once more.
    assert max(rows[0] for word, rows in before if word == "commit") == ends[2]
    assert ("between", ends[2:4]) in calls[len(before) :]
