"""Rows whose metrics the store cannot hold: left out, kept or refused alike, whatever L1 is."""

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from batchqueue.aggregation import (
    Aggregation,
    Count,
    CountMetrics,
    Max,
    MaxMetrics,
    Mean,
    Metrics,
    Sum,
    Window,
    metric_type,
)
from batchqueue.outputs import BadRows, ParquetStore, PostgresStore, SqliteStore
from batchqueue.spark import (
    AggregationJob,
    ArrowAggregation,
    ArrowHandler,
    DeadLetters,
    MetricsWriter,
)
from batchqueue.spark.steps import Emit
from outputs_support.postgres_server import PostgresServer

HITS = metric_type("hits", CountMetrics)
LONGEST = 2_600 - len("hits") - len("pages")
PAGES: dict[str, bytes | None] = {
    "a": b"a",
    "with two rows": b"a",
    "long": b"l" * LONGEST,
    "too long": b"l" * (LONGEST + 1),
    "NUL": b"a\0",
    "not UTF-8": b"\xffa",
    "null": None,
}
HELD_BY_SQLITE = {"too long", "NUL"}


def rows_of(spark: SparkSession, pages: dict[str, bytes | None] = PAGES) -> DataFrame:
    rows = [(what, page, 1) for what, page in pages.items()]
    df = spark.createDataFrame(rows, "what string, page binary, n int")
    return df.selectExpr("what", "CAST(page AS string) page", "n", "'page' kind").coalesce(1)


def items(rows: pa.RecordBatch) -> Iterator[Metrics]:
    for page in rows["page"].to_pylist():
        yield HITS(page, 0)


class Counting:
    """A handler that knows no rows any more when its metrics are stored."""

    def __init__(self, emit: Emit) -> None:
        self._emit = emit
        self._pages: Counter[Any] = Counter()

    def consume(self, batches: list[pa.RecordBatch]) -> None:
        for batch in batches:
            self._pages.update(batch["page"].to_pylist())

    def on_close(self) -> None:
        self._emit([HITS.from_rows(page, 0, [(count,)]) for page, count in self._pages.items()])


def metrics(groups: pa.RecordBatch) -> Iterator[Metrics]:
    for group in groups.to_pylist():
        yield HITS.from_rows(group["page"], 0, [(group["hits"],)])


DECLARED = ArrowAggregation(keys=["page"], metrics={HITS: Count()})
WAYS: dict[str, dict[str, Any]] = {
    "items": {"items": items, "metrics": [HITS]},
    "handler": {"arrow": [ArrowHandler(make=Counting)], "metrics": [HITS]},
    "function": {
        "arrow": [
            ArrowAggregation(
                aggregation=Aggregation(keys=["page"], measures={"hits": Count()}), metrics=metrics
            )
        ],
        "metrics": [HITS],
    },
    "tasks": {"arrow": [DECLARED]},
    "tags": {
        "arrow": [
            ArrowAggregation(
                keys=["page"], metrics={HITS: Count()}, type_column="kind", tags=["page"]
            )
        ]
    },
    "spark": {"arrow": [DECLARED]},
}


@pytest.fixture(params=["sqlite", "postgres"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    if request.param == "sqlite":
        return SqliteStore(tmp_path / "metrics.db")
    server: PostgresServer = request.getfixturevalue("postgres_server")
    server.create_database("unstorable")
    return PostgresStore(server.conninfo(dbname="unstorable"))


def writer(way: str, store: Any, rule: Any, **changes: Any) -> MetricsWriter:
    job = AggregationJob(name="pages", store=store, on_bad_row=rule, **{**WAYS[way], **changes})
    return MetricsWriter(job, l1="spark" if way == "spark" else "tasks")


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("rule", ["skip", DeadLetters()], ids=["skip", "letters"])
def test_rows_that_cannot_be_stored_are_set_apart_in_every_way(
    spark: SparkSession, store: Any, way: str, rule: Any
) -> None:
    summary = writer(way, store, rule).write_batch(rows_of(spark))
    bad = {"too long", "NUL", "not UTF-8", "null"}
    if isinstance(store, SqliteStore):
        bad -= HELD_BY_SQLITE
    good = Counter(
        page.decode() for what, page in PAGES.items() if what not in bad and page is not None
    )
    assert {item.entity: item.count for item in store.read(HITS, "pages")} == good
    assert (summary["rows"], summary["bad_rows"]) == (len(PAGES), len(bad))
    assert store.summaries("pages")[-1].summary["bad_rows"] == len(bad)
    kept = [json.loads(row.row_json) for bad in store.read(BadRows, "pages") for row in bad.rows]
    if rule == "skip":
        assert kept == []
    elif way in ("handler", "function"):  # of some, the rows are no longer known
        assert len(kept) == len(bad)
    else:
        assert {row["what"] for row in kept} == bad
        assert {row["n"] for row in kept} == {1}


@pytest.mark.parametrize("way", ["tasks", "spark"])
@pytest.mark.parametrize("what", ["too long", "NUL", "not UTF-8", "null"])
def test_error_names_the_column_and_the_metric(
    spark: SparkSession, store: Any, way: str, what: str
) -> None:
    if what in HELD_BY_SQLITE and isinstance(store, SqliteStore):
        pytest.skip("SQLite holds it")
    if (way, what) == ("tasks", "not UTF-8"):
        pytest.skip("the aggregator does not know the names")
    rows = rows_of(spark, {"a": b"a", what: PAGES[what]})
    with pytest.raises(Exception, match=r"column '?page'? of (the )?metrics? hits"):
        writer(way, store, "fail").write_batch(rows)
    assert store.summaries("pages") == []


@pytest.mark.parametrize("way", ["tasks", "spark"])
def test_other_steps_go_without_such_rows_too(spark: SparkSession, store: Any, way: str) -> None:
    by_n = ArrowAggregation(metrics={"all rows": Count()})
    arrow = [by_n, DECLARED]
    writer(way, store, "skip", arrow=arrow).write_batch(rows_of(spark))
    ((counted,),) = [item.to_rows() for item in store.read(by_n.types["all rows"], "pages")]
    hits = sum(item.count for item in store.read(HITS, "pages"))
    assert counted == (hits,)


@pytest.mark.parametrize("way", ["tasks", "spark"])
def test_tag_of_no_step_is_that_of_a_bad_row(spark: SparkSession, tmp_path: Path, way: str) -> None:
    store = SqliteStore(tmp_path / "metrics.db")
    kinds = [("a",), ("b",), ("zz",), (None,), ("a",)]
    steps = [
        ArrowAggregation(type_column="kind", tags=[tag], metrics={f"hits.{tag}": Count()})
        for tag in ("a", "b")
    ]
    rows = spark.createDataFrame(kinds, "kind string")
    job = AggregationJob(name="kinds", store=store, on_bad_row=DeadLetters(), arrow=steps)
    summary = MetricsWriter(job, l1=way).write_batch(rows)  # type: ignore[arg-type]
    assert (summary["rows"], summary["bad_rows"]) == (5, 2)
    types = {name: kind for step in steps for name, kind in step.types.items()}
    found = {name: item.count for name, kind in types.items() for item in store.read(kind, "kinds")}
    assert found == {"hits.a": 2, "hits.b": 1}
    (letters,) = store.read(BadRows, "kinds")
    assert letters.entity == "UnknownTag"
    kept = [json.loads(row.row_json) for row in letters.rows]
    assert sorted(kept, key=str) == [{"kind": "zz"}, {"kind": None}]


@pytest.mark.parametrize("way", ["tasks", "spark"])
def test_keys_of_several_columns_have_the_limit_together(
    spark: SparkSession, store: Any, way: str
) -> None:
    if isinstance(store, SqliteStore):
        pytest.skip("it has no limit")
    # With the separator and an escape before each bar.
    pairs = [("|" * 4, "x" * (LONGEST - 9)), ("|" * 4, "x" * (LONGEST - 8))]
    rows = spark.createDataFrame(pairs, "page string, site string")
    step = ArrowAggregation(keys=["page", "site"], metrics={"hits": Count()})
    summary = writer(way, store, "skip", arrow=[step]).write_batch(rows)
    assert summary["bad_rows"] == 1
    assert len(store.read(step.types["hits"], "pages")) == 1


@pytest.mark.parametrize("way", ["tasks", "spark"])
def test_dates_that_python_lacks_are_those_of_bad_rows(
    spark: SparkSession, tmp_path: Path, way: str
) -> None:
    store = SqliteStore(tmp_path / "metrics.db")
    rows = spark.sql(
        "SELECT date_from_unix_date(n) day FROM VALUES (0), (-719162), (-719163), (2932896), "
        "(2932897), (NULL) t(n)"
    )
    step = ArrowAggregation(time=Window("day", 86_400), metrics={"hits": Count()})
    summary = writer(way, store, "skip", arrow=[step]).write_batch(rows)
    assert (summary["rows"], summary["bad_rows"]) == (6, 3)
    assert len(store.read(step.types["hits"], "pages")) == 3


@pytest.mark.parametrize("way", ["tasks", "spark"])
def test_text_that_is_stored_as_a_value_is_checked_too(
    spark: SparkSession, store: Any, way: str
) -> None:
    last = metric_type("last", MaxMetrics, columns={"value": str})
    step = ArrowAggregation(keys=["n"], metrics={last: Max("page")})
    summary = writer(way, store, "skip", arrow=[step]).write_batch(rows_of(spark))
    assert summary["bad_rows"] == 1 + isinstance(store, PostgresStore)


@pytest.mark.parametrize("way", ["tasks", "spark"])
def test_limits_of_bad_rows_hold(spark: SparkSession, tmp_path: Path, way: str) -> None:
    store = SqliteStore(tmp_path / "metrics.db")
    nulls = spark.range(200, numPartitions=1).selectExpr("CAST(NULL AS string) page")
    with pytest.raises(Exception, match=r"more bad rows than DeadLetters\(limit=199\)"):
        writer(way, store, DeadLetters(limit=199)).write_batch(nulls)
    with pytest.raises(Exception, match=r"all 200 rows .*on_bad_row='skip' would drop them"):
        writer(way, store, "skip").write_batch(nulls)
    assert writer(way, store, DeadLetters(limit=200)).write_batch(nulls)["bad_rows"] == 200


def test_shards_set_rows_apart_in_spark_sql_too(
    spark: SparkSession, postgres_server: PostgresServer
) -> None:
    postgres_server.create_database("unstorable")
    store = PostgresStore(postgres_server.conninfo(dbname="unstorable"))
    job = AggregationJob(name="pages", store=store, on_bad_row=DeadLetters(), arrow=[DECLARED])
    sharded = MetricsWriter(job, l1="spark", shards=2)
    pages = {what: page for what, page in PAGES.items() if what != "long"}  # a sink has a number
    summary = sharded.write_batch(rows_of(spark, pages))
    assert (summary["rows"], summary["bad_rows"]) == (len(pages), 4)
    found = [item.count for sink in sharded.sink_ids for item in store.read(HITS, sink)]
    assert found == [2]
    kept = [bad for sink in sharded.sink_ids for bad in store.read(BadRows, sink)]
    assert sum(len(bad.rows) for bad in kept) == 4


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        ("skip", r"all 200 rows .*on_bad_row='skip' would drop them"),
        (DeadLetters(limit=199), r"more bad rows than DeadLetters\(limit=199\)"),
    ],
    ids=["skip", "letters"],
)
def test_limits_of_bad_rows_are_those_of_all_shards_together(
    spark: SparkSession, tmp_path: Path, rule: Any, words: str
) -> None:
    store = ParquetStore(tmp_path / "metrics")
    # Two steps and two groups of bad rows: in several pieces on the way to the shards.
    steps = [DECLARED, ArrowAggregation(keys=["site"], metrics={"sites": Count()})]
    job = AggregationJob(name="pages", store=store, on_bad_row=rule, arrow=steps)
    sharded = MetricsWriter(job, l1="spark", shards=2)
    bad = spark.range(200, numPartitions=4).selectExpr(
        "IF(id < 100, NULL, 'a') page", "IF(id < 100, 'b', NULL) site"
    )
    with pytest.raises(Exception, match=words):
        sharded.write_batch(bad)
    assert [store.summaries(sink) for sink in sharded.sink_ids] == [[], []]
    good = spark.createDataFrame([("a", "b")], "page string, site string")
    assert sharded.write_batch(good if rule == "skip" else bad.limit(100))["applied"]


@pytest.mark.parametrize("way", ["tasks", "spark"])
def test_letters_of_rows_with_two_columns_of_one_name_have_the_last(
    spark: SparkSession, tmp_path: Path, way: str
) -> None:
    store = SqliteStore(tmp_path / "metrics.db")
    rows = spark.sql("SELECT CAST(NULL AS string) page, 1 n, 2 n")
    assert writer(way, store, DeadLetters()).write_batch(rows)["bad_rows"] == 1
    (kept,) = store.read(BadRows, "pages")
    assert [json.loads(row) for row, *_ in kept.rows] == [{"page": None, "n": 2}]


@pytest.mark.parametrize("ansi", ["true", "false"])
def test_values_of_bad_rows_may_not_fit_together(
    spark: SparkSession, tmp_path: Path, ansi: str
) -> None:
    store = SqliteStore(tmp_path / "metrics.db")
    most = "9" * 38
    rows = spark.sql(
        f"SELECT CAST(page AS string) page, CAST({most} AS decimal(38, 0)) n "
        "FROM VALUES (X'ff'), (X'ff'), (X'61') t(page)"
    )
    measures = {"hits": Count(), "mean": Mean("n")}
    step = ArrowAggregation(
        aggregation=Aggregation(keys=["page"], measures=measures), metrics=metrics
    )
    before = spark.conf.get("spark.sql.ansi.enabled")
    spark.conf.set("spark.sql.ansi.enabled", ansi)
    try:
        summary = writer("spark", store, "skip", arrow=[step], metrics=[HITS]).write_batch(rows)
    finally:
        spark.conf.set("spark.sql.ansi.enabled", before or "true")
    assert (summary["rows"], summary["bad_rows"]) == (3, 2)


def test_sum_that_does_not_fit_fails_whatever_the_rule_is(
    spark: SparkSession, tmp_path: Path
) -> None:
    store = SqliteStore(tmp_path / "metrics.db")
    rows = spark.sql("SELECT 'a' page, 9223372036854775807L n UNION ALL SELECT 'a', 1L")
    step = ArrowAggregation(keys=["page"], metrics={"sum": Sum("n")})
    for way in ("tasks", "spark"):
        with pytest.raises(Exception, match="does not fit"):
            writer(way, store, "skip", arrow=[step]).write_batch(rows)


@pytest.mark.parametrize("rule", ["skip", "fail"])
@pytest.mark.parametrize("way", ["tasks", "spark"])
def test_bytes_that_do_not_become_a_key_need_not_be_text(
    spark: SparkSession, tmp_path: Path, way: str, rule: Any
) -> None:
    store = SqliteStore(tmp_path / "metrics.db")
    digests = [("a", b"\xff\xfe"), ("b", b"ok"), ("a", b"\xff\0")]
    rows = spark.createDataFrame(digests, "page string, digest binary")
    step = ArrowAggregation(keys=["page"], metrics={HITS: Count("digest")})
    summary = writer(way, store, rule, arrow=[step]).write_batch(rows)
    assert summary["bad_rows"] == 0
    assert {item.entity: item.count for item in store.read(HITS, "pages")} == {"a": 2, "b": 1}


@pytest.mark.parametrize("way", ["tasks", "spark"])
def test_bytes_that_become_a_key_are_read_as_text(
    spark: SparkSession, store: Any, way: str
) -> None:
    keys = {
        "good": b"ok",
        "not UTF-8": b"\xff\xfe",
        "NUL": b"a\0",
        "too long": b"l" * (LONGEST + 1),
    }
    rows = spark.createDataFrame(list(keys.items()), "what string, page binary")
    summary = writer(way, store, "skip", arrow=[DECLARED]).write_batch(rows)
    good = {"good"} | (HELD_BY_SQLITE if isinstance(store, SqliteStore) else set())
    assert summary["bad_rows"] == len(keys) - len(good)
    assert {item.entity for item in store.read(HITS, "pages")} == {
        keys[what].decode() for what in good
    }
