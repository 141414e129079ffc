"""Tables and columns of metrics: names that every store accepts, values that fit their columns.

Only the last part, rows as Arrow data, needs pyarrow.
"""

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import date
from decimal import Context, Decimal, InvalidOperation
from functools import cache
from hashlib import sha256
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from batchqueue.aggregation import Metrics
from batchqueue.aggregation.metrics import KeyValue, Row
from batchqueue.exceptions import ConfigError
from batchqueue.outputs.store import StoreError

if TYPE_CHECKING:
    import pyarrow as pa

M = TypeVar("M", bound=Metrics)

_LONGEST_NAME = 63
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}", re.ASCII)
KEY_TYPES: dict[str, type] = {"metric": str, "entity": str, "time_bucket": int, "rank": int}
KEY_COLUMNS = ("sink", *KEY_TYPES)
_RESERVED_PREFIXES = ("batchqueue_", "sqlite_")

PartialKey = tuple[str, str, int]
"""Metric, entity, time bucket: a sink stores at most one partial of each."""


class Layout(NamedTuple):
    """A table with typed columns.

    Attributes:
        table: Its name. Metrics whose column types differ from those of their kind, as with
            `metric_type(name, SumMetrics, columns={"total": int})`, have their own table, whose
            name ends in each such column and its type: "sum_metrics_total_int".
        columns: The columns beside those that all tables have, with their types, in order: key
            columns (str, int, bool or date), then value columns (int, float, str, bool or Decimal).
        multi_row: Whether there is a column `rank`, because a partial may take several rows.
    """

    table: str
    columns: tuple[tuple[str, type], ...]
    multi_row: bool

    @property
    def key_columns(self) -> tuple[str, ...]:
        """The columns that identify a row, without the column of the sink."""
        return KEY_COLUMNS[1:] if self.multi_row else KEY_COLUMNS[1:4]

    @property
    def kinds(self) -> dict[str, type]:
        """The types of `key_columns` and `columns`, by name and in order."""
        return {name: KEY_TYPES[name] for name in self.key_columns} | dict(self.columns)


@cache
def table_layout(metric_type: type[Metrics]) -> Layout:
    """Return the typed table of a metric type.

    Raises:
        ConfigError: The name of the table or of a column is invalid.
    """
    check_names(metric_type)
    owner = next(
        cls for cls in metric_type.__mro__ if "table" in vars(cls) and "made_by" not in vars(cls)
    )
    own_columns: Mapping[str, type] = owner.columns  # type: ignore[attr-defined]
    changed = [
        f"_{column}_{shown(kind)}"
        for column, kind in metric_type.columns.items()
        if own_columns.get(column) is not kind
    ]
    table = metric_type.table + "".join(changed)
    if metric_type.key_columns and len(table) > _LONGEST_NAME:  # the user did not choose this name
        table = f"{metric_type.table}_{sha256(table.encode()).hexdigest()[:8]}"
    quoted(table)
    return Layout(table, columns_of(metric_type), metric_type.multi_row)


def columns_of(metric_type: type[Metrics]) -> tuple[tuple[str, type], ...]:
    """Return the key columns and the value columns of a metric type."""
    return (*metric_type.key_columns.items(), *metric_type.columns.items())


def check_names(metric_type: type[Metrics]) -> None:
    """Check the names that a metric type gives to its table and its columns.

    Raises:
        ConfigError: A name is invalid, or reserved for the stores.
    """
    names = [name for name, _ in columns_of(metric_type)]
    for name in (metric_type.table, *names):
        quoted(name)
    reserved = [name for name in names if name.lower() in KEY_COLUMNS]
    if reserved or metric_type.table.lower().startswith(_RESERVED_PREFIXES):
        raise ConfigError(
            f"{metric_type.name} cannot be stored in table {metric_type.table!r} with columns "
            f"{', '.join(names)}: tables batchqueue_* and sqlite_* and the columns "
            f"{', '.join(KEY_COLUMNS)} are reserved; choose other names"
        )


def is_name(identifier: str) -> bool:
    """Return whether a table or a column may have this name."""
    return _IDENTIFIER.fullmatch(identifier) is not None


def quoted(identifier: str) -> str:
    """Quote the name of a table or a column.

    Raises:
        ConfigError: It is not made of up to 63 ASCII letters, digits and underscores, or begins
            with a digit.
    """
    if not is_name(identifier):
        raise ConfigError(
            f"{identifier!r} cannot be the name of a table or column: use up to 63 letters, digits "
            "and underscores, and do not begin with a digit"
        )
    return f'"{identifier}"'


def check_key(metric: str, key: tuple[str, int]) -> None:
    """Reject a key that a store would convert, because two keys could end up in the same row.

    Raises:
        StoreError: The entity is not a str, or the time bucket is not an int of 64 bits.
    """
    entity: object = key[0]
    time_bucket = key[1]
    if (
        type(entity) is not str
        or type(time_bucket) is not int
        or not -(2**63) <= time_bucket < 2**63
    ):
        hint = " (a Spark job leaves out null keys by ArrowAggregation(null_keys='skip'))"
        if type(entity) is tuple:
            hint = " (a kind of your own takes tuples if its __init__ calls that of Metrics)"
        raise StoreError(
            f"metric {metric} has the key ({entity!r}, {time_bucket!r}); "
            "check the metrics: an entity is a str, and a time bucket an int of up to 64 bits"
            f"{hint if None in key or type(entity) is tuple else ''}"
        )


def check_keys(metric: str, keys: Collection[tuple[str, int]]) -> None:
    """Check many keys as `check_key` does."""
    if not keys:
        return
    entities, time_buckets = zip(*keys, strict=True)
    if (
        set(map(type, entities)) != {str}
        or set(map(type, time_buckets)) != {int}
        or min(time_buckets) < -(2**63)
        or max(time_buckets) >= 2**63
    ):
        for key in keys:
            check_key(metric, key)


def typed_rows(layout: Layout, partials: Mapping[PartialKey, Metrics]) -> Iterator[tuple[Any, ...]]:
    """Convert partials to rows of a typed table: key columns, then value columns.

    Raises:
        StoreError: A key or a value does not fit its column.
    """
    heads, rows = rows_of(partials, multi_row=layout.multi_row)
    before = 4 if layout.multi_row else 3
    if not _fit(rows, [kind for _, kind in layout.columns], set(map(len, heads)), before):
        rows = [
            _fitting_row(layout, head[0], row, len(head) - before)
            for head, row in zip(heads, rows, strict=True)
        ]
    return ((*head, *row) for head, row in zip(heads, rows, strict=True))


def rows_of(
    partials: Mapping[tuple[Any, ...], Metrics], *, multi_row: bool
) -> tuple[list[tuple[Any, ...]], list[Row]]:
    """Return the rows of partials: what precedes the value columns of each, and the values.

    Args:
        partials: By what their rows begin with; the rank, if there is one, and the key columns
            follow.
        multi_row: Whether there is a rank.

    Raises:
        StoreError: An entity does not stand for values of the key columns, or there is no rank and
            a partial does not have one row.
    """
    of_each = [list(item.to_rows()) for item in partials.values()]
    if not multi_row:
        for item, of_item in zip(partials.values(), of_each, strict=True):
            if len(of_item) != 1:
                raise StoreError(
                    f"metric {item.name} has {len(of_item)} rows under {item.key}: a kind whose "
                    "to_rows() does not return exactly one sets multi_row = True"
                )
        if not any(item.key_columns for item in partials.values()):
            return list(partials), [row for (row,) in of_each]
    heads: list[tuple[Any, ...]] = []
    rows: list[Row] = []
    for (key, item), of_item in zip(partials.items(), of_each, strict=True):
        key_values = key_values_of(item)
        for rank, row in enumerate(of_item, 1):
            heads.append((*key, rank, *key_values) if multi_row else (*key, *key_values))
            rows.append(row)
    return heads, rows


def partials_of(metric_type: type[M], rows: Iterable[Row]) -> list[M]:
    """Rebuild the partials of a metric from its rows, with the columns of `read_table`."""
    first = len(table_layout(metric_type).key_columns) - 1 + len(metric_type.key_columns)
    return grouped_partials(metric_type, rows, first)


def grouped_partials(metric_type: type[M], rows: Iterable[Row], first: int) -> list[M]:
    """Rebuild the partials of a metric from its rows, in their order.

    Args:
        metric_type: The metric.
        rows: Rows that begin with entity and time bucket; those of one key are adjacent.
        first: The index of the first value column.
    """
    values = slice(first, None)
    if not metric_type.multi_row:
        make = metric_type.from_rows
        return [make(row[0], row[1], [row[values]]) for row in rows]
    return [
        metric_type.from_rows(entity, time_bucket, [row[values] for row in group])
        for (entity, time_bucket), group in groupby(rows, key=lambda row: row[:2])
    ]


def _fit(rows: list[Row], kinds: list[type], lengths: set[int], before: int) -> bool:
    """Return whether all values have the exact types of their columns; others may fit as well.

    Checking a whole column takes a tenth of the time of a call for each value.
    """
    if len(lengths) != 1 or len(set(map(len, rows))) != 1:
        return False
    kinds = kinds[lengths.pop() - before :]
    columns = list(zip(*rows, strict=True))
    return len(columns) == len(kinds) and all(map(_fits, columns, kinds))


def _fits(values: Sequence[Any], kind: type) -> bool:
    if kind is Decimal or not set(map(type, values)) <= {kind, type(None)}:
        return False
    known = [value for value in values if value is not None] if kind is int else []
    return not known or (min(known) >= -(2**63) and max(known) < 2**63)


def _fitting_row(layout: Layout, metric: str, row: Row, key_columns: int) -> Row:
    kinds = [kind for _, kind in layout.columns[key_columns:]]
    try:
        return tuple(
            value if value is None else FITTING[kind](value)
            for value, kind in zip(row, kinds, strict=True)
        )
    except (TypeError, ValueError, OverflowError) as error:
        declared = ", ".join(f"{name} {shown(kind)}" for name, kind in layout.columns)
        raise StoreError(
            f"{row!r} of metric {metric} does not fit the columns ({declared}): {error}; check the "
            "metrics, give metric_type other columns=, or measure in another unit"
        ) from error


def key_values_of(item: Metrics) -> tuple[KeyValue, ...]:
    """Return the values of the key columns of a partial.

    Raises:
        StoreError: Its entity does not stand for such values.
    """
    try:
        return item.key_values
    except ValueError as error:
        raise StoreError(f"metric {item.name}: {error}") from error


def check_storable(item: Metrics) -> None:
    """Check that a partial can be stored as it is.

    Raises:
        StoreError: A key or a value does not fit its column.
    """
    check_key(item.name, item.key)
    rows = typed_rows(table_layout(type(item)), {(item.name, *item.key): item})
    for text in (value for row in rows for value in row if type(value) is str):
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise StoreError(
                f"metric {item.name} has {text!r}, which is not valid Unicode: check the metrics"
            ) from error


def by_layout(metrics: Iterable[Metrics]) -> dict[Layout, dict[PartialKey, Metrics]]:
    """Group partials by their table; of several with equal keys, the last counts.

    Raises:
        StoreError: A key does not fit its columns.
    """
    tables: dict[Layout, dict[PartialKey, Metrics]] = {}
    for metric_type, group in groupby(metrics, _type_of):
        items = list(group)
        check_keys(metric_type.name, [item.key for item in items])
        table = tables.setdefault(table_layout(metric_type), {})
        table.update(((item.name, *item.key), item) for item in items)
    return tables


def _type_of(item: Metrics) -> type[Metrics]:
    return type(item)


# The types of value columns, and the values that fit them, the same in every store.


DECIMAL_DIGITS, DECIMAL_PLACES = 38, 18
"""The most digits of a Decimal in a store: in total, and after the point."""

_WIDE = Context(prec=1_000)
_MOST = Decimal(10) ** (DECIMAL_DIGITS - DECIMAL_PLACES)


def plain(value: Decimal) -> Decimal:
    """Return an equal decimal without trailing zeros and without an exponent."""
    short = value.normalize(_WIDE)
    if not short:
        return Decimal(0)
    is_whole = short == short.to_integral_value()
    return short.quantize(Decimal(1), context=_WIDE) if is_whole else short


def plain_in(values: Sequence[Any]) -> Sequence[Any]:
    """Return values, with the decimals among them in plain form."""
    if not any(isinstance(value, Decimal) for value in values):
        return values
    return [plain(value) if isinstance(value, Decimal) else value for value in values]


def _fitting_int(value: Any) -> int:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if not isinstance(value, int):
        raise TypeError(f"{value!r} is not a whole number")
    if not -(2**63) <= value < 2**63:
        raise OverflowError(f"{value} has more than 64 bits")
    return int(value)


def _fitting_float(value: Any) -> float:
    if isinstance(value, float):
        return float(value)
    if not isinstance(value, int):
        raise TypeError(f"{value!r} is not a number")
    if int(float(value)) != value:
        raise OverflowError(f"{value} is an int of more than 53 bits, which a float cannot hold")
    return float(value)


def _fitting_str(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not a str")
    return str.__str__(value)  # str() of a text that is an Enum would be its name


def _fitting_bool(value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"{value!r} is not a bool")
    return value


def _fitting_decimal(value: Any) -> Decimal:
    if isinstance(value, bool) or not isinstance(value, int | Decimal):
        raise TypeError(f"{value!r} is not a Decimal or an int")
    if isinstance(value, Decimal) and not value.is_finite():
        raise OverflowError(f"{value} is not finite")
    exact = Decimal(value)
    try:
        fits = exact.copy_abs() < _MOST and exact == exact.quantize(
            Decimal(1).scaleb(-DECIMAL_PLACES), context=_WIDE
        )
    except InvalidOperation:  # more digits than `_WIDE` has
        fits = False
    if not fits:
        raise OverflowError(
            f"{value} has more than {DECIMAL_DIGITS - DECIMAL_PLACES} digits before the point or "
            f"{DECIMAL_PLACES} after it"
        )
    return plain(exact)


FITTING: dict[type, Callable[[Any], Any]] = {
    int: _fitting_int,
    float: _fitting_float,
    str: _fitting_str,
    bool: _fitting_bool,
    Decimal: _fitting_decimal,
}
"""By column type, the function that returns the value to store, or raises if it does not fit."""


def described(kind: type) -> str:
    """Return the type of a column as text, with its limit if the name does not imply it."""
    if kind is not Decimal:
        return shown(kind)
    whole = DECIMAL_DIGITS - DECIMAL_PLACES
    return f"decimal of up to {whole} digits before the point and {DECIMAL_PLACES} after it"


def shown(kind: type) -> str:
    """Return the type of a column as text for table names and messages."""
    return kind.__name__.lower()


# Stored rows as Arrow: the schema of a table of metrics, and rows in it.


@cache
def arrow_types() -> "dict[type, pa.DataType]":
    """Return the Arrow types of columns."""
    import pyarrow as pa

    return {
        int: pa.int64(),
        float: pa.float64(),
        str: pa.string(),
        bool: pa.bool_(),
        Decimal: pa.decimal128(DECIMAL_DIGITS, DECIMAL_PLACES),
        date: pa.date32(),
    }


def schema_of(layout: Layout) -> "pa.Schema":
    """Return the schema of a table of metrics."""
    import pyarrow as pa

    return pa.schema([(name, arrow_types()[kind]) for name, kind in layout.kinds.items()])


def schema_of_metric(layout: Layout) -> "pa.Schema":
    """Return the schema of the rows read for one metric, without the column of its name."""
    return schema_of(layout).remove(0)


def table_of(rows: Iterable[tuple[Any, ...]], schema: "pa.Schema") -> "pa.Table":
    """Return rows of all columns as an Arrow table."""
    import pyarrow as pa

    columns = list(zip(*rows, strict=True)) or [()] * len(schema)
    arrays = [typed_array(column, kind.type) for column, kind in zip(columns, schema, strict=True)]
    return pa.table(arrays, schema=schema)


def typed_array(values: Sequence[Any], kind: "pa.DataType") -> "pa.Array":
    """Return values as an array of a type.

    Raises:
        ArrowException: A value does not have the type.
    """
    import pyarrow as pa
    from pyarrow import types

    from batchqueue.base.exact_cast import exact_cast

    if types.is_decimal(kind):
        return pa.array([value if value is None else _decimal(value) for value in values], kind)
    if kind != pa.int64():
        return pa.array(values, kind)
    # Asked for int64 directly, Arrow would truncate a float; the cast rejects it. But the cast
    # would parse text, and turn a datetime into microseconds.
    array = pa.array(values)
    if array.type == kind:
        return array
    is_number = (types.is_integer, types.is_floating, types.is_decimal, types.is_null)
    if not any(is_kind(array.type) for is_kind in is_number):
        odd = next(value for value in values if value is not None)
        raise pa.ArrowTypeError(f"{odd!r} is not a number")
    return exact_cast(array, kind)


def _decimal(value: Any) -> Decimal:
    import pyarrow as pa

    try:
        return FITTING[Decimal](value)  # type: ignore[no-any-return]
    except (TypeError, OverflowError) as error:
        raise pa.ArrowInvalid(str(error)) from error


def values_of(column: "pa.ChunkedArray | pa.Array") -> Sequence[Any]:
    """Return the values of a stored column, decimals in plain form."""
    from pyarrow import types

    values = column.to_pylist()
    return plain_in(values) if types.is_decimal(column.type) else values


def batch_of(metric: str, rows: Iterable[tuple[Any, ...]], schema: "pa.Schema") -> "pa.RecordBatch":
    """Return rows of a metric as a record batch.

    Raises:
        StoreError: A value does not fit its column.
    """
    import pyarrow as pa

    try:
        (batch,) = table_of(rows, schema).to_batches()
    except (pa.ArrowException, OverflowError, UnicodeError) as error:
        declared = ", ".join(f"{field.name} {field.type}" for field in schema)
        raise StoreError(
            f"metric {metric} has a value that does not fit the columns ({declared}): {error}; "
            'give metric_type the types of its values, for instance columns={"total": int}, or '
            "use read(), which returns them as they are"
        ) from error
    return batch
