"""Rows of a DataFrame as Arrow, with any column names and on every version of Spark."""

import re
from collections.abc import Callable, Container, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import types as T

from batchqueue import _core
from batchqueue.exceptions import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


Batches = Iterator[pa.RecordBatch]

_PLAIN = re.compile(r"\w+")


def map_in_arrow(
    df: "DataFrame", function: Callable[[Batches], Batches], schema: str
) -> "DataFrame":
    """Run a function over the record batches of each partition, as `df.mapInArrow` does.

    `mapInArrow` resolves columns by name: there a dot selects a field of a struct, a backtick is a
    quote, and duplicate names are ambiguous. Such columns are renamed for the call, and get their
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
    """Return the values of a column, with escapes for the bytes of texts that are not UTF-8."""
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
        # `toArrow` gives instants the zone UTC; tasks see the session's, in which keys are printed.
        return _in_zone(df.toArrow(), str(df.sparkSession.conf.get(SESSION_ZONE)))

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


def _in_zone(table: pa.Table, zone: str) -> pa.Table:
    """Label columns of instants with another zone; the instants stay the same."""
    fields = [
        field.with_type(pa.timestamp(field.type.unit, zone))
        if pa.types.is_timestamp(field.type) and field.type.tz is not None
        else field
        for field in table.schema
    ]
    return table.cast(pa.schema(fields))


# Times without a zone, Spark's TIMESTAMP_NTZ: read in the session's zone, as Spark's cast does.
#
# Python would read them in the zone of the worker's machine.


SESSION_ZONE = "spark.sql.session.timeZone"
"""The setting of a session. Spark sends it to the tasks only if it is set, not its default."""


def cast_to_instants(df: "DataFrame") -> "DataFrame":
    """Cast the columns of type TIMESTAMP_NTZ to TIMESTAMP, also within nested types.

    Returns:
        A DataFrame with the same names; `df` itself if it has no such column.
    """
    fields = df.schema.fields
    kinds = [_instants(field.dataType) for field in fields]
    if all(kind == field.dataType for kind, field in zip(kinds, fields, strict=True)):
        return df
    # Names may hold dots, or occur twice.
    numbered = df.toDF(*(f"column{position}" for position in range(len(fields))))
    columns = [
        column if kind == field.dataType else column.cast(kind)
        for column, kind, field in zip(
            (numbered[name] for name in numbered.columns), kinds, fields, strict=True
        )
    ]
    return numbered.select(*columns).toDF(*(field.name for field in fields))


def _instants(kind: T.DataType) -> T.DataType:
    if isinstance(kind, T.TimestampNTZType):
        return T.TimestampType()
    if isinstance(kind, T.ArrayType):
        return T.ArrayType(_instants(kind.elementType), kind.containsNull)
    if isinstance(kind, T.MapType):
        keys, values = _instants(kind.keyType), _instants(kind.valueType)
        return T.MapType(keys, values, kind.valueContainsNull)
    if isinstance(kind, T.StructType):
        return T.StructType(
            [
                T.StructField(field.name, _instants(field.dataType), field.nullable, field.metadata)
                for field in kind.fields
            ]
        )
    return kind


def batches_with_instants(batches: Iterable[pa.RecordBatch], zone: str) -> Iterator[pa.RecordBatch]:
    """Cast times without a zone in record batches, for rows that Spark hands over as they are.

    Args:
        batches: The rows.
        zone: The session's zone.

    Raises:
        ConfigError: There are times without a zone, and only Java knows the session's zone.
    """
    for batch in batches:
        if not any(_lacks_zone(field.type) for field in batch.schema):
            yield batch
            continue
        try:
            yield _core.with_instants(batch, zone)
        except ConfigError as error:
            names = [field.name for field in batch.schema if _lacks_zone(field.type)]
            raise ConfigError(
                f"column {names[0]!r} holds times without a zone (TIMESTAMP_NTZ), and "
                f"{SESSION_ZONE}={zone!r} is not a name of the IANA database: set it to one, such "
                "as 'America/New_York', or leave out the column before the write"
            ) from error


def _lacks_zone(kind: pa.DataType) -> bool:
    if pa.types.is_timestamp(kind):
        return kind.tz is None
    return any(_lacks_zone(kind.field(child).type) for child in range(kind.num_fields))


def zone_of_task(registered: str) -> str:
    """Return the session's zone in a task.

    Args:
        registered: The session's zone at registration, still the default if it was never set.
    """
    context = TaskContext.get()
    return (context and context.getLocalProperty(SESSION_ZONE)) or registered


# One record batch as a compressed Arrow IPC stream, and back.


_WRITE_OPTIONS = pa.ipc.IpcWriteOptions(compression="zstd")


def written(batch: pa.RecordBatch) -> bytes:
    """Return a record batch as a stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema, options=_WRITE_OPTIONS) as writer:
        writer.write_batch(batch)
    return bytes(sink.getvalue())


def read_batch(stream: bytes) -> pa.RecordBatch:
    """Return the record batch of a stream."""
    return pa.ipc.open_stream(stream).read_next_batch()
