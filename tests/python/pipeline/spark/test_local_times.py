"""Times without a zone: a graph gives the same on Spark as in one process.

The sink of an `AggregationJob` reads them in the session's zone, as a `SparkSource` does; the sink
of a graph does not.
"""

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from batchqueue.aggregation import Aggregation, Count, CountMetrics, metric_type
from batchqueue.outputs import SqliteStore
from batchqueue.pipeline import IterableSource, MetricsSink, Pipeline
from spark_support.pyspark_version import VERSION

pytestmark = pytest.mark.skipif(VERSION < (4, 2), reason="sources on Spark need pyspark 4.2")

VISITS = metric_type("visits", CountMetrics)
SCHEMA = pa.schema([("at", pa.timestamp("us"))])
# In New York the clock skipped the hour of the second one.
CLOCK = ["2024-03-10 01:30", "2024-03-10 02:30", "2024-03-10 03:30"]
ROWS = pa.table({"at": pa.array(CLOCK).cast(SCHEMA.field("at").type)})


def by_text(rows: pa.RecordBatch) -> Iterator[CountMetrics]:
    for row in rows.to_pylist():
        yield VISITS(str(row["at"]), 0, row.get("visits", 1))


def same(rows: pa.RecordBatch) -> pa.RecordBatch:
    return rows


@pytest.fixture(autouse=True)
def _in_new_york(spark: SparkSession) -> Iterator[None]:
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    yield
    spark.conf.set("spark.sql.session.timeZone", "UTC")


def visits(flow: Pipeline, source, store: SqliteStore, *, maps: bool, aggregates: bool) -> Pipeline:
    rows = flow.source(source, name="rows")
    if maps:
        rows = rows.map(same)
    if aggregates:
        rows = rows.aggregate(Aggregation(keys=["at"], measures={"visits": Count()}))
    rows.to(MetricsSink(store, by_text, sink_id="visits", metrics=[VISITS]))
    return flow


@pytest.mark.parametrize("aggregates", [False, True], ids=["rows", "groups"])
@pytest.mark.parametrize("maps", [False, True], ids=["from the source", "behind a map"])
def test_wall_clock_of_a_graph_is_the_same_on_spark(
    spark: SparkSession, tmp_path: Path, aggregates: bool, maps: bool
) -> None:
    made = {"maps": maps, "aggregates": aggregates}
    local = IterableSource(lambda: iter(ROWS.to_batches()), schema=SCHEMA, name="rows")
    stores = [SqliteStore(tmp_path / name) for name in ("here.db", "on spark.db")]
    here, on_spark = (visits(Pipeline("visits"), local, store, **made) for store in stores)
    here.run()
    on_spark.on_spark(spark).run_batch("once")
    wanted = {str(at): 1 for at in ROWS["at"].to_pylist()}
    assert len(wanted) == 3
    for store in stores:
        found = {visit.entity: visit.count for visit in store.read(VISITS, "visits")}
        assert found == wanted
