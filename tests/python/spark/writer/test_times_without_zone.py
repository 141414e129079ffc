"""TIMESTAMP_NTZ, which pandas writes: read in the session's zone, never in that of the worker."""

import os
import time
from collections.abc import Iterator
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from batchqueue.aggregation import Aggregation, Count, CountMetrics, Metrics, Window, metric_type
from batchqueue.outputs import MetricsStore, ParquetStore, SqliteStore
from batchqueue.spark import AggregationJob, ArrowAggregation, MetricsWriter, dry_run, register
from batchqueue.spark.task.arrow import batches_with_instants
from spark_support.pyspark_version import needs_batch_sink, needs_stream_sink

HITS = metric_type("hits", CountMetrics)
NEW_YORK = "America/New_York"

# Three hours of the day on which New York's clock skipped the one from 2 to 3, and a time that it
# skipped; then the hour that it showed twice.
CLOCK = ["2024-03-10 00:30", "2024-03-10 01:30", "2024-03-10 03:30", "2024-03-10 02:30"]
CLOCK += ["2024-11-03 00:30", "2024-11-03 01:30", "2024-11-03 02:30"]


def instant(text: str) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(NEW_YORK)).timestamp())


def wanted() -> dict[tuple[str, int], int]:
    counts: dict[tuple[str, int], int] = {}
    for text in CLOCK:
        # As a worker in New York has it, and as Spark casts it: 2:30 was an hour later.
        second = instant(text)
        counts["all", second - second % 3_600] = counts.get(("all", second - second % 3_600), 0) + 1
    return counts


def items(rows: pa.RecordBatch) -> Iterator[Metrics]:
    assert os.environ["TZ"] == "Asia/Tokyo", "the worker is not where the test wants it"
    assert time.tzname[0] == "JST"
    for at in rows["at"].to_pylist():
        second = int(at.timestamp())
        yield HITS("all", second - second % 3_600)


def hits(groups: pa.RecordBatch) -> Iterator[Metrics]:
    for row in groups.to_pylist():
        yield HITS("all", int(row["hour"].timestamp()), row["rows"])


DECLARED = ArrowAggregation(
    aggregation=Aggregation(
        keys=[], window=Window("at", 3_600, "hour"), measures={"rows": Count()}
    ),
    metrics=hits,
)


def job(store: MetricsStore, way: dict[str, Any]) -> AggregationJob:
    return AggregationJob(name="hits", metrics=[HITS], store=store, columns=["at"], **way)


def stored(store: MetricsStore, sink_ids: list[str]) -> dict[tuple[str, int], int]:
    return {item.key: item.count for sink in sink_ids for item in store.read(HITS, sink)}


@pytest.fixture(autouse=True)
def _far_apart(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The session is in New York, its workers are in Tokyo."""
    monkeypatch.setitem(spark.sparkContext.environment, "TZ", "Asia/Tokyo")
    spark.conf.set("spark.sql.session.timeZone", NEW_YORK)
    yield
    spark.conf.set("spark.sql.session.timeZone", "UTC")


@pytest.fixture
def clock(spark: SparkSession) -> DataFrame:
    rows = ", ".join(f"(timestamp_ntz'{text}:00')" for text in CLOCK)
    return spark.sql(f"SELECT * FROM VALUES {rows} AS t(at)").repartition(3)


WAYS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "items": ({"items": items}, {}),
    "aggregation": ({"arrow": [DECLARED]}, {"l1": "tasks"}),
    "spark": ({"arrow": [DECLARED]}, {"l1": "spark"}),
    "items in shards": ({"items": items}, {"shards": 2}),
    "spark in shards": ({"arrow": [DECLARED]}, {"l1": "spark", "shards": 2}),
}


@pytest.mark.parametrize("way", WAYS)
def test_writer_reads_times_in_the_zone_of_the_session(
    clock: DataFrame, store: SqliteStore, parquet: ParquetStore, way: str
) -> None:
    made, options = WAYS[way]
    to = parquet if "shards" in options else store
    writer = MetricsWriter(job(to, made), **options)
    assert writer.write_batch(clock)["rows"] == len(CLOCK)
    assert stored(to, writer.sink_ids) == wanted()


@needs_batch_sink
@pytest.mark.parametrize("way", ["items", "aggregation"])
@pytest.mark.parametrize("since", ["register", "later"])
def test_format_reads_times_in_the_zone_of_the_session(
    spark: SparkSession, clock: DataFrame, store: SqliteStore, way: str, since: str
) -> None:
    if since == "later":
        spark.conf.set("spark.sql.session.timeZone", "Europe/Berlin")
    name = register(spark, job(store, WAYS[way][0]))
    spark.conf.set("spark.sql.session.timeZone", NEW_YORK)
    clock.write.format(name).mode("append").save()
    assert stored(store, ["hits"]) == wanted()


@needs_stream_sink
def test_stream_reads_times_in_the_zone_of_the_session(
    spark: SparkSession, clock: DataFrame, store: SqliteStore, tmp_path: Any
) -> None:
    clock.write.parquet(str(tmp_path / "rows"))
    name = register(spark, job(store, {"items": items}))
    rows = spark.readStream.schema("at timestamp_ntz").parquet(str(tmp_path / "rows"))
    for sink, stream in (
        ("hits", rows.writeStream.format(name)),
        ("epochs", rows.writeStream),
    ):
        if sink == "epochs":
            writer = MetricsWriter(job(store, {"items": items}), sinkId=sink)
            stream = stream.foreachBatch(writer.write_epoch)
        stream = stream.option("checkpointLocation", str(tmp_path / sink))
        stream.trigger(availableNow=True).start().awaitTermination()
        assert stored(store, [sink]) == wanted()


@needs_batch_sink
@pytest.mark.parametrize("way", ["writer", "format"])
def test_times_inside_of_other_types_are_read_too(
    spark: SparkSession, clock: DataFrame, store: SqliteStore, way: str
) -> None:
    nested = clock.selectExpr(
        "at",
        "array(at) list",
        "named_struct('at', at, 'nr', 1) struct",
        "map('at', array(at)) map",
        "at `a.b`",
    )

    def check(rows: pa.RecordBatch) -> Iterator[Metrics]:
        for row in rows.to_pylist():
            ((_, (in_map,)),) = row["map"]
            assert {row["list"][0], row["struct"]["at"], in_map, row["a.b"]} == {row["at"]}
        yield from items(rows)

    checked = job(store, {"items": check})
    if way == "writer":
        MetricsWriter(checked).write_batch(nested)
    else:
        nested.write.format(register(spark, checked)).mode("append").save()
    assert stored(store, ["hits"]) == wanted()


@needs_batch_sink
def test_zone_that_only_java_knows_is_refused_where_a_time_needs_it(
    spark: SparkSession, clock: DataFrame, store: SqliteStore
) -> None:
    spark.conf.set("spark.sql.session.timeZone", "GMT+9")
    name = register(spark, job(store, {"items": items}))
    with pytest.raises(PySparkException, match=r"'at' holds times without a zone.*'GMT\+9' is not"):
        clock.coalesce(1).write.format(name).mode("append").save()
    spark.range(1).selectExpr("CAST(NULL AS int) at").write.format(
        register(spark, job(store, {"items": lambda rows: iter([])}))
    ).mode("append").save()


def test_dry_run_reads_times_in_the_zone_that_it_is_given(store: SqliteStore) -> None:
    times = pa.array([datetime.fromisoformat(text) for text in CLOCK], pa.timestamp("us"))
    rows = pa.RecordBatch.from_pydict({"at": times})

    def by_hour(batch: pa.RecordBatch) -> Iterator[Metrics]:
        for at in batch["at"].to_pylist():
            yield HITS("all", int(at.timestamp()) // 3_600 * 3_600)

    tried = job(store, {"items": by_hour})
    assert {item.key: item.count for item in dry_run(tried, [rows], zone=NEW_YORK)} == wanted()
    utc = {int(at.timestamp()) for at in times.cast(pa.timestamp("us", "UTC")).to_pylist()}
    found = {item.time_bucket for item in dry_run(tried, [rows])}
    assert found == {second - second % 3_600 for second in utc}


def test_required_dictionary_with_a_null_among_its_values_is_read() -> None:
    """pyarrow makes such batches, and no other column matters for the times."""
    texts = pa.DictionaryArray.from_arrays(pa.array([0, 1]), pa.array(["a", None]))
    times = pa.array([datetime(2024, 3, 10, 0, 30)] * 2, pa.timestamp("us"))
    schema = pa.schema([pa.field("text", texts.type, nullable=False), ("at", times.type)])
    batch = pa.RecordBatch.from_arrays([texts, times], schema=schema)
    [read] = batches_with_instants([batch], NEW_YORK)
    assert read["at"].type == pa.timestamp("us", NEW_YORK)
    assert read["text"].to_pylist() == ["a", None]
