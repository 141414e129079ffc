"""One job, four ways, all equal to Spark SQL: objects, Arrow handlers, aggregators, Spark SQL."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from batchqueue import ConfigError
from batchqueue.aggregation import (
    Aggregation,
    Count,
    First,
    Last,
    MergeBuffer,
    Metrics,
    Quantiles,
    Sum,
    Window,
)
from batchqueue.outputs import SqliteStore
from batchqueue.spark import (
    AggregationJob,
    ArrowAggregation,
    ArrowHandler,
    MetricsWriter,
    SinkError,
)
from batchqueue.spark.steps import Emit
from spark_support.flight_job import (
    ARROW,
    DECLARED,
    DISTANCE,
    FILES,
    METRICS,
    NO_RANKING,
    SCHEMA,
    WORST,
    Results,
    difference,
    expected,
    files_one_by_one,
    flight_job,
    items,
    start_stream,
    stored,
)
from spark_support.pyspark_version import needs_stream_sink


class MergingHandler:
    """A user's own handler on Arrow."""

    def __init__(self, emit: Emit) -> None:
        self._emit = emit
        self._buffer = MergeBuffer()

    def consume(self, batches: list[pa.RecordBatch]) -> None:
        for batch in batches:
            self._buffer.accept_all(items(batch))

    def on_close(self) -> None:
        self._emit(self._buffer.drain())


ALL_ROWS: dict[str, Any] = {"type_column": None, "tags": ()}
IN_TWO_STEPS = [replace(ARROW, tags=["A"]), replace(ARROW, tags=["B", "C"])]
DECLARED_IN_TWO_STEPS = [replace(DECLARED, tags=["A"]), replace(DECLARED, tags=["B", "C"])]
BY_TAG = ArrowHandler(type_column="carrier", tags=list("ABC"), make=MergingHandler)

Wanted = tuple[type[Metrics], ...]
WAYS: dict[str, tuple[dict[str, Any], Wanted]] = {
    "objects": ({}, METRICS),
    "arrow handlers by tag": ({"items": None, "arrow": [BY_TAG]}, METRICS),
    "arrow handlers, all rows": ({"items": None, "arrow": [replace(BY_TAG, **ALL_ROWS)]}, METRICS),
    "aggregators by tag": ({"items": None, "arrow": [ARROW]}, METRICS),
    "aggregators, all rows": ({"items": None, "arrow": [replace(ARROW, **ALL_ROWS)]}, METRICS),
    "aggregators by one column": ({"items": None, "arrow": IN_TWO_STEPS}, METRICS),
    "spark by tag": ({"items": None, "arrow": [DECLARED]}, NO_RANKING),
    "spark, all rows": ({"items": None, "arrow": [replace(DECLARED, **ALL_ROWS)]}, NO_RANKING),
    "spark by one column": ({"items": None, "arrow": DECLARED_IN_TWO_STEPS}, NO_RANKING),
}


def place(way: str) -> Any:
    return "spark" if way.startswith("spark") else "tasks"


def only(results: Results, wanted: Wanted) -> Results:
    return {metric.name: results[metric.name] for metric in wanted}


@pytest.mark.parametrize("way", WAYS)
def test_batch_is_equal_to_spark_sql(
    spark: SparkSession, flights: Path, table: DataFrame, store: SqliteStore, way: str
) -> None:
    changes, wanted = WAYS[way]
    writer = MetricsWriter(flight_job(store, **changes), l1=place(way))
    summary = writer.write_batch(table.repartition(3), txn_id="a")
    assert (summary["applied"], summary["guarantee"], summary["rows"]) == (
        True,
        "exactly-once",
        table.count(),
    )
    assert summary["partials"] > 0
    assert summary["l1_ratio"] == round(
        (summary["items"] or summary["rows"]) / summary["partials"], 2
    )
    again = writer.write_batch(table, txn_id="a")
    assert again == {**summary, "applied": False}
    assert difference(stored(store), only(expected(spark, flights), wanted)) == []


Stream = Callable[..., None]


@pytest.mark.parametrize("way", ["objects", "aggregators by tag", "spark by tag"])
def test_stream_is_equal_to_spark_sql_even_if_an_epoch_is_replayed(
    spark: SparkSession, flights: Path, store: SqliteStore, stream: Stream, tmp_path: Path, way: str
) -> None:
    changes, wanted = WAYS[way]
    writer = MetricsWriter(flight_job(store, **changes), l1=place(way))
    stream(writer)
    for name in (f"{FILES - 1}", f".{FILES - 1}.crc"):
        (tmp_path / "checkpoint" / "commits" / name).unlink()
    stream(writer)
    assert difference(stored(store), only(expected(spark, flights), wanted)) == []
    assert [epoch.batch_id for epoch in store.summaries("flights")] == list(range(FILES))


@needs_stream_sink
def test_stream_may_change_between_the_format_and_the_writer(
    spark: SparkSession, flights: Path, store: SqliteStore, stream: Stream, tmp_path: Path
) -> None:
    """Both use one ledger, so the checkpoint decides what is next, whichever of them writes it."""
    job = flight_job(store, items=None, arrow=[replace(DECLARED, **ALL_ROWS)])
    checkpoint = tmp_path / "both"

    def with_format() -> None:
        start_stream(files_one_by_one(spark, flights), job, checkpoint).awaitTermination()

    def forget(epoch: int) -> None:
        for directory in ("commits", "offsets"):
            for name in (f"{epoch}", f".{epoch}.crc"):
                (checkpoint / directory / name).unlink(missing_ok=True)

    with_format()
    forget(FILES - 1)
    stream(MetricsWriter(job, l1="spark"), checkpoint)
    forget(FILES - 1)
    with_format()
    assert difference(stored(store), only(expected(spark, flights), NO_RANKING)) == []
    assert len(store.summaries("flights")) == FILES


def test_writer_refuses_a_new_checkpoint_as_the_format_does(
    store: SqliteStore, stream: Stream, tmp_path: Path
) -> None:
    job = flight_job(store)
    stream(MetricsWriter(job))
    before = stored(store)
    with pytest.raises(
        StreamingQueryException, match="is new, but sink 'flights' has results of others"
    ):
        stream(MetricsWriter(job), tmp_path / "another")
    stream(MetricsWriter(job, onNewQuery="replace"), tmp_path / "another")
    assert difference(stored(store), before) == []


def test_batch_without_a_txn_id_is_at_least_once_and_overwrite_replaces(
    table: DataFrame, store: SqliteStore
) -> None:
    writer = MetricsWriter(flight_job(store))
    assert writer.write_batch(table)["guarantee"] == "at-least-once"
    once = stored(store)
    assert writer.write_batch(table)["applied"]
    assert stored(store)["departures"] == {
        key: 2 * count for key, count in once["departures"].items()
    }
    writer.write_batch(table, overwrite=True)
    assert difference(stored(store), once) == []
    assert [epoch.summary["guarantee"] for epoch in store.summaries("flights")] == ["at-least-once"]


def test_write_epoch_outside_of_a_stream_is_refused(table: DataFrame, store: SqliteStore) -> None:
    with pytest.raises(SinkError, match=r"did not say which query.*foreachBatch"):
        MetricsWriter(flight_job(store)).write_epoch(table, 0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({}, "cannot run the function `items` of job 'flights'"),
        ({"items": None, "arrow": [BY_TAG]}, "cannot run the handler of an ArrowHandler"),
        ({"items": None, "arrow": [ARROW]}, "measure 'worst' of job 'flights' is a TopN"),
        (
            {
                "items": None,
                "arrow": [
                    replace(
                        ARROW,
                        aggregation=Aggregation(
                            keys=["carrier"], measures={"delays": Quantiles("delay", [0.5])}
                        ),
                    )
                ],
            },
            "measure 'delays' of job 'flights' is a Quantiles",
        ),
    ],
)
def test_what_spark_sql_has_not_is_rejected_immediately(
    store: SqliteStore, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        MetricsWriter(flight_job(store, **changes), l1="spark")


def test_options_are_checked_immediately(store: SqliteStore) -> None:
    job = flight_job(store)
    with pytest.raises(ConfigError, match="l1='rust': use 'auto', 'tasks' or 'spark'"):
        MetricsWriter(job, l1="rust")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="option 'sinkid_' is not known: did you mean sinkId"):
        MetricsWriter(job, sinkid_="x")
    with pytest.raises(ConfigError, match="maxCommitBytes='none'"):
        MetricsWriter(job, maxCommitBytes="none")


def test_blank_txn_id_is_rejected(table: DataFrame, store: SqliteStore) -> None:
    with pytest.raises(ConfigError, match="txn_id=' ' is blank"):
        MetricsWriter(flight_job(store)).write_batch(table, txn_id=" ")


def test_tag_that_no_step_names_fails_the_write(table: DataFrame, store: SqliteStore) -> None:
    job = flight_job(store, items=None, arrow=[replace(DECLARED, tags=["A", "B"])])
    others = table.where("carrier NOT IN ('A', 'B')").count()
    with pytest.raises(
        SinkError, match=f"{others} rows have a value of 'carrier' that is not in the step's tags"
    ):
        MetricsWriter(job, l1="spark").write_batch(table)
    assert store.summaries("flights") == []


def test_row_without_a_tag_fails_the_write(spark: SparkSession, store: SqliteStore) -> None:
    rows = spark.createDataFrame([("x", None, 0, 1.0, 1)], SCHEMA)
    job = flight_job(store, items=None, arrow=[DECLARED])
    with pytest.raises(SinkError, match="1 row has a value of 'carrier'"):
        MetricsWriter(job, l1="spark").write_batch(rows)


def totals(groups: pa.RecordBatch) -> Iterator[Metrics]:
    for total in groups.column(groups.num_columns - 1).to_pylist():
        yield DISTANCE("all", 0, total)


def summing(store: SqliteStore) -> AggregationJob:
    step = ArrowAggregation(
        aggregation=Aggregation(keys=[], measures={"distance": Sum("distance")}), metrics=totals
    )
    return flight_job(store, items=None, arrow=[step], columns=["distance"])


@pytest.mark.parametrize(
    ("ansi", "error", "message"),
    [
        # Spark 3.5 leaves this error as Java raised it.
        ("true", (PySparkException, Py4JJavaError), "ARITHMETIC_OVERFLOW"),
        ("false", SinkError, "the sum 'distance' of column 'distance' does not fit 64 bits"),
    ],
)
def test_sum_above_64_bits_fails_the_write_in_any_ansi_mode(
    spark: SparkSession, store: SqliteStore, ansi: str, error: Any, message: str
) -> None:
    rows = spark.range(3).selectExpr(f"{2**62} distance")
    spark.conf.set("spark.sql.ansi.enabled", ansi)
    try:
        with pytest.raises(error, match=message):
            MetricsWriter(summing(store), l1="spark").write_batch(rows)
    finally:
        spark.conf.unset("spark.sql.ansi.enabled")
    assert store.summaries("flights") == []


@pytest.mark.parametrize("l1", ["tasks", "spark"])
def test_no_rows_leave_no_metrics(spark: SparkSession, store: SqliteStore, l1: Any) -> None:
    """Without keys, SQL makes a group even of no rows."""
    rows = spark.range(0).selectExpr("id distance")
    summary = MetricsWriter(summing(store), l1=l1).write_batch(rows)
    assert (summary["rows"], summary["partials"]) == (0, 0)
    assert store.read(DISTANCE, "flights") == []


ODD_ROWS = """
    SELECT * FROM VALUES
      (timestamp'2026-01-01 00:59:59.999999', date'2025-12-31', -1, 'a', 1.5D, 1, 7),
      (timestamp'2026-01-01 00:00:00', date'1969-12-31', -3600, 'a', double('NaN'), 2, 8),
      (timestamp'1969-12-31 23:59:59', date'1970-01-01', 3599, 'a', -0.0D, 3, 9),
      (timestamp'2026-01-01 01:00:00', date'2026-01-01', 3600, NULL, 0.0D, 4, NULL),
      (timestamp'2026-01-01 01:30:00', date'2026-01-02', 7199, '', NULL, 5, 11),
      (CAST(NULL AS timestamp), CAST(NULL AS date), NULL, 'b', 2.5D, NULL, 12)
    AS t(at, day, second, name, value, nr, big)
"""


@pytest.mark.parametrize(
    ("keys", "window"),
    [
        ([], None),
        (["name"], None),
        (["value"], None),
        (["name", "nr"], None),
        (["name"], Window("at", 3600, "hour")),
        (["name"], Window("at", 0.5)),
        ([], Window("day", 7 * 86_400)),
        ([], Window("day", 7 * 86_400, offset_seconds=4 * 86_400, zone="America/New_York")),
        ([], Window("at", 3600, "hour", offset_seconds=0.25)),
        ([], Window("at", 86_400, zone="America/New_York", offset_seconds=21_600)),
        ([], Window("second", 86_400, zone="Australia/Lord_Howe")),
        ([], Window("second", 3600, "hour")),
    ],
    ids=str,
)
def test_groups_of_spark_sql_are_those_of_an_aggregator(
    spark: SparkSession, store: SqliteStore, keys: list[str], window: Window | None
) -> None:
    """Nulls, NaN, -0.0, times before 1970 and at bucket edges: the same values and types."""
    aggregation = Aggregation(
        keys=keys,
        window=window,
        measures={
            "rows": Count(),
            "names": Count("name"),
            "big": Sum("big"),
            "first": First("big", "nr"),
            "last": Last("name", "nr"),
        },
    )

    def note(groups: pa.RecordBatch) -> Iterator[Metrics]:
        rows = sorted(repr(list(row.values())) for row in groups.to_pylist())
        for number, row in enumerate(rows):
            yield WORST(
                "groups",
                0,
                float(number),
                f"{[str(data_type) for data_type in groups.schema.types]} {row}",
            )

    def groups(l1: Any, sink: str) -> list[tuple[float, str]]:
        ranking = flight_job(
            store,
            items=None,
            arrow=[ArrowAggregation(aggregation=aggregation, metrics=note)],
            columns=[],
        )
        MetricsWriter(ranking, l1=l1, sinkId=sink).write_batch(spark.sql(ODD_ROWS).coalesce(1))
        (found,) = store.read(WORST, sink)
        return [(entry.score, entry.id) for entry in found.entries]

    assert groups("spark", "sql") == groups("tasks", "tasks")


@pytest.mark.parametrize(
    ("window", "at", "message"),
    [
        (Window("at", 60), "date'2026-01-01'", r"of 60\.0 s of column 'at', a date: use"),
        (Window("at", 60, offset_seconds=0.5), "1", r"of 60\.0 s after 0\.5 s of column 'at', a"),
        (Window("at", 1e-9), "timestamp'2026-01-01'", "use a timestamp with whole microseconds"),
    ],
)
def test_window_that_spark_sql_cannot_cut_is_rejected(
    spark: SparkSession, store: SqliteStore, window: Window, at: str, message: str
) -> None:
    aggregation = Aggregation(keys=[], measures={"n": Count()}, window=window)
    step = ArrowAggregation(aggregation=aggregation, metrics=totals)
    job = flight_job(store, items=None, arrow=[step], columns=[])
    with pytest.raises(ConfigError, match=rf"cannot make buckets .*{message}"):
        MetricsWriter(job, l1="spark").write_batch(spark.sql(f"SELECT {at} at"))


@pytest.mark.parametrize("l1", ["tasks", "spark"])
def test_any_column_name_works(spark: SparkSession, store: SqliteStore, l1: Any) -> None:
    step = ArrowAggregation(
        aggregation=Aggregation(keys=["a.b"], measures={"n of `x`": Sum("c`d")}), metrics=totals
    )
    job = flight_job(store, items=None, arrow=[step], columns=["a.b"])
    rows = spark.sql("SELECT 1 `a.b`, 5 `c``d`, 2 e, 3 E")
    MetricsWriter(job, l1=l1).write_batch(rows)
    assert [item.total for item in store.read(DISTANCE, "flights")] == [5]
