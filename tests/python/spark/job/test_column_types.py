"""One table says which types a job may read for what; rows of Spark and of Arrow are read alike."""

from datetime import date
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import types as T

from batchqueue import ConfigError
from batchqueue.aggregation import (
    Aggregation,
    Count,
    CountMetrics,
    Distinct,
    DistinctSketch,
    First,
    Last,
    Max,
    MaxMetrics,
    Mean,
    MeanMetrics,
    Min,
    MinMetrics,
    QuantileBuckets,
    Quantiles,
    Sum,
    SumMetrics,
    TopN,
    Window,
    metric_type,
)
from batchqueue.outputs import SqliteStore
from batchqueue.spark import AggregationJob, ArrowAggregation, Watermark, dry_run
from batchqueue.spark.column_types import ACCEPTED, STORED, arrow_columns, check_rows, spark_columns
from spark_support.pyspark_version import needs_collations

TYPES: dict[str, list[tuple[Any, pa.DataType]]] = {
    "integer": [
        (T.ByteType(), pa.int8()),
        (T.ShortType(), pa.int16()),
        (T.IntegerType(), pa.int32()),
        (T.LongType(), pa.int64()),
    ],
    "float": [(T.FloatType(), pa.float32()), (T.DoubleType(), pa.float64())],
    "decimal": [(T.DecimalType(10, 2), pa.decimal128(10, 2))],
    "boolean": [(T.BooleanType(), pa.bool_())],
    "text": [(T.StringType(), pa.string()), (T.VarcharType(3), pa.large_string())],
    "binary": [(T.BinaryType(), pa.binary())],
    "date": [(T.DateType(), pa.date32())],
    "timestamp": [
        (T.TimestampType(), pa.timestamp("us", "UTC")),
        (T.TimestampNTZType(), pa.timestamp("us")),
    ],
    "duration": [(T.DayTimeIntervalType(), pa.duration("us"))],
    "array": [(T.ArrayType(T.LongType()), pa.list_(pa.int64()))],
    "map": [(T.MapType(T.LongType(), T.LongType()), pa.map_(pa.int64(), pa.int64()))],
    "struct": [
        (T.StructType([T.StructField("a", T.LongType())]), pa.struct([("a", pa.int64())])),
    ],
    "void": [(T.NullType(), pa.null())],
}
if hasattr(T, "TimeType"):  # since Spark 4.1
    TYPES["time"] = [(T.TimeType(), pa.time64("ns"))]


def of_measure(measure: Any) -> ArrowAggregation:
    made = Aggregation(keys=[], measures={"m": measure})
    return ArrowAggregation(aggregation=made, metrics=lambda groups: [])


def of_keys(keys: Any) -> ArrowAggregation:
    return ArrowAggregation(keys=keys, metrics={"m": Count()})


STEPS: dict[str, Any] = {
    "a key": of_keys(["x"]),
    "a key declared as str": of_keys({"x": str}),
    "a key declared as int": of_keys({"x": int}),
    "a key declared as bool": of_keys({"x": bool}),
    "a key declared as date": of_keys({"x": date}),
    "a Window or Watermark": ArrowAggregation(time=Window("x", 60), metrics={"m": Count()}),
    "type_column": ArrowAggregation(type_column="x", tags=["a"], metrics={"m": Count()}),
    "Count": of_measure(Count("x")),
    "Sum": of_measure(Sum("x")),
    "Mean": of_measure(Mean("x")),
    "Min": of_measure(Min("x")),
    "Max": of_measure(Max("x")),
    "First": of_measure(First("x", "x")),
    "Last": of_measure(Last("x", "x")),
    "TopN": of_measure(TopN("x", 3, label="x")),
    "Quantiles": of_measure(Quantiles("x", (0.5,))),
    "QuantileBuckets": of_measure(QuantileBuckets("x")),
    "Distinct": of_measure(Distinct("x")),
    "DistinctSketch": of_measure(DistinctSketch("x")),
}


def job(step: Any, **more: Any) -> AggregationJob:
    metrics = [metric_type("other", CountMetrics)]
    return AggregationJob(
        name="j", arrow=[step], metrics=metrics, store=SqliteStore("unused.db"), **more
    )


def rows(kind: Any, *names: str) -> Any:
    fields = [(name, kind) for name in names or ("x",)]
    if isinstance(kind, pa.DataType):
        return arrow_columns(pa.schema(fields))
    return spark_columns(T.StructType([T.StructField(*field) for field in fields]))


def test_every_use_is_tested() -> None:
    assert STEPS.keys() == ACCEPTED.keys()
    kinds = {kind for accepted in ACCEPTED.values() for kind in accepted}
    assert kinds <= TYPES.keys() | {"time"}


@pytest.mark.parametrize("use", ACCEPTED)
@pytest.mark.parametrize("kind", TYPES)
def test_types_outside_of_the_table_are_refused_and_named(use: str, kind: str) -> None:
    for each in (each for pair in TYPES[kind] for each in pair):
        columns = rows(each)
        if kind in ACCEPTED[use]:
            check_rows(job(STEPS[use]), columns)
            continue
        with pytest.raises(ConfigError) as refused:
            check_rows(job(STEPS[use]), columns)
        message = str(refused.value)
        for part in ("column 'x' is a", "which takes", columns[0].shown, ACCEPTED[use][-1]):
            assert part in message, message


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("stored", STORED)
def test_values_that_a_metric_does_not_store_are_refused(stored: type, kind: str) -> None:
    step = ArrowAggregation(
        metrics={metric_type("least", MinMetrics, columns={"value": stored}): Min("x")}
    )
    for each in (each for pair in TYPES[kind] for each in pair):
        if kind in STORED[stored]:
            check_rows(job(step), rows(each))
        else:
            with pytest.raises(ConfigError, match=r"which takes .*: (declare|give|cast)"):
                check_rows(job(step), rows(each))


def test_metrics_of_sums_name_the_declaration_that_stores_them() -> None:
    for kind, measure in ((SumMetrics, Sum("x")), (MeanMetrics, Mean("x")), (MaxMetrics, Max("x"))):
        for declared in ("m", metric_type("m", kind, columns={next(iter(kind.columns)): int})):
            step = ArrowAggregation(metrics={declared: measure})  # type: ignore[dict-item]
            with pytest.raises(ConfigError, match=r"metric 'm' stores .*decimal.* Decimal\}"):
                check_rows(job(step), rows(T.DecimalType(10, 2)))


def test_watermark_is_checked_as_a_window() -> None:
    hour = Window("x", 3600)
    made = job(ArrowAggregation(time=hour, metrics={"m": Count()}), watermark=Watermark(hour))
    check_rows(made, rows(T.TimestampType()))
    with pytest.raises(ConfigError, match="reads it as the time of the watermark, which takes"):
        check_rows(made, rows(T.StringType()))


def test_column_there_twice_is_refused_where_it_is_read() -> None:
    made = job(of_keys(["x"]))
    check_rows(made, rows(T.StringType(), "x", "y", "y"))
    with pytest.raises(ConfigError, match=r"the rows have 2 columns named 'x'.*rename or drop"):
        check_rows(made, rows(T.StringType(), "x", "x"))
    listed = job(of_keys(["x"]), columns=["y"])
    with pytest.raises(ConfigError, match="the rows have 2 columns named 'y'"):
        check_rows(listed, rows(T.StringType(), "x", "y", "y"))


def test_columns_that_spark_sql_does_not_distinguish_are_refused_where_both_are_read() -> None:
    both = ArrowAggregation(keys=["x"], metrics={"m": Count("X")})
    check_rows(job(of_keys(["x"])), rows(T.StringType(), "x", "X"))
    with pytest.raises(ConfigError, match="reads columns 'x' and 'X', which Spark SQL does not"):
        check_rows(job(both), rows(T.StringType(), "x", "X"))


def test_what_prepare_returns_is_checked_in_the_task() -> None:
    made = job(of_measure(Sum("x")), prepare=lambda batches: batches)
    check_rows(made, rows(T.StringType()))
    with pytest.raises(ConfigError, match="column 'x' is a string, and the job reads it as Sum"):
        list(dry_run(made, [pa.RecordBatch.from_pydict({"x": ["1"]})]))
    twice = pa.RecordBatch.from_arrays([pa.array([1]), pa.array([2])], ["x", "x"])
    with pytest.raises(ConfigError, match="2 columns named 'x'"):
        list(dry_run(made, [twice]))


def test_dictionaries_are_read_as_their_values() -> None:
    batch = pa.RecordBatch.from_pydict({"x": pa.array(["a", "b", "a"]).dictionary_encode()})
    assert sorted(item.key for item in dry_run(job(of_keys(["x"])), [batch])) == [
        ("a", 0),
        ("b", 0),
    ]


@needs_collations
@pytest.mark.parametrize("collation", ["UNICODE_CI", "UTF8_LCASE", "UTF8_BINARY_RTRIM"])
@pytest.mark.parametrize("use", ACCEPTED)
def test_collated_texts_are_refused_with_the_remedy(use: str, collation: str) -> None:
    columns = rows(T.StringType(collation))  # type: ignore[call-arg]
    if use == "Count":
        check_rows(job(STEPS[use]), columns)
        return
    with pytest.raises(ConfigError) as refused:
        check_rows(job(STEPS[use]), columns)
    assert collation in str(refused.value)
    if "text" in ACCEPTED[use]:
        assert "COLLATE UTF8_BINARY" in str(refused.value)
