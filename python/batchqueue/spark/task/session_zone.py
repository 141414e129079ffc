"""Times without a zone, Spark's TIMESTAMP_NTZ: read in the session's zone, as Spark's cast does.

Python would read them in the zone of the worker's machine.
"""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import types as T

from batchqueue import ConfigError, _core

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SESSION_ZONE = "spark.sql.session.timeZone"
"""The setting of a session. Spark sends it to the tasks if it is set, and not its default."""


def cast_to_instants(df: "DataFrame") -> "DataFrame":
    """Cast the columns of type TIMESTAMP_NTZ to TIMESTAMP, also what is nested in others.

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
    """Do the same to record batches, for rows that Spark hands over as they are.

    Args:
        batches: The rows.
        zone: The session's zone.

    Raises:
        ConfigError: There are times without a zone, and the zone is one that only Java knows.
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
        registered: The session's zone before, which is still its default if it was never set.
    """
    context = TaskContext.get()
    return (context and context.getLocalProperty(SESSION_ZONE)) or registered
