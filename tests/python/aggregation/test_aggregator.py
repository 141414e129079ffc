"""`Aggregator` gives what DuckDB gives, for rows in any pieces and partials in any order."""

import math
from datetime import date, datetime

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchqueue import BatchQueueError, ConfigError
from batchqueue.aggregation import (
    Aggregation,
    Aggregator,
    Count,
    First,
    Last,
    Max,
    Mean,
    Min,
    Quantiles,
    Sum,
    TopN,
    Window,
)

EVERYTHING = {
    "rows": Count(),
    "ints": Count("int"),
    "int_sum": Sum("int"),
    "int_mean": Mean("int"),
    "float_sum": Sum("float"),
    "float_mean": Mean("float"),
    "floats": Count("float"),
    "int_min": Min("int"),
    "float_max": Max("float"),
    "float_min": Min("float"),
    "text_min": Min("text"),
    "text_max": Max("text"),
    "first_text": First("text", by="order"),
    "last_int": Last("int", by="order"),
    "best": TopN("int", 3, "order"),
}

SQL = """
    SELECT {keys}, count(*) AS rows, count("int") AS ints, sum("int")::BIGINT AS int_sum,
        avg("int") AS int_mean, sum("float") AS float_sum, avg("float") AS float_mean,
        count("float") AS floats, min("int") AS int_min, max("float") AS float_max,
        min("float") AS float_min, min("text") AS text_min, max("text") AS text_max,
        arg_min("text", "order") AS first_text, arg_max("int", "order") AS last_int,
        list({{'value': "int", 'label': "order"}} ORDER BY "int" DESC, "order")
            FILTER ("int" IS NOT NULL) AS best
    FROM data GROUP BY {keys}
"""

EPOCH = datetime(1970, 1, 1)
INTEGERS = [
    pa.int8(),
    pa.int16(),
    pa.int32(),
    pa.int64(),
    pa.uint8(),
    pa.uint16(),
    pa.uint32(),
    pa.uint64(),
]
TEXTS = [pa.string(), pa.large_string(), pa.string_view()]
FLOATS = st.integers(-(10**6), 10**6).map(lambda eighths: eighths / 8) | st.sampled_from(
    [math.nan, math.inf]
)
"""Their sums are exact, so the order of additions does not show."""


@st.composite
def tables(draw):
    """A table with two keys of any type, and values; the column `order` is unique."""
    rows = draw(st.integers(1, 60))

    def column(values, data_type, dictionary=None):
        made = pa.array(draw(st.lists(values | st.none(), min_size=rows, max_size=rows)), data_type)
        return made.dictionary_encode() if draw(st.booleans()) and dictionary is not False else made

    texts = st.sampled_from(["", "a", "b", "ä€", "a longer text that fits nowhere"])
    kinds = [
        lambda: column(st.integers(0, 5), draw(st.sampled_from(INTEGERS))),
        lambda: column(st.sampled_from([-(2**63), 2**63 - 1, 0, 70_000]), pa.int64()),
        lambda: column(texts, draw(st.sampled_from(TEXTS)), False),
        lambda: column(texts, pa.string()),
        lambda: column(
            st.sampled_from([1.5, math.nan, -2.0]),
            draw(st.sampled_from([pa.float32(), pa.float64()])),
            False,
        ),
        lambda: column(st.booleans(), pa.bool_(), False),
        lambda: column(st.sampled_from([date(2013, 1, 1), date(1969, 12, 31)]), pa.date32(), False),
    ]
    return pa.table(
        {
            "one": draw(st.sampled_from(kinds))(),
            "two": draw(st.sampled_from(kinds))(),
            "int": column(st.integers(0, 100), draw(st.sampled_from(INTEGERS))),
            "float": column(FLOATS, pa.float64(), False),
            "text": column(texts, pa.string()),
            "order": pa.array(draw(st.permutations(range(rows))), pa.int64()),
        }
    )


def plain(value):
    """A value that compares: all NaN are equal, floats are close, rankings have three rows."""
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else float(f"{value:.11e}")
    if isinstance(value, list):
        return [tuple(entry.values()) for entry in value[:3]]
    return value


def rows_of(data, keys):
    """Rows by key, as plain values."""
    rows = {}
    for row in data.to_pylist():
        key = tuple(plain(row.pop(name)) for name in keys)
        assert key not in rows
        rows[key] = {name: plain(value) for name, value in row.items()}
        rows[key]["best"] = rows[key]["best"] or []
    return rows


def pieces(draw, data):
    """The same rows, cut anywhere."""
    cuts = sorted(draw(st.lists(st.integers(0, data.num_rows), max_size=4)))
    ends = [*cuts, data.num_rows]
    return [data.slice(start, end - start) for start, end in zip([0, *cuts], ends, strict=True)]


@settings(max_examples=150, deadline=None)
@given(st.data(), tables())
def test_rows_in_any_pieces_give_what_duckdb_gives(data, table):
    keys = data.draw(st.sampled_from([["one"], ["one", "two"], ["two", "one", "text"]]))
    aggregation = Aggregation(keys=keys, measures=EVERYTHING)
    plain_types = pa.table(
        {
            name: column.cast(column.type.value_type)
            if pa.types.is_dictionary(column.type)
            else column
            for name, column in zip(table.column_names, table.columns, strict=True)
        }
    )
    with duckdb.connect() as database:
        database.register("data", plain_types)
        wanted = database.sql(
            SQL.format(keys=", ".join(f'"{key}"' for key in keys))
        ).to_arrow_table()
    direct, merged = Aggregator(aggregation), Aggregator(aggregation)
    for piece in pieces(data.draw, table):
        direct.update(piece)
        l1 = Aggregator(
            aggregation,
            lambda partials: [merged.update(part) for part in pieces(data.draw, partials)] and None,
        )
        l1.update(piece)
        l1.on_close()
    assert rows_of(direct.result(), keys) == rows_of(wanted, keys)
    assert rows_of(merged.result(), keys) == rows_of(wanted, keys)


@settings(max_examples=200, deadline=None)
@given(st.data(), tables(), st.integers(1, 6))
def test_batch_with_too_many_groups_changes_nothing(data, table, most):
    # Counts and sums are restored from a copy; where there are other measures, the groups are found
    # beforehand.
    sums = {
        name: measure
        for name, measure in EVERYTHING.items()
        if isinstance(measure, Count | Sum | Mean)
    }
    measures = data.draw(
        st.sampled_from([sums, EVERYTHING | {"quantiles": Quantiles("float", [0.5])}])
    )
    limited = Aggregator(Aggregation(keys=["one"], measures=measures, max_groups=most))
    unlimited = Aggregator(Aggregation(keys=["one"], measures=measures))
    keys = set()
    for whole in pieces(data.draw, table):
        # In several parts: the first ones are accepted before the last is too much.
        batch = pieces(data.draw, whole)
        with_batch = keys | {plain(key) for key in whole["one"].to_pylist()}
        if len(with_batch) > most:
            with pytest.raises(BatchQueueError, match=f"more groups than max_groups, {most}"):
                limited.consume(batch)
        else:
            limited.consume(batch)
            unlimited.consume(batch)
            keys = with_batch
        results = [limited.result(), unlimited.result()]
        assert len({str(result and result.to_pydict()) for result in results}) == 1


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.floats(1e-5, 1e9) | st.floats(-1e9, -1e-5) | st.just(0.0), min_size=1, max_size=300
    ),
    st.lists(st.floats(0, 1), min_size=1, max_size=4),
)
def test_quantiles_are_within_one_percent(values, quantiles):
    aggregation = Aggregation(keys=[], measures={"q": Quantiles("v", quantiles)})
    halves, whole = Aggregator(aggregation), Aggregator(aggregation)
    whole.update(pa.table({"v": values}))
    for part in (values[::2], values[1::2]):
        half = Aggregator(aggregation)
        half.update(pa.table({"v": pa.array(part, pa.float64())}))
        partials = half.partials()
        if partials is not None:
            halves.update(partials)
    ordered = sorted(values)
    for aggregator in (whole, halves):
        found = aggregator.result()["q"][0].as_py()
        for quantile, estimate in zip(quantiles, found, strict=True):
            value = ordered[int(quantile * (len(values) - 1))]
            assert math.isclose(estimate, value, rel_tol=0.0101, abs_tol=1e-9)


def test_all_rows_are_one_group_without_keys():
    aggregator = Aggregator(Aggregation(keys=[], measures={"n": Count(), "s": Sum("v")}))
    assert aggregator.result() is None
    aggregator.update(pa.table({"v": pa.array([], pa.int64())}))
    assert (aggregator.result(), len(aggregator)) == (None, 0)
    aggregator.update(pa.table({"v": [1, 2, None]}))
    assert aggregator.result().to_pylist() == [{"n": 3, "s": 3}]


def test_large_integers_are_added_exactly_and_an_overflow_is_an_error():
    aggregation = Aggregation(keys=["k"], measures={"s": Sum("v"), "m": Mean("v")})
    aggregator = Aggregator(aggregation)
    aggregator.update(pa.table({"k": [1, 1], "v": [2**63 - 1, -5]}))
    assert aggregator.result()["s"].to_pylist() == [2**63 - 6]
    aggregator.update(pa.table({"k": [1, 1], "v": [6, 2**62]}))
    with pytest.raises(
        OverflowError, match=f'"s" is {2**63 + 2**62}, which does not fit into int64'
    ):
        aggregator.result()
    partials = aggregator.partials()
    assert int(partials["s"][0]["sum"].as_py()) == 2**63 + 2**62
    aggregator.update(partials)
    aggregator.update(pa.table({"k": [1], "v": [-(2**63)]}))
    assert aggregator.result()["s"].to_pylist() == [2**62]


def test_floats_that_cancel_leave_the_remainder():
    aggregation = Aggregation(keys=[], measures={"s": Sum("v")})
    aggregator = Aggregator(aggregation)
    for values in ([1e16, 1.0, 1.0], [-1e16, 1.0]):
        part = Aggregator(aggregation)
        part.update(pa.table({"v": values}))
        aggregator.update(part.partials())
    assert aggregator.result()["s"].to_pylist() == [3.0]
    for value, total in ((math.inf, math.inf), (1.0, math.inf), (-math.inf, None)):
        aggregator.update(pa.table({"v": [value]}))
        assert plain(aggregator.result()["s"][0].as_py()) == (total or "NaN")


def test_many_groups_of_texts_and_of_pairs_are_exact():
    count = 100_000
    data = pa.table({"a": [f"key {number % 50_000}" for number in range(count)], "b": range(count)})
    aggregator = Aggregator(Aggregation(keys=["a", "b"], measures={"n": Count()}))
    aggregator.update(data)
    aggregator.update(data)
    result = aggregator.result()
    assert result.select(["a", "b"]) == data.combine_chunks().to_batches()[0]
    assert set(result["n"].to_pylist()) == {2}


@pytest.mark.parametrize("indices", INTEGERS, ids=str)
def test_dictionaries_with_any_indices_are_read(indices):
    keys = pa.DictionaryArray.from_arrays(
        pa.array([1, None, 0, 1], indices), pa.array(["a", "b", "unused"])
    )
    values = pa.DictionaryArray.from_arrays(pa.array([0, 1, None, 1], indices), pa.array([5, 7, 9]))
    aggregator = Aggregator(
        Aggregation(keys=["k"], measures={"s": Sum("v"), "n": Count("v"), "m": Max("v")})
    )
    aggregator.update(pa.table({"k": keys, "v": values}))
    assert aggregator.result().to_pylist() == [
        {"k": "b", "s": 12, "n": 2, "m": 7},
        {"k": None, "s": 7, "n": 1, "m": 7},
        {"k": "a", "s": None, "n": 0, "m": None},
    ]


def test_dictionary_with_a_broken_index_is_rejected():
    broken = pa.DictionaryArray.from_arrays(pa.array([0, 7]), pa.array(["a", "b"]), safe=False)
    for name in ("k", "v"):
        columns = {"k": ["a", "b"], "v": ["a", "b"], name: broken}
        aggregator = Aggregator(Aggregation(keys=["k"], measures={"m": Max("v")}))
        with pytest.raises(
            BatchQueueError, match="index 7 is outside a dictionary of 2 values; check the data"
        ):
            aggregator.update(pa.table(columns))
        assert len(aggregator) == 0


@pytest.mark.parametrize("is_dictionary", [False, True])
def test_invalid_text_is_rejected(is_dictionary):
    buffers = [None, pa.py_buffer(b"\0\0\0\0\1\0\0\0\2\0\0\0"), pa.py_buffer(b"a\xff")]
    broken = pa.Array.from_buffers(pa.string(), 2, buffers)
    if is_dictionary:
        broken = pa.DictionaryArray.from_arrays(pa.array([0, 1]), broken)
    aggregator = Aggregator(Aggregation(keys=["k"], measures={"n": Count()}))
    with pytest.raises(BatchQueueError, match="a column of strings has a value that is not UTF-8"):
        aggregator.update(pa.table({"k": broken}))
    assert len(aggregator) == 0


def test_rejected_or_empty_data_fixes_no_types():
    aggregator = Aggregator(Aggregation(keys=["k"], measures={"s": Sum("v")}))
    aggregator.update(pa.table({"k": pa.array([], pa.float64()), "v": pa.array([], pa.float64())}))
    with pytest.raises(ConfigError, match="as before"):
        aggregator.consume([pa.table({"k": [1], "v": [1]}), pa.table({"k": ["a"], "v": [1]})])
    aggregator.update(pa.table({"k": ["a"], "v": [1.5]}))
    assert aggregator.result().to_pylist() == [{"k": "a", "s": 1.5}]


def test_partials_survive_a_parquet_file(tmp_path):
    measures = {**EVERYTHING, "q": Quantiles("int", [0.5])}
    data = pa.table(
        {
            "key": [1, 1, 2],
            "int": [3, 4, 5],
            "float": [0.5, 1, 2],
            "text": list("abc"),
            "order": [1, 2, 3],
        }
    )
    direct, stored = (Aggregator(Aggregation(keys=["key"], measures=measures)) for _ in range(2))
    direct.update(data)
    wanted = direct.result()
    pq.write_table(pa.Table.from_batches([direct.partials()]), tmp_path / "partials.parquet")
    stored.update(pq.read_table(tmp_path / "partials.parquet"))
    assert stored.result() == wanted


def test_equal_aggregations_merge_in_any_order_of_their_measures():
    left = Aggregation(keys=["k"], window=Window("t", 60), measures={"n": Count(), "s": Sum("v")})
    right = Aggregation(
        keys=["k"], window=Window("t", 60.0), measures={"s": Sum("v"), "n": Count()}
    )
    assert left == right
    l1, l2 = Aggregator(left), Aggregator(right)
    l1.update(pa.table({"k": [1], "t": [61], "v": [5]}))
    l2.update(l1.partials())
    assert l2.result().to_pylist() == [{"k": 1, "t": 60, "s": 5, "n": 1}]
