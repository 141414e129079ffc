"""Arrow schemas and those of Spark, which has fewer types.

A column travels through Spark in the nearest type that holds all of its values, and has its own
type again in the operators.
"""

from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

from batchqueue.pipeline.errors import NotOnSparkError

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

_WIDER = {
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.uint64(): pa.decimal128(20, 0),
    pa.float16(): pa.float32(),
    pa.date64(): pa.timestamp("ms"),
    pa.time32("s"): pa.time64("us"),
    pa.time32("ms"): pa.time64("us"),
    pa.string_view(): pa.string(),
    pa.binary_view(): pa.binary(),
}


def spark_schema(schema: pa.Schema, where: str) -> "StructType":
    """Return the schema of Spark that holds the values of an Arrow schema.

    Args:
        schema: The columns.
        where: Whose columns they are, for the error, such as "source 'orders'".

    Raises:
        NotOnSparkError: A column has a type that Spark does not have, or two have one name.
    """
    if len(set(schema.names)) < len(schema.names):
        twice = next(name for name in schema.names if schema.names.count(name) > 1)
        raise NotOnSparkError(
            f"{where} has two columns {twice!r}, and Spark goes by name; rename one of them"
        )
    columns = []
    for field in schema:
        column = pa.field(field.name, _wider(field.type), field.nullable)
        try:
            from_arrow_schema(pa.schema([column]))
        # Raised by pyspark in different classes, depending on its version.
        except Exception as error:
            raise NotOnSparkError(
                f"{where}: Spark has no type for column {field.name!r}, {field.type} ({error}); "
                "convert or leave out the column in the source"
            ) from error
        columns.append(column)
    return from_arrow_schema(pa.schema(columns))


def arrow_schema(struct: "StructType") -> pa.Schema:
    """Return the Arrow schema in which Spark's Python workers take and give rows."""
    convert: Any = to_arrow_schema
    try:
        schema = convert(struct, timezone="UTC")
    except TypeError:  # before pyspark 4.1 it is always UTC
        schema = convert(struct)
    return pa.schema(list(schema))


def _wider(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_dictionary(kind):
        return _wider(kind.value_type)
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", kind.tz)
    return _WIDER.get(kind, kind)
