"""Helpers of the tests of the Parquet store."""

from collections.abc import Iterable
from pathlib import Path

from batchqueue.aggregation import CountMetrics, Metrics, Ranking, SumMetrics, metric_type
from batchqueue.outputs import ParquetStore

DAY = 86_400
COUNT = metric_type("test.count", CountMetrics)
OTHER_COUNT = metric_type("test.other_count", CountMetrics)
TOTAL = metric_type("test.total", SumMetrics, columns={"total": int})
WORST = metric_type("test.worst", Ranking, limit=3)


def merge(store: ParquetStore, metrics: Iterable[Metrics], sink_id: str = "default") -> None:
    with store.transaction(sink_id) as transaction:
        transaction.merge(metrics)


def data_files(store: ParquetStore) -> set[Path]:
    return set(store.directory.glob("*/*.parquet"))
