"""Values as SQLite holds them: decimals as text, bools as 0 and 1, NaN as a blob."""

from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from functools import cache
from itertools import chain
from operator import eq
from typing import Any

from batchqueue.aggregation import Metrics
from batchqueue.aggregation.metrics import Row
from batchqueue.outputs.layout import check_keys, rows_of
from batchqueue.outputs.sqlite.schema import key_in_sql
from batchqueue.outputs.store import StoreError
from batchqueue.outputs.values import FITTING, shown

# SQLite silently turns NaN into NULL. This blob stands for NaN; no other value is stored as a blob.
_NAN = b"NaN"
_KEPT = {int, float, str, type(None)}


def stored_rows(
    metric_type: type[Metrics], metrics: Mapping[tuple[str, int], Metrics]
) -> Iterator[Row]:
    """Convert partials, by their keys, to rows with the columns of `read_table` as SQLite has them.

    Raises:
        StoreError: A key or a value is of another type.
    """
    check_keys(metric_type.name, metrics)
    heads, rows = rows_of(metrics, multi_row=metric_type.multi_row)
    if metric_type.key_columns:
        first = len(heads[0]) - len(metric_type.key_columns) if heads else 0
        heads = [(*head[:first], *map(key_in_sql, head[first:])) for head in heads]
    if not _are_kept(metric_type, rows):
        rows = [
            _stored_values(metric_type, row, head[:2])
            for head, row in zip(heads, rows, strict=True)
        ]
    return ((*head, *row) for head, row in zip(heads, rows, strict=True))


def rows_to_sql(metric_type: type[Metrics], rows: Sequence[Row]) -> Sequence[Row]:
    """Convert rows with the columns of `read_table`, and values of their types.

    Raises:
        StoreError: A value does not fit its column.
    """
    kinds = metric_type.columns.values()
    floats = [position for position, kind in enumerate(kinds, 2) if kind is float]
    if not (
        metric_type.key_columns
        or _kinds_unlike_sql(metric_type)
        or any(_has_nan([row[position] for row in rows]) for position in floats)
    ):
        return rows
    first = 2 + len(metric_type.key_columns)
    return [
        (
            *row[:2],
            *map(key_in_sql, row[2:first]),
            *_stored_values(metric_type, row[first:], row[:2]),
        )
        for row in rows
    ]


def _are_kept(metric_type: type[Metrics], rows: Sequence[Row]) -> bool:
    """Return whether SQLite keeps all values as they are."""
    values = list(chain.from_iterable(rows))
    is_plain = set(map(type, values)) <= _KEPT and not _has_nan(values)
    return is_plain and not _kinds_unlike_sql(metric_type)


def _has_nan(values: Sequence[Any]) -> bool:
    return not all(map(eq, values, values))


def _stored_values(metric_type: type[Metrics], row: Row, key: tuple[Any, ...]) -> Row:
    """Return the values of a row as SQLite holds them."""
    odd = _kinds_unlike_sql(metric_type)
    return tuple(
        value
        if type(value) in _KEPT and value == value  # noqa: PLR0124 - false for NaN
        else _checked(value, metric_type, key)
        for value in (_in_sql(metric_type, row, odd) if odd else row)
    )


@cache
def _kinds_unlike_sql(metric_type: type[Metrics]) -> dict[int, type]:
    """Return the types of the value columns that SQLite lacks, by position from the end."""
    kinds = metric_type.columns.values()
    return {
        position - len(kinds): kind
        for position, kind in enumerate(kinds)
        if kind in (bool, Decimal)
    }


def _in_sql(metric_type: type[Metrics], row: Row, odd: Mapping[int, type]) -> Row:
    """Return the values of a row, with decimals as text and bools as 0 and 1."""
    values = list(row)
    for position, kind in odd.items():
        if values[position] is not None:
            try:
                value = FITTING[kind](values[position])
            except (TypeError, OverflowError) as error:
                column = list(metric_type.columns)[position]
                raise StoreError(
                    f"{row!r} of metric {metric_type.name} does not fit the column {column} "
                    f"{shown(kind)}: {error}; check the metrics, or give metric_type other columns="
                ) from error
            values[position] = str(value) if kind is Decimal else int(value)
    return tuple(values)


def _checked(value: Any, metric_type: type[Metrics], key: tuple[Any, ...]) -> Any:
    """Return the stored form of NaN, or of a value whose type is a subclass of a plain type."""
    if not isinstance(value, int | float | str):
        raise StoreError(
            f"metric {metric_type.name} has the value {value!r} under {key}; "
            "check the metrics: values are int, float, str or None, and Decimal or bool where "
            "metric_type has such columns="
        )
    return _NAN if value != value else value  # noqa: PLR0124


def all_from_sql(rows: list[Row], metric_type: type[Metrics]) -> list[Row]:
    """Return stored rows, of which the value columns are the last, with the values they had."""
    if not _kinds_unlike_sql(metric_type) and bytes not in set(map(type, chain(*rows))):
        return rows
    return [from_sql(row, metric_type) for row in rows]


def from_sql(row: Row, metric_type: type[Metrics]) -> Row:
    """Return a stored row, of which the value columns are the last, with the values that it had."""
    values = [float(value) if type(value) is bytes else value for value in row]
    for position, kind in _kinds_unlike_sql(metric_type).items():
        value = values[position]
        if value is not None:
            if type(value) is not (str if kind is Decimal else int):
                raise StoreError(
                    f"metric {metric_type.name} was stored with {value!r} in a column that is now "
                    f"of {shown(kind)}: keep the types of its columns, or give the metric another "
                    "name"
                )
            values[position] = kind(value)
    return tuple(values)
