"""Rows that `items` cannot read, in one attempt: set apart, counted, kept; their neighbors stay."""

import enum
import json
import math
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchqueue import ConfigError
from batchqueue.aggregation import Count, CountMetrics, Metrics, SumMetrics, metric_type
from batchqueue.outputs import BadRows, SqliteStore
from batchqueue.outputs.postgres import PostgresStore
from batchqueue.spark import AggregationJob, ArrowAggregation, DeadLetters, SinkError
from batchqueue.spark.options import SinkOptions
from batchqueue.spark.task.attempt import run_attempt

HITS = metric_type("hits", CountMetrics)
CENTS = metric_type("cents", SumMetrics, columns={"total": int})
PRICE = metric_type("price", SumMetrics, columns={"total": Decimal})
OPTIONS = SinkOptions(sink_id="pages", on_new_query=None, txn_id=None, max_commit_bytes=1_000_000)

calls: list[int] = []


def items(rows: pa.RecordBatch) -> Iterator[Metrics]:
    calls.append(rows.num_rows)
    for page, cents in zip(*(column.to_pylist() for column in rows.columns), strict=True):
        yield HITS(page, 0)
        yield CENTS(page, 0, int(cents))


def job(on_bad_row: Any, **changes: Any) -> AggregationJob:
    settings: dict[str, Any] = {
        "name": "pages",
        "items": items,
        "metrics": [HITS, CENTS],
        "store": SqliteStore("metrics.db"),
    }
    return AggregationJob(**{**settings, "on_bad_row": on_bad_row, **changes})


def batch(rows: list[tuple[Any, Any]]) -> pa.RecordBatch:
    pages, cents = zip(*rows, strict=True) if rows else ((), ())
    return pa.RecordBatch.from_pydict({"page": pa.array(pages), "cents": pa.array(cents)})


def run(of: AggregationJob, *batches: pa.RecordBatch) -> tuple[dict[Any, Any], list[BadRows], Any]:
    """Returns the totals by page, the dead letters, and the summary."""
    message = run_attempt(of, SinkOptions.parse({}, of, stream=True), batches)
    partials = list(message.metrics(of))
    bad = [item for item in partials if isinstance(item, BadRows)]
    hits = {item.entity: item.count for item in partials if type(item) is HITS}
    cents = {item.entity: item.total for item in partials if type(item) is CENTS}
    assert hits.keys() == cents.keys()
    return {page: (hits[page], cents[page]) for page in hits}, bad, message.summary


@settings(deadline=None)  # on a busy machine the first example includes Arrow's start
@given(st.lists(st.sampled_from([("a", "1"), ("b", "20"), ("a", "x"), (None, "1"), ("b", "")])))
def test_rows_that_cannot_be_read_are_left_out_and_no_other_ones(rows: list[Any]) -> None:
    good = [(page, int(cents)) for page, cents in rows if page and cents not in ("x", "")]
    expected = {
        page: (
            sum(name == page for name, _ in good),
            sum(cents for name, cents in good if name == page),
        )
        for page, _ in good
    }
    for rule in ("skip", DeadLetters()):
        found, bad, summary = run(job(rule), batch(rows))
        assert found == expected
        assert (summary.rows, summary.bad_rows) == (len(rows), len(rows) - len(good))
        kept = [json.loads(row.row_json) for item in bad for row in item.rows]
        lost = [row for row in rows if not row[0] or row[1] in ("x", "")]
        expected_rows = [] if rule == "skip" else [{"page": p, "cents": c} for p, c in lost]
        assert sorted(kept, key=str) == sorted(expected_rows, key=str)


def test_dead_letter_has_the_row_the_error_and_its_time() -> None:
    before = int(datetime.now().timestamp())
    _, (bad,), summary = run(job(DeadLetters()), batch([("a", "1"), ("b", "far")]))
    assert bad.entity == "ValueError"
    assert before <= bad.time_bucket <= datetime.now().timestamp()
    ((row, error),) = bad.rows
    assert json.loads(row) == {"page": "b", "cents": "far"}
    assert error == "ValueError: invalid literal for int() with base 10: 'far'"
    assert summary.bad_row_error == error


@pytest.mark.parametrize(("rows", "bad"), [(1_024, 1), (1_000, 7), (64, 64), (1, 1)])
def test_function_is_called_for_halves_of_what_has_a_bad_row(rows: int, bad: int) -> None:
    calls.clear()
    step = rows // bad
    run(
        job("skip"),
        batch([("a", "x" if not n % step and n < bad * step else "1") for n in range(rows)]),
    )
    assert sum(calls) - rows > 0 or rows == 1
    assert len(calls) - 1 <= 2 * bad * (1 + math.log2(rows / bad))
    calls.clear()
    run(job("skip"), batch([("a", "1")] * rows))
    assert calls == [rows]


@pytest.mark.parametrize(
    ("page", "cents", "words"),
    [
        (None, 1, "entity is None"),
        (7, 1, "does not fit its column"),
        ("a", 2**63, "does not fit its column"),
        (["a"], 1, "unhashable"),
    ],
)
def test_metric_that_no_store_can_hold_is_that_of_a_bad_row(
    page: Any, cents: int, words: str
) -> None:
    def made(rows: pa.RecordBatch) -> list[Metrics]:
        of = [("b", 2) if kind == "good" else (page, cents) for kind in rows["kind"].to_pylist()]
        return [
            kind(*key) for name, n in of for kind, key in ((HITS, (name, 0)), (CENTS, (name, 0, n)))
        ]

    rows = pa.RecordBatch.from_pydict({"kind": ["good", "bad", "good"]})
    found, (bad,), summary = run(job(DeadLetters(), items=made), rows)
    assert found == {"b": (2, 4)}
    assert words in summary.bad_row_error
    assert [json.loads(row.row_json) for row in bad.rows] == [{"kind": "bad"}]


@pytest.mark.parametrize("page", ["a\0", "long" * 700, "\udcff"])
def test_text_that_postgresql_cannot_hold_is_that_of_a_bad_row(page: str) -> None:
    def made(rows: pa.RecordBatch) -> list[Metrics]:
        pages = [page if kind == "bad" else kind for kind in rows["kind"].to_pylist()]
        return [kind(name, 0, 1) for name in pages for kind in (HITS, CENTS)]

    rows = pa.RecordBatch.from_pydict({"kind": ["good", "bad"]})
    store = PostgresStore("host=nowhere")
    found, (bad,), _ = run(job(DeadLetters(), items=made, store=store), rows)
    assert found == {"good": (1, 1)}
    assert len(bad.rows) == 1
    if "\udcff" not in page:  # which SQLite holds
        found, bad_rows, _ = run(job(DeadLetters(), items=made), rows)
        assert found == {"good": (1, 1), page: (1, 1)}
        assert bad_rows == []


def test_row_that_json_lacks_and_an_error_that_stores_lack_are_kept_as_text() -> None:
    def made(rows: pa.RecordBatch) -> list[Metrics]:
        raise LookupError("nul \0, surrogate \udcff and " + "much " * 1_000)

    row = pa.RecordBatch.from_pydict({"at": [datetime(2026, 1, 2)], "raw": [b"\0\xff"]})
    _, (bad,), _ = run(job(DeadLetters(), items=made), row)
    ((text, error),) = bad.rows
    assert json.loads(text) == {"at": "2026-01-02 00:00:00", "raw": str(b"\0\xff")}
    assert error.startswith(r"LookupError: nul \x00, surrogate \udcff and much")
    assert len(error) == 1_000
    PostgresStore("host=nowhere").check_storable(bad, "pages")


def test_more_bad_rows_than_the_limit_fail_the_task_and_name_the_first_error() -> None:
    rows = batch([("a", "x")] * 3 + [("a", "1")])
    _, (bad,), _ = run(job(DeadLetters(limit=3)), rows)
    assert len(bad.rows) == 3
    with pytest.raises(
        SinkError, match=r"more bad rows than DeadLetters\(limit=2\).*first error: ValueError: inv"
    ):
        run(job(DeadLetters(limit=2)), rows)
    assert run(job("skip"), rows)[2].bad_rows == 3


class Name(enum.StrEnum):
    LATE = "late"


MADE: list[Any] = [
    *(("a", 0, value) for value in (1, True, np.int64(2), np.int32(3), 2.0, 0.5, "1", None, 2**63)),
    *((entity, 0, 1) for entity in (Name.LATE, np.str_("n"), "ä", "\udcff", 7, None, b"b")),
    *(("a", bucket, 1) for bucket in (np.int64(10), 10.0, True, None, "0", 2**64)),
]


@pytest.mark.parametrize("kind", [CENTS, PRICE, HITS], ids=lambda kind: kind.name)
@pytest.mark.parametrize("values", MADE, ids=repr)
def test_rule_for_bad_rows_does_not_change_which_rows_are_good(kind: Any, values: Any) -> None:
    """What is stored where rows fail is stored where they are left out, and nothing else."""

    def made(rows: pa.RecordBatch) -> list[Metrics]:
        return [kind(*(("good", 0, 1) if row == "good" else values)) for row in rows[0].to_pylist()]

    rows = pa.RecordBatch.from_pydict({"row": ["good", "odd", "good"]})
    settings = {"items": made, "metrics": [CENTS, PRICE, HITS]}
    skipping = job("skip", **settings)
    message = run_attempt(skipping, OPTIONS, [rows])
    stored = {item.key: item.to_rows() for item in message.metrics(skipping)}
    assert stored.pop(("good", 0)) is not None
    try:
        failing = job("fail", **settings)
        strict = list(run_attempt(failing, OPTIONS, [rows]).metrics(failing))
        for item in strict:
            failing.store.check_storable(item, "pages")  # type: ignore[attr-defined]
    except Exception:
        assert (stored, message.summary.bad_rows) == ({}, 1)
    else:
        assert message.summary.bad_rows == 0
        assert stored == {item.key: item.to_rows() for item in strict if item.entity != "good"}


def test_equal_values_of_other_types_are_checked_too() -> None:
    def made(rows: pa.RecordBatch) -> list[Metrics]:
        return [
            PRICE("a", 0, value) for value in ((Decimal(1), 1.0)[n] for n in rows[0].to_pylist())
        ]

    rows = pa.RecordBatch.from_pydict({"n": [0, 1, 0]})
    skipping = job("skip", items=made, metrics=[PRICE])
    message = run_attempt(skipping, OPTIONS, [rows])
    assert message.summary.bad_rows == 1
    assert [item.to_rows()[0][0] for item in message.metrics(skipping)] == [2]


def test_large_batch_without_a_good_row_is_not_skipped() -> None:
    rows = batch([("a", "x")] * 100)
    with pytest.raises(
        SinkError, match=r"all 100 rows of a batch are bad.*DeadLetters.*first error: ValueError"
    ):
        run(job("skip"), rows)
    assert run(job("skip"), rows.slice(0, 99))[2].bad_rows == 99
    assert run(job("skip"), batch([("a", "x")] * 100 + [("a", "1")]))[2].bad_rows == 100
    assert run(job(DeadLetters()), rows)[2].bad_rows == 100


@pytest.mark.parametrize("rule", ["skip", DeadLetters()])
def test_name_that_is_missing_in_the_function_is_not_the_fault_of_a_row(rule: Any) -> None:
    def made(rows: pa.RecordBatch) -> list[Any]:
        return [undefined]  # type: ignore[name-defined] # noqa: F821

    with pytest.raises(NameError):
        run(job(rule, items=made), batch([("a", "1")]))


def test_bad_row_is_left_out_of_all_steps_and_counted_once() -> None:
    def pages(rows: pa.RecordBatch) -> list[Metrics]:
        return [CENTS(row["page"], 0, int(row["cents"])) for row in rows.to_pylist()]

    by_page = ArrowAggregation(
        type_column="page", tags=["a", "b"], keys=["page"], metrics={HITS: Count()}
    )
    whole = ArrowAggregation(metrics={"all rows": Count()})
    both = job(DeadLetters(), items=pages, arrow=[by_page, whole], metrics=[CENTS])
    rows = batch([("a", "1"), ("zz", "x"), ("b", "x"), ("b", "2"), (None, "3")])
    message = run_attempt(both, OPTIONS, [rows])
    stored = {(item.name, item.entity): item.to_rows()[0][0] for item in message.metrics(both)}
    kept = [row for item in message.metrics(both) if isinstance(item, BadRows) for row in item.rows]
    assert (message.summary.rows, message.summary.bad_rows, len(kept)) == (5, 3, 3)
    found = {key: value for key, value in stored.items() if key[0] != "bad_rows"}
    assert found == {
        ("cents", "a"): 1,
        ("cents", "b"): 2,
        ("hits", "a"): 1,
        ("hits", "b"): 1,
        ("all rows", "all"): 2,
    }


def test_numbers_that_json_lacks_are_text() -> None:
    def made(rows: pa.RecordBatch) -> list[Metrics]:
        raise ValueError

    row = pa.RecordBatch.from_pydict({"x": [math.nan], "y": [[1.0, -math.inf]]})
    _, (bad,), _ = run(job(DeadLetters(), items=made), row)

    def refuse(word: str) -> None:
        raise AssertionError(word)

    assert json.loads(bad.rows[0].row_json, parse_constant=refuse) == {
        "x": "nan",
        "y": [1.0, "-inf"],
    }


def test_by_default_the_task_fails() -> None:
    with pytest.raises(ValueError, match="invalid literal"):
        run(job("fail"), batch([("a", "x")]))


def test_function_that_returns_no_items_fails_whatever_the_rule_is() -> None:
    with pytest.raises(ConfigError, match="items returned None"):
        run(job("skip", items=lambda rows: None), batch([("a", "1")]))


def test_function_that_fails_without_rows_fails_the_task() -> None:
    with pytest.raises(LookupError):
        run(job("skip", items=lambda rows: {}["x"]), batch([]).slice(0, 0))


@pytest.mark.parametrize("error", [MemoryError, KeyboardInterrupt])
def test_error_that_is_not_about_a_row_fails_the_task(error: type[BaseException]) -> None:
    def made(rows: pa.RecordBatch) -> list[Metrics]:
        raise error

    with pytest.raises(error):
        run(job("skip", items=made), batch([("a", "1")]))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"on_bad_row": "ignore"}, "is 'ignore'; give 'fail', 'skip' or DeadLetters"),
        ({"on_bad_row": DeadLetters}, "give 'fail', 'skip' or DeadLetters"),
        (
            {"on_bad_row": DeadLetters(), "metrics": [metric_type("bad_rows", CountMetrics)]},
            "a metric named 'bad_rows'",
        ),
    ],
)
def test_rule_that_cannot_be_is_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        replace(job("fail"), **changes)


@pytest.mark.parametrize("limit", [0, -1, 1.5, "3", None, True])
def test_limit_that_cannot_be_is_refused(limit: Any) -> None:
    with pytest.raises(ConfigError, match=r"limit is .* give 1 to"):
        DeadLetters(limit=limit)
