"""Keys of several columns in every way of L1, in all stores, against Spark SQL."""

import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import date
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from batchqueue import ConfigError
from batchqueue.aggregation import (
    Aggregation,
    Count,
    CountMetrics,
    Metrics,
    Ranking,
    Sum,
    SumMetrics,
    Window,
    metric_type,
)
from batchqueue.outputs import ParquetStore, SqliteStore
from batchqueue.spark import (
    AggregationJob,
    ArrowAggregation,
    DeadLetters,
    MetricsWriter,
    SinkError,
    dry_run,
    register,
)
from spark_support.pyspark_version import needs_batch_sink

KEYS = {"origin": str, "stops": int, "day": date, "late": bool}
FLIGHTS = metric_type("flights", CountMetrics, keys=KEYS)
CENTS = metric_type("cents", SumMetrics, columns={"total": int}, keys=KEYS)
SLOWEST = metric_type("slowest", Ranking, limit=2, keys=KEYS)

HOUR = 3_600
STEP = ArrowAggregation(
    keys=KEYS, time=Window("at", HOUR), metrics={FLIGHTS: Count(), CENTS: Sum("cents")}
)


@pytest.fixture(scope="module")
def flights(spark: SparkSession) -> DataFrame:
    """900 flights with 168 keys in 5 hours."""
    return (
        spark.range(900)
        .selectExpr(
            "element_at(array('JFK', 'ä|\\\\', '', 'a|b', '\\\\', '|'), int(id % 6) + 1) AS origin",
            "CAST(id % 7 - 3 AS int) AS stops",
            "date_add(DATE'2024-03-09', int(id % 2)) AS day",
            "id % 5 = 0 AS late",
            "timestamp_seconds(1700000000 + id * 20) AS at",
            "id * 10000000000 AS cents",
            "concat('flight ', id) AS name",
        )
        .repartition(3)
    )


def by_spark_sql(flights: DataFrame) -> set[tuple[Any, ...]]:
    hour = F.expr(f"unix_seconds(at) - unix_seconds(at) % {HOUR}").alias("hour")
    found = flights.groupBy(hour, *KEYS).agg(F.count("*"), F.sum("cents"))
    return set(map(tuple, found.collect()))


def stored(store: Any, *sink_ids: str) -> set[tuple[Any, ...]]:
    """Return hour, keys, count and cents as the columns of the tables have them."""

    def by_key(metric: type[Metrics], column: str) -> dict[tuple[Any, ...], int]:
        tables = [store.read_table(metric, sink_id).to_pylist() for sink_id in sink_ids]
        rows = [row for table in tables for row in table]
        found = {tuple(row[key] for key in ("time_bucket", *KEYS)): row[column] for row in rows}
        assert len(found) == len(rows)
        return found

    counts, cents = by_key(FLIGHTS, "count"), by_key(CENTS, "total")
    assert counts.keys() == cents.keys()
    return {(*key, counts[key], cents[key]) for key in counts}


def job(store: Any, step: ArrowAggregation = STEP, **changes: Any) -> AggregationJob:
    return AggregationJob(name="flights", arrow=[step], store=store, **changes)


@pytest.mark.parametrize("l1", ["tasks", "spark"])
def test_declared_metrics_by_several_columns_are_equal_to_spark_sql(
    flights: DataFrame, any_store: Any, l1: Any
) -> None:
    writer = MetricsWriter(job(any_store), l1=l1)
    writer.write_batch(flights)
    expected = by_spark_sql(flights)
    assert len(expected) > 168
    assert stored(any_store, "flights") == expected
    writer.write_batch(flights)
    assert stored(any_store, "flights") == by_spark_sql(flights.unionAll(flights))


def items(batch: pa.RecordBatch) -> Iterator[Metrics]:
    for row in batch.to_pylist():
        key = (row["origin"], row["stops"], row["day"], row["late"])
        hour = int(row["at"].timestamp()) // HOUR * HOUR
        yield FLIGHTS(key, hour)
        yield CENTS(key, hour, row["cents"])
        yield SLOWEST(key, hour, row["cents"], row["name"])


def test_items_and_rankings_by_several_columns_are_equal_to_spark_sql(
    flights: DataFrame, any_store: Any
) -> None:
    by_items = AggregationJob(
        name="flights", items=items, metrics=[FLIGHTS, CENTS, SLOWEST], store=any_store
    )
    MetricsWriter(by_items).write_batch(flights)
    assert stored(any_store, "flights") == by_spark_sql(flights)
    ranked = any_store.read_table(SLOWEST, "flights", keys={"origin": ["a|b"]}).to_pylist()
    hour = F.expr(f"unix_seconds(at) - unix_seconds(at) % {HOUR}")
    flights.withColumn("time_bucket", hour).createOrReplaceTempView("ranked_flights")
    expected = flights.sparkSession.sql(
        "SELECT * FROM (SELECT time_bucket, row_number() OVER (PARTITION BY time_bucket, origin, "
        "stops, day, late ORDER BY cents DESC) AS rank, origin, stops, day, late, "
        "double(cents) AS score, name AS id FROM ranked_flights WHERE origin = 'a|b') "
        "WHERE rank <= 2"
    )
    found = {tuple(row[name] for name in expected.columns) for row in ranked}
    assert found == set(map(tuple, expected.collect()))


def by_function(groups: pa.RecordBatch) -> Iterator[Metrics]:
    for row in groups.to_pylist():
        key = (row["origin"], row["stops"], row["day"], row["late"])
        hour = int(row["at"].timestamp())
        yield FLIGHTS(key, hour, row["flights"])
        yield CENTS(key, hour, row["cents"])


@pytest.mark.parametrize("l1", ["tasks", "spark"])
def test_shards_and_functions_have_the_same_keys(
    flights: DataFrame, parquet: ParquetStore, l1: Any
) -> None:
    aggregation = Aggregation(
        keys=list(KEYS),
        window=Window("at", HOUR),
        measures={"flights": Count(), "cents": Sum("cents")},
    )
    step = ArrowAggregation(aggregation=aggregation, metrics=by_function)
    writer = MetricsWriter(job(parquet, step, metrics=[FLIGHTS, CENTS]), l1=l1, shards=3)
    writer.write_batch(flights)
    assert stored(parquet, *writer.sink_ids) == by_spark_sql(flights)
    declared = MetricsWriter(job(parquet), l1=l1, shards=3)
    declared.write_batch(flights)
    assert stored(parquet, *writer.sink_ids) == by_spark_sql(flights.unionAll(flights))


@needs_batch_sink
def test_format_reads_key_columns_and_selects_by_them(
    spark: SparkSession, flights: DataFrame, any_store: Any
) -> None:
    name = register(spark, job(any_store))
    flights.write.format(name).mode("append").save()
    reader = spark.read.format(name).option("metric", "cents")
    read = reader.load()
    types = {field.name: field.dataType.simpleString() for field in read.schema}
    assert types == {
        "entity": "string",
        "time_bucket": "bigint",
        "origin": "string",
        "stops": "bigint",
        "day": "date",
        "late": "boolean",
        "total": "bigint",
        "compensation": "double",
    }
    wanted = {"origin": ["a|b", ""], "stops": 2, "day": ["2024-03-10"], "late": [False]}
    selected = reader.option("keys", json.dumps(wanted)).load()
    condition = "origin IN ('a|b', '') AND stops = 2 AND day = DATE'2024-03-10' AND NOT late"
    total = flights.where(condition).agg(F.sum("cents")).collect()[0][0]
    assert selected.agg(F.sum("total")).collect()[0][0] == total > 0
    for keys, words in (
        ("[]", r"option keys='\[\]': give a JSON object"),
        ('{"day": "10 March"}', "day is '10 March', a str, and the key column is of date"),
        ('{"goal": "a"}', "has 'goal', and metric cents has the key columns origin, stops"),
    ):
        with pytest.raises(Exception, match=words):
            reader.option("keys", keys).load()


def rows(**columns: Any) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(columns)


def counts(step: ArrowAggregation, batch: pa.RecordBatch) -> dict[tuple[Any, ...], int]:
    found = dry_run(job(SqliteStore("metrics.db"), step), [batch])
    return {item.key_values: item.count for item in found}  # type: ignore[attr-defined]


def test_list_of_several_keys_makes_key_columns_of_text() -> None:
    step = ArrowAggregation(keys=["city", "number"], metrics={"rows": Count()})
    assert step.types["rows"].key_columns == {"city": str, "number": str}
    found = counts(step, rows(city=["a|", "a|", "\\"], number=[1, 1, 2]))
    assert found == {("a|", "1"): 2, ("\\", "2"): 1}


def test_dates_of_all_years_are_keys() -> None:
    days = [date.min, date.max]
    step = ArrowAggregation(keys={"day": date}, metrics={"rows": Count()})
    assert counts(step, rows(day=days)) == {(day,): 1 for day in days}
    by_generator = ArrowAggregation(
        keys=(name for name in ["a", "b"]),  # type: ignore[arg-type]
        metrics={"rows": Count()},
    )
    assert counts(by_generator, rows(a=["x"], b=["y"])) == {("x", "y"): 1}


def test_single_key_with_a_type_is_a_key_column() -> None:
    step = ArrowAggregation(keys={"number": int}, metrics={"rows": Count()})
    assert counts(step, rows(number=pa.array([7, 8, 7], pa.int8()))) == {(7,): 2, (8,): 1}


@pytest.mark.parametrize("null_keys", ["skip", {"city": "unknown"}])
def test_null_keys_are_left_out_or_renamed(null_keys: Any) -> None:
    step = ArrowAggregation(
        keys={"city": str, "number": int}, metrics={"rows": Count()}, null_keys=null_keys
    )
    batch = rows(city=["a", None, "a"], number=[1, 1, 1])
    renamed = {} if null_keys == "skip" else {("unknown", 1): 1}
    assert counts(step, batch) == {("a", 1): 2} | renamed
    with pytest.raises(
        SinkError, match=r"key column 'city' .* is null in 1 group.*null_keys='skip'"
    ):
        counts(replace(step, null_keys=None), batch)


@pytest.mark.parametrize(
    ("kind", "values", "words"),
    [
        (int, pa.array([2**64 - 1], pa.uint64()), "'key', declared as int, has a value of type"),
        (date, pa.array([3_663_000], pa.date32()), "'key' has a date before .* or after 9999"),
        (str, [b"\xff"], "'key' .* has a text that is not UTF-8.*leave such rows out"),
    ],
)
def test_key_that_does_not_fit_is_named(kind: type, values: Any, words: str) -> None:
    step = ArrowAggregation(keys={"key": kind}, metrics={"rows": Count()})
    with pytest.raises(SinkError, match=words):
        counts(step, rows(key=values))


@pytest.mark.parametrize(
    ("kind", "values", "shown"),
    [
        (int, ["1"], "string"),
        (int, [1.0], "double"),
        (bool, [1], "int64"),
        (date, ["2024-03-10"], "string"),
    ],
)
def test_key_of_another_type_is_named(kind: type, values: Any, shown: str) -> None:
    step = ArrowAggregation(keys={"key": kind}, metrics={"rows": Count()})
    words = rf"'key' is an? {shown}, .* as a key declared as {kind.__name__}, which takes.*cast it"
    with pytest.raises(ConfigError, match=words):
        counts(step, rows(key=values))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"metrics": {FLIGHTS: Count()}, "keys": ["origin"]}, r"'flights' has .* step \(none\)"),
        (
            {"metrics": {FLIGHTS: Count()}, "keys": ["origin", "stops"]},
            "'flights' has the key columns origin str, stops int.* step origin str, stops str:",
        ),
        (
            {"metrics": {FLIGHTS: Count()}, "keys": dict(reversed(KEYS.items()))},
            "origin str, stops int, day date, late bool.* step late bool, day date, stops int",
        ),
        ({"metrics": {"n": Count()}, "keys": {"a", "b"}}, "give a list of column names"),
        ({"metrics": {"n": Count()}, "keys": {"a": float}}, "'a' of metric 'n' is of type"),
        ({"metrics": {"n": Count()}, "keys": {"count": str}}, "'n' has two columns 'count'"),
        ({"metrics": {"n": Count()}, "keys": ["a", "a"]}, "keys"),
    ],
)
def test_declarations_that_cannot_be_are_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        ArrowAggregation(**settings)


@pytest.mark.parametrize("name", ["flight no", "rank", "entity"])
def test_key_column_that_no_store_can_have_is_refused(store: SqliteStore, name: str) -> None:
    step = ArrowAggregation(keys=["origin", name], metrics={"rows": Count()})
    with pytest.raises(ConfigError, match=r"cannot be the name of a|are reserved"):
        job(store, step)


def test_job_with_other_keys_is_a_changed_job(flights: DataFrame, store: SqliteStore) -> None:
    fewer = ArrowAggregation(
        keys=["origin", "stops"], time=Window("at", HOUR), metrics={"flights": Count()}
    )
    MetricsWriter(job(store, fewer)).write_batch(flights)
    with pytest.raises(SinkError, match=r"'flights' was count_metrics_by_origin_stops .* is count"):
        MetricsWriter(job(store)).write_batch(flights)


def odd_items(batch: pa.RecordBatch) -> Iterator[Metrics]:
    for row in batch.to_pylist():
        yield FLIGHTS((row["origin"], row["stops"], row["day"], None if row["late"] else False), 0)


def test_row_without_a_key_is_a_bad_row(flights: DataFrame, store: SqliteStore) -> None:
    by_items = AggregationJob(
        name="flights",
        items=odd_items,
        metrics=[FLIGHTS],
        store=store,
        on_bad_row=DeadLetters(),
    )
    MetricsWriter(by_items).write_batch(flights)
    late = flights.where("late").count()
    (summary,) = store.summaries("flights")
    assert summary.summary["bad_rows"] == late
    assert sum(item.count for item in store.read(FLIGHTS, "flights")) == 900 - late
