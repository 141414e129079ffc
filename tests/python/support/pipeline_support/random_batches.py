"""Record batches of random schemas and values, for tests with hypothesis."""

import datetime as dt
import random
from decimal import Decimal

import pyarrow as pa
import pyarrow.compute as pc
from hypothesis import strategies as st

_TEXTS = st.text(st.characters(codec="utf-8"), max_size=12) | st.sampled_from(["", "a" * 300])
_INTS = st.integers(-(2**31), 2**31 - 1)

VALUES = {
    pa.int64(): _INTS,
    pa.int8(): st.integers(-128, 127),
    pa.float64(): st.floats(allow_nan=False),
    pa.bool_(): st.booleans(),
    pa.string(): _TEXTS,
    pa.large_string(): _TEXTS,
    pa.string_view(): _TEXTS,
    pa.binary(): st.binary(max_size=20),
    pa.binary(4): st.binary(min_size=4, max_size=4),
    pa.timestamp("us"): st.datetimes(dt.datetime(1970, 1, 1), dt.datetime(2100, 1, 1)),
    pa.decimal128(12, 2): st.integers(-(10**9), 10**9).map(lambda cents: Decimal(cents) / 100),
    pa.dictionary(pa.int32(), pa.string()): _TEXTS,
    pa.list_(pa.int64()): st.lists(_INTS, max_size=5),
    pa.list_(pa.string()): st.lists(_TEXTS, max_size=3),
    pa.list_(pa.dictionary(pa.int16(), pa.string())): st.lists(_TEXTS, max_size=3),
    pa.list_view(pa.int64()): st.lists(_INTS, max_size=5),
    pa.list_(pa.int32(), 2): st.lists(_INTS, min_size=2, max_size=2),
    pa.struct({"a": pa.int64(), "b": pa.string()}): st.fixed_dictionaries(
        {"a": st.none() | _INTS, "b": st.none() | _TEXTS}
    ),
    pa.map_(pa.string(), pa.int64()): st.lists(st.tuples(_TEXTS, _INTS), max_size=3),
    pa.null(): st.none(),
}
"""Values of every type of column, without the null that each of them may have."""

TYPES = sorted(VALUES, key=str)

SCHEMAS = st.lists(st.sampled_from(TYPES), min_size=1, max_size=4).map(
    lambda types: pa.schema([pa.field(f"c{place}", each) for place, each in enumerate(types)])
)


def array_of(kind, values):
    """An array of a type; pyarrow makes nested dictionaries only through a cast."""
    if isinstance(kind, pa.ListType) and pa.types.is_dictionary(kind.value_type):
        return pa.array(values, pa.list_(kind.value_type.value_type)).cast(kind)
    return pa.array(values, kind)


@st.composite
def batches(draw, schema, max_rows=40):
    """A batch of a schema. Some of them are slices, which begin inside of their buffers.

    hypothesis draws a few values of a column and a seed, which is far faster than all values.
    """
    before = draw(st.integers(0, 3))
    rows = draw(st.integers(0, max_rows))
    chance = random.Random(draw(st.integers(0, 2**32)))
    columns = []
    for kind in schema.types:
        values = draw(st.lists(VALUES[kind] | st.none(), min_size=1, max_size=5))
        columns.append(array_of(kind, chance.choices(values, k=before + rows)))
    return pa.RecordBatch.from_arrays(columns, schema=schema).slice(before, rows)


def values_of(parts):
    """The rows of several batches as Python values, in order."""
    return [row for part in parts for row in part.to_pylist()]


def of_each_type(rows=1_000):
    """A name and an array of many rows for every kind of layout that Arrow has."""
    numbers = pa.array(range(rows))
    texts = pa.array([f"{row:0100}" for row in range(rows)])
    places = pa.array(range(rows + 1), pa.int32())
    half = pa.array([row // 2 for row in range(rows)], pa.int32())
    kinds = pa.array([0, 1] * (rows // 2), pa.int8())
    encoded = texts.dictionary_encode()
    return {
        "int": numbers,
        "bool": pa.array([True, None] * (rows // 2)),
        "string": texts,
        "fixed": pa.array([b"abcd"] * rows, pa.binary(4)),
        "dictionary": encoded,
        "string_view": texts.cast(pa.string_view()),
        "binary_view": texts.cast(pa.binary()).cast(pa.binary_view()),
        "list": pa.ListArray.from_arrays(places, texts),
        "list_view": pa.array([[row] * 3 for row in range(rows)], pa.list_view(pa.int64())),
        "large_list_view": pa.array([[1]] * rows, pa.large_list_view(pa.int64())),
        "fixed_list": pa.array([[1, 2]] * rows, pa.list_(pa.int64(), 2)),
        "struct": pa.StructArray.from_arrays([numbers, texts], ["a", "b"]),
        "map": pa.MapArray.from_arrays(places, texts, numbers),
        "list_of_dictionary": pa.ListArray.from_arrays(places, encoded),
        "struct_of_dictionary": pa.StructArray.from_arrays([encoded], ["a"]),
        "map_of_dictionary": pa.MapArray.from_arrays(places, numbers, encoded),
        "struct_of_view": pa.StructArray.from_arrays([texts.cast(pa.string_view())], ["a"]),
        "sparse_union": pa.UnionArray.from_sparse(kinds, [numbers, texts]),
        "dense_union": pa.UnionArray.from_dense(kinds, half, [numbers, texts]),
        "run_end_encoded": pc.run_end_encode(pa.array([1] * (rows // 2) + [2] * (rows // 2))),
        "extension": pa.ExtensionArray.from_storage(
            pa.uuid(), pa.array([bytes([row % 256]) * 16 for row in range(rows)], pa.binary(16))
        ),
        "null": pa.nulls(rows),
    }
