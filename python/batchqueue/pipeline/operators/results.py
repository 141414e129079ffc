"""What an operator may return, and the errors for everything else."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import pyarrow as pa

from batchqueue._words import a_type
from batchqueue.pipeline.errors import OperatorError

_REMEDY = "return a RecordBatch, a Table, an iterable of these, or None for nothing"


def batches_of(operator: str, result: Any) -> Iterator[pa.RecordBatch]:
    """Return the record batches of what `process` or `flush` returned, lazily.

    Raises:
        OperatorError: It is neither a batch, a table, an iterable of these, nor None.
    """
    if result is None:
        return
    if isinstance(result, pa.RecordBatch | pa.Table):
        yield from _batches(result)
        return
    if isinstance(result, str | bytes | Mapping) or not isinstance(result, Iterable):
        raise OperatorError(f"{operator} returned {a_type(result)}; {_REMEDY}", operator)
    for item in result:
        if not isinstance(item, pa.RecordBatch | pa.Table):
            raise OperatorError(
                f"{operator} returned {a_type(result)} with {a_type(item)} in it; {_REMEDY}",
                operator,
            )
        yield from _batches(item)


def check_schema(operator: str, batch: pa.RecordBatch, wanted: pa.Schema) -> None:
    """Refuse a batch whose columns differ from the declared ones; metadata may differ.

    Raises:
        OperatorError: They differ; the message says in what.
    """
    if batch.schema.equals(wanted):
        return
    raise OperatorError(
        f"{operator} returned another schema than it declares: "
        f"{_difference(batch.schema, wanted)}; change the function or schema=",
        operator,
    )


def row_values(operator: str, given: Any, rows: int, wanted: str) -> pa.Array:
    """Return what a function returned for the rows of a chunk, as one array.

    Args:
        operator: Whose function it is.
        given: A pyarrow array, chunked or not, or what `pa.array` takes: numpy, pandas, a list.
        rows: The rows of the chunk.
        wanted: The remedy for the errors.

    Raises:
        OperatorError: It is not an array, or not of that length.
    """
    if isinstance(given, pa.ChunkedArray):
        values = given.combine_chunks()
    elif isinstance(given, pa.Array):
        values = given
    else:
        try:
            values = pa.array(given)
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            message = f"{operator} returned {a_type(given)}; {wanted}"
            raise OperatorError(message, operator) from error
    if len(values) != rows:
        raise OperatorError(f"{operator} returned {len(values)} values; {wanted}", operator)
    return values


def _difference(found: pa.Schema, wanted: pa.Schema) -> str:
    missing = [name for name in wanted.names if name not in found.names]
    added = [name for name in found.names if name not in wanted.names]
    parts = []
    if missing:
        parts.append(f"{_named(missing)} missing")
    if added:
        parts.append(f"{_named(added)} not declared")
    if not parts and found.names != wanted.names:
        parts.append(f"the columns are {found.names}, declared are {wanted.names}")
    if not parts:
        parts += [
            f"{have.name!r} is {_described(have)}, declared is {_described(want)}"
            for have, want in zip(found, wanted, strict=True)
            if not have.equals(want)
        ]
    return ", ".join(parts)


def _described(field: pa.Field) -> str:
    return f"{field.type}{'' if field.nullable else ' not null'}"


def _named(columns: list[str]) -> str:
    return f"{', '.join(map(repr, columns))} {'is' if len(columns) == 1 else 'are'}"


def _batches(data: pa.RecordBatch | pa.Table) -> list[pa.RecordBatch]:
    return [data] if isinstance(data, pa.RecordBatch) else data.to_batches()
