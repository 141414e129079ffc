"""Rows of a DataFrame as Arrow, with any column names and on every version of Spark."""

import re
from collections.abc import Callable, Container, Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Batches = Iterator[pa.RecordBatch]

_PLAIN = re.compile(r"\w+")


def map_in_arrow(
    df: "DataFrame", function: Callable[[Batches], Batches], schema: str
) -> "DataFrame":
    """Run a function over the record batches of each partition, as `df.mapInArrow` does.

    `mapInArrow` resolves columns by name: there a dot selects a field of a struct, a backtick is a
    quote, and duplicate names are ambiguous. Such columns are renamed for the call, and have their
    own names back in the function.

    Args:
        df: A DataFrame of a classic session or of Spark Connect.
        function: Takes the record batches of a partition; runs in the partition's task.
        schema: Schema of what the function yields, as a DDL string.

    Returns:
        What the function yields, not yet computed.
    """
    names = df.columns
    if len({name.lower() for name in names}) == len(names) and all(map(_PLAIN.fullmatch, names)):
        return df.mapInArrow(function, schema)

    def with_names(batches: Batches) -> Batches:
        return function(_renamed(batch, names) for batch in batches)

    return df.toDF(*(f"column {position}" for position in range(len(names)))).mapInArrow(
        with_names, schema
    )


def _renamed(batch: pa.RecordBatch, names: list[str]) -> pa.RecordBatch:
    columns = [field.with_name(name) for field, name in zip(batch.schema, names, strict=True)]
    return pa.RecordBatch.from_arrays(batch.columns, schema=pa.schema(columns))


def unknown_tags(batch: pa.RecordBatch, type_column: str, tags: Container[str]) -> list[Any]:
    """Return the values of a column that are not among its tags, each once; null is unknown."""
    values = texts_of(batch.column(type_column).unique())
    return [value for value in values if value is None or str(value) not in tags]


def texts_of(values: pa.Array) -> list[Any]:
    """Return the values of a column; texts that are not UTF-8 with escapes for their bytes."""
    try:
        found: list[Any] = values.to_pylist()
    except UnicodeDecodeError:
        of_bytes = plain(values).cast(pa.large_binary()).to_pylist()
        found = [value and value.decode(errors="backslashreplace") for value in of_bytes]
    return found


def plain(values: pa.Array) -> pa.Array:
    """Return a column without a dictionary."""
    return values.dictionary_decode() if pa.types.is_dictionary(values.type) else values


def to_arrow(df: "DataFrame") -> pa.Table:
    """Run a DataFrame and collect its rows in this process. They must fit in memory.

    Returns:
        A table with the columns of `df`. On Spark 3.5 the columns of an empty table have type null.
    """
    if hasattr(df, "toArrow"):  # since Spark 4.0
        return df.toArrow()

    def streams(batches: Batches) -> Batches:
        for batch in batches:
            sink = pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, batch.schema) as writer:
                writer.write_batch(batch)
            yield pa.RecordBatch.from_pydict(
                {"stream": pa.array([sink.getvalue().to_pybytes()], pa.binary())}
            )

    rows = map_in_arrow(df, streams, "stream binary").collect()
    if not rows:
        return pa.Table.from_arrays([pa.nulls(0)] * len(df.columns), names=df.columns)
    return pa.concat_tables(pa.ipc.open_stream(row.stream).read_all() for row in rows)
