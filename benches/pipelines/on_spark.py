"""Pipelines on Spark: how much of a sink they use, epochs behind a stall, and the work by hand."""

import itertools
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import ticking
import workload
from pyspark import cloudpickle
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from batchqueue.aggregation import Aggregation, Count, Metrics, Sum, SumMetrics, metric_type
from batchqueue.outputs import SqliteStore
from batchqueue.pipeline import FileSource, FunctionSink, MetricsSink, Pipeline, SparkSource
from batchqueue.pipeline.spark.epoch_size import EpochGoal, goal_seconds
from batchqueue.spark import AggregationJob, ArrowAggregation, MetricsWriter, local_session

SINK_RATE = 20_000
"""Rows that the paced sink takes each second."""

TOTALS = metric_type("totals", SumMetrics, columns={"total": int})
BY_TEXT = Aggregation(keys=["s"], measures={"rows": Count(), "n": Sum("n")})
UNLIMITED = {"first_epoch_rows": 10**7, "max_epoch_rows": 10**7, "target_epoch_ms": 3_600_000}


def paced(chunks: list[pa.RecordBatch]) -> None:
    """Take the time that a sink of `SINK_RATE` needs."""
    time.sleep(sum(chunk.num_rows for chunk in chunks) / SINK_RATE)


def totals(groups: pa.RecordBatch) -> Iterator[Metrics]:
    """Return a metric for each group."""
    for text, total in zip(groups["s"].to_pylist(), groups["n"].to_pylist(), strict=True):
        yield TOTALS(text, 0, total)


def positive(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Do by hand what a filter and a map of a pipeline do."""
    for batch in batches:
        yield workload.same(batch.filter(pc.field("n") >= 0))


@dataclass(frozen=True)
class Epoch:
    """An epoch, as Spark reports it."""

    rows: int
    began_s: float
    busy_s: float
    """Without the wait in `latestOffset`."""
    ended_s: float

    @property
    def fixed_s(self) -> float:
        """What it took beside the sink."""
        return self.busy_s - self.rows / SINK_RATE


class SparkBench:
    """The benches, in one session."""

    def __init__(self, folder: Path, rows: int) -> None:
        """Start Spark, and write what is read."""
        for module in (workload, ticking, sys.modules[__name__]):
            cloudpickle.register_pickle_by_value(module)
        self.folder = folder
        self.spark: SparkSession = local_session("pipelines", "local[2]")
        self._numbers = itertools.count()
        self._rows = rows
        self._small = [str(path) for path in workload.write_files(folder / "small", rows, 4, 1_000)]
        self._large = [str(path) for path in workload.write_files(folder / "large", rows)]

    def close(self) -> None:
        """Stop Spark."""
        self.spark.stop()

    def epochs(
        self,
        source: Any,
        until: Callable[[list[Epoch]], bool],
        while_running: Callable[[Any, list[Epoch]], None] = lambda *_: None,
        **options: Any,
    ) -> list[Epoch]:
        """Run a stream into the paced sink until a condition holds; return its epochs."""
        while True:
            try:
                return self._epochs(source, until, while_running, options)
            except StreamingQueryException as error:
                # Spark gives its workers 10 s to start; on a busy machine that is too short.
                if "failed to connect back" not in str(error):
                    raise

    def _epochs(
        self,
        source: Any,
        until: Callable[[list[Epoch]], bool],
        while_running: Callable[[Any, list[Epoch]], None],
        options: dict[str, Any],
    ) -> list[Epoch]:
        number = next(self._numbers)
        flow = Pipeline(f"bench {number}", checkpoint=str(self.folder / f"state {number}"))
        flow.source(source).to(FunctionSink(paced))
        # A single task, so that the sink is one that is busy or not.
        on_spark = flow.on_spark(self.spark, max_tasks=1, **options)
        run = on_spark.start()
        found: dict[int, Epoch] = {}
        try:
            while not until(list(found.values())):
                for progress in run.queries[0].recentProgress:
                    if progress["numInputRows"]:
                        found[progress["batchId"]] = _epoch(progress)
                while_running(on_spark, list(found.values()))
                if not run.isActive:
                    run.awaitTermination()
                    break
                time.sleep(0.5)  # reading the progress costs the driver some time
        finally:
            run.stop()
        return list(found.values())

    def of_our_size(self) -> list[Epoch]:
        """Return epochs of the size that the law finds."""
        return self.epochs(self._files(), lambda found: len(found) >= 14 or self._is_all(found))

    def of_a_limit(self, rows: int) -> list[Epoch]:
        """Return epochs of a fixed limit, as Spark's own sources have it."""
        options = {**UNLIMITED, "first_epoch_rows": rows, "max_epoch_rows": rows}
        return self.epochs(
            self._files(), lambda found: len(found) >= 6 or self._is_all(found), **options
        )

    def _is_all(self, epochs: list[Epoch]) -> bool:
        return sum(epoch.rows for epoch in epochs) >= self._rows // 4 * 4

    def _files(self) -> FileSource:
        return FileSource(self._small, name="files")

    def after_a_pause(self, stall_s: float, **options: Any) -> list[Epoch]:
        """Return the epochs of a stream of half the rate of its sink, the last one behind a pause.

        While it is paused, rows continue to come.
        """
        began: list[float] = []
        behind: list[int] = []

        def stall(on_spark: Any, found: list[Epoch]) -> None:
            if len(found) < 8:
                began.clear()
            elif not began:
                began.append(time.monotonic())
                on_spark.pause("a stall")
            elif not behind and time.monotonic() - began[0] > stall_s:
                behind.append(len(found))  # all that were planned before the pause have ended
                on_spark.resume()

        return self.epochs(
            ticking.TickingRows(SINK_RATE // 2, time.time()),
            lambda found: bool(behind) and len(found) > behind[0],
            stall,
            **options,
        )

    def beside_by_hand(self, rounds: int, *, reads_files: bool) -> tuple[float, float, float]:
        """Return the seconds of a pipeline, of the same by hand, and the median of the ratios."""
        table = self.spark.read.parquet(*self._large)
        ours, hand = [], []
        for number in range(rounds + 1):
            source = FileSource(self._large) if reads_files else SparkSource(table)
            pair = (self._pipeline(source), self._by_hand(table))
            if number:  # the first one warms up the JVM
                ours.append(pair[0])
                hand.append(pair[1])
        ratio = statistics.median(b / a for a, b in zip(ours, hand, strict=True))
        return statistics.median(ours), statistics.median(hand), ratio

    def _pipeline(self, source: Any) -> float:
        store = self._store()
        flow = Pipeline("totals")
        rows = flow.source(source).filter(pc.field("n") >= 0).map(workload.same)
        rows.aggregate(BY_TEXT).to(MetricsSink(store, totals, sink_id="bench", metrics=[TOTALS]))
        on_spark = flow.on_spark(self.spark)
        return self._timed(lambda: on_spark.run_batch("bench"), store)

    def _by_hand(self, table: Any) -> float:
        store = self._store()
        aggregation = ArrowAggregation(aggregation=BY_TEXT, metrics=totals)
        job = AggregationJob(name="by-hand", metrics=[TOTALS], store=store, arrow=[aggregation])
        writer = MetricsWriter(job, sinkId="bench")
        rows = table.mapInArrow(positive, table.schema)
        return self._timed(lambda: writer.write_batch(rows, txn_id="bench"), store)

    def _store(self) -> SqliteStore:
        store = SqliteStore(self.folder / f"{next(self._numbers)}.db")
        store.prepare()
        return store

    def _timed(self, work: Callable[[], object], store: SqliteStore) -> float:
        began = time.perf_counter()
        work()
        took = time.perf_counter() - began
        rows = self._rows // 4 * 4
        total = sum(found.total for found in store.read(TOTALS, "bench"))
        assert total == rows * (rows - 1) // 2, "the time of a wrong result is worthless"
        return took


def goal_s(epochs: list[Epoch]) -> float:
    """Return the seconds that an epoch should take, for the fixed cost of these."""
    return goal_seconds(EpochGoal(), statistics.median(epoch.fixed_s for epoch in epochs[1:]))


def tuned(epochs: list[Epoch]) -> int:
    """Return the limit that a user would find by trying: a tenth of the epoch is its fixed cost."""
    return round(9 * statistics.median(epoch.fixed_s for epoch in epochs) * SINK_RATE)


def used(epochs: list[Epoch]) -> float:
    """Return the share of a sink that epochs use, from the first one to the last one."""
    rows = sum(epoch.rows for epoch in epochs)
    return rows / SINK_RATE / (epochs[-1].ended_s - epochs[0].began_s)


def _epoch(progress: Any) -> Epoch:
    times = progress["durationMs"]
    began = datetime.fromisoformat(progress["timestamp"]).timestamp()
    took = times.get("triggerExecution", 0) / 1000
    waited = times.get("latestOffset", 0) / 1000
    return Epoch(progress["numInputRows"], began, took - waited, began + took)
