"""`AggregationJob.prepare`: what happens to the batches of a task before `items` and `arrow`."""

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from batchqueue import ConfigError
from batchqueue.aggregation import Aggregation, Count, CountMetrics, metric_type
from batchqueue.outputs import SqliteStore
from batchqueue.spark import AggregationJob, ArrowAggregation, MetricsWriter
from batchqueue.spark.task.attempt import aggregate

ROWS = metric_type("rows", CountMetrics)
BY_NAME = Aggregation(keys=["name"], measures={"rows": Count()})
BATCHES = [
    pa.RecordBatch.from_pydict({"name": ["a", "b", "a"], "n": [1, -1, 2]}),
    pa.RecordBatch.from_pydict({"name": ["c", "c"], "n": [-1, -2]}),
]


def items(rows: pa.RecordBatch) -> Iterator[CountMetrics]:
    for name in rows["name"].to_pylist():
        yield ROWS(name, 0)


def groups(rows: pa.RecordBatch) -> Iterator[CountMetrics]:
    for row in rows.to_pylist():
        yield ROWS(row["name"], 0, row["rows"])


def positive(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield batch.filter(pc.field("n") > 0)
    yield pa.RecordBatch.from_pydict({"name": ["the end"], "n": [1]})


@pytest.mark.parametrize(
    "way",
    [
        {"items": items},
        {"arrow": [ArrowAggregation(aggregation=BY_NAME, metrics=groups)]},
    ],
    ids=["items", "arrow"],
)
def test_items_and_arrow_get_what_prepare_returns(store: SqliteStore, way) -> None:
    job = AggregationJob(name="rows", metrics=[ROWS], store=store, prepare=positive, **way)
    partials, summary = aggregate(job, BATCHES, "prepared")
    assert {each.entity: each.count for each in partials} == {"a": 2, "the end": 1}
    assert summary.rows == 5, "rows of Spark, and not those that are left"


def test_error_in_prepare_fails_the_attempt(store: SqliteStore) -> None:
    def broken(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield next(batches)
        raise ArithmeticError("no more of these")

    job = AggregationJob(name="rows", metrics=[ROWS], store=store, items=items, prepare=broken)
    with pytest.raises(ArithmeticError, match="no more of these"):
        aggregate(job, BATCHES, "prepared")


def test_prepare_that_cannot_be_called_is_refused(store: SqliteStore) -> None:
    with pytest.raises(ConfigError, match="prepare of job 'rows' is 'n > 0'; give a function"):
        AggregationJob(
            name="rows",
            metrics=[ROWS],
            store=store,
            items=items,
            prepare="n > 0",  # type: ignore[arg-type]
        )


def test_spark_sql_does_not_run_prepare(store: SqliteStore) -> None:
    step = ArrowAggregation(aggregation=BY_NAME, metrics=groups)
    job = AggregationJob(name="rows", metrics=[ROWS], store=store, arrow=[step], prepare=positive)
    with pytest.raises(ConfigError, match="cannot run the function `prepare` of job 'rows'"):
        MetricsWriter(job, l1="spark")
