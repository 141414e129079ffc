"""`IterableSource`: rows from anything that can be iterated over repeatedly."""

import datetime
import math
import reprlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

import pyarrow as pa
import pyarrow.compute

from batchqueue.base.checks import check_whole, is_whole
from batchqueue.base.words import a_type, counted
from batchqueue.exceptions import ConfigError
from batchqueue.pipeline.contract import (
    Lag,
    Limit,
    Plan,
    Position,
    PositionError,
    SourceChangedError,
    SourceDataError,
    Split,
)

_MOST_ROWS = 1_000_000
_FIELD = "rows"


class IterableSource:
    """A source of the rows of an iterable that a factory makes.

    The position is the count of rows. To continue from one, the source makes a new iterable and
    skips that many rows, so the factory must return the same rows in the same order each time;
    skipping takes as long as making them.

    It holds one split in memory. It pickles if the factory does.

    Example:
        >>> from batchqueue.pipeline import IterableSource
        >>> source = IterableSource(lambda: ({"n": n} for n in range(1000)), split_rows=400)
        >>> from batchqueue.pipeline import Limit
        >>> [split] = source.plan({"rows": 800}, Limit(rows=500, bytes=1 << 20)).splits
        >>> [batch.num_rows for batch in source.read(split)]
        [200]
    """

    bounded = True

    def __init__(
        self,
        factory: Callable[[], Iterable[Mapping[str, Any] | pa.RecordBatch | pa.Table]],
        *,
        schema: pa.Schema | None = None,
        split_rows: int = 500,
        name: str = "iterable",
    ) -> None:
        """Make a source; the factory is called on first use.

        Args:
            factory: Makes an iterable of dicts, record batches or tables, in any mixture. It is
                called for each run, and whenever rows are read out of order.
            schema: The columns. Default: None, those of the first split. A value that its column
                cannot hold unchanged, such as 1.5 among integers, is an error when it is read.
            split_rows: The rows of a split, 1 to 1,000,000. A cut falls between two splits.
                Default: 500.
            name: Its name in checkpoints and statistics. Default: "iterable".

        Raises:
            ConfigError: An argument is invalid.
        """
        if not callable(factory):
            raise ConfigError(
                f"factory is {factory!r}; give a function that returns an iterable, for instance "
                "lambda: rows"
            )
        limits = f"an int from 1 to {_MOST_ROWS:,}"
        check_whole("split_rows", split_rows, 1, _MOST_ROWS, limits)
        if not isinstance(name, str) or not name or not name.isprintable():
            raise ConfigError(f"name is {name!r}; give printable characters, at least one")
        self.name = name
        self._factory = factory
        self._schema = schema
        self._split_rows = split_rows
        self._begin()

    def _begin(self) -> None:
        self._last_made: object = None
        self._forget()

    def _forget(self) -> None:
        self._rows: Iterator[Mapping[str, Any] | pa.RecordBatch] | None = None
        self._at = 0
        self._left: pa.RecordBatch | None = None
        self._taken: tuple[int, list[pa.RecordBatch]] | None = None

    def __getstate__(self) -> dict[str, Any]:
        opened = ("_rows", "_at", "_left", "_taken", "_last_made")
        return {name: value for name, value in self.__dict__.items() if name not in opened}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._begin()

    def schema(self) -> pa.Schema:
        """Return the given schema, or that of the first split; without any rows it is empty."""
        if self._schema is None:
            self._batches_at(0)
        return pa.schema([]) if self._schema is None else self._schema

    def initial(self) -> Position:
        """Return the position of the first row."""
        return {_FIELD: 0}

    def plan(self, start: Position, limit: Limit) -> Plan:
        """Return the next split. The limit does not matter: a plan has one split."""
        del limit
        split = self._split_at(self._row_of(start))
        if split is None:
            return Plan((), start)
        return Plan((split,), split.end)

    def between(self, start: Position, end: Position) -> Sequence[Split]:
        """Return the splits from one position to a later one."""
        at, last = self._row_of(start), self._row_of(end)
        splits = []
        while at < last:
            split = self._split_at(at)
            at = last + 1 if split is None else self._row_of(split.end)
            if split is None or at > last:
                raise SourceChangedError(
                    f"source {self.name!r} has no end of a split at row {last}; give the factory "
                    f"and split_rows of the run that stopped there (split_rows is now "
                    f"{self._split_rows})"
                )
            splits.append(split)
        return splits

    def read(self, split: Split) -> Iterator[pa.RecordBatch]:
        """Return the rows of a split."""
        batches = self._batches_at(self._row_of(split.start))
        rows = sum(batch.num_rows for batch in batches)
        wanted = self._row_of(split.end) - self._row_of(split.start)
        if rows != wanted:
            raise SourceChangedError(
                f"source {self.name!r} has {counted(rows, 'row')} from row {split.start[_FIELD]} "
                f"on and had {wanted}; the factory must give the same rows each time"
            )
        yield from batches

    def lag(self, at: Position) -> dict[str, Lag]:
        """Return nothing: the number of following rows is unknown."""
        del at
        return {}

    def commit(self, end: Position) -> None:
        """Do nothing: rows are not kept."""

    def __repr__(self) -> str:
        return f"IterableSource({self._factory!r}, name={self.name!r})"

    def _row_of(self, position: Position) -> int:
        row = position.get(_FIELD) if isinstance(position, dict) else None
        if not is_whole(row, 0) or len(position) != 1:
            raise PositionError(
                f"source {self.name!r}: {position!r} is not a position; give "
                '{"rows": count}, as `plan` returned it'
            )
        return row

    def _split_at(self, row: int) -> Split | None:
        rows = sum(batch.num_rows for batch in self._batches_at(row))
        if not rows:
            return None
        # Of unknown size, because only one split is in memory: it ends the plan.
        return Split("0", {_FIELD: row}, {_FIELD: row + rows}, None, None, None)

    def _batches_at(self, row: int) -> list[pa.RecordBatch]:
        """Return the rows of the split that begins at a row; none after the end."""
        if self._taken is None or self._taken[0] != row:
            if self._rows is None or self._at != row:
                self._skip_to(row)
            self._taken = row, self._next_batches()
        return self._taken[1]

    def _skip_to(self, row: int) -> None:
        self._forget()
        self._rows = self._pieces()
        while self._at < row:
            piece = next(self._rows, None)
            if piece is None:
                raise SourceChangedError(
                    f"source {self.name!r} has {counted(self._at, 'row')} and the position is row "
                    f"{row}; the factory must give the same rows each time"
                )
            if isinstance(piece, Mapping):
                self._at += 1
                continue
            rest = piece.num_rows - (row - self._at)
            if rest > 0:
                self._left = piece.slice(row - self._at)
            self._at = min(row, self._at + piece.num_rows)

    def _next_batches(self) -> list[pa.RecordBatch]:
        """Take the rows of a split, and move past them."""
        assert self._rows is not None
        batches: list[pa.RecordBatch] = []
        dicts: list[Mapping[str, Any]] = []
        wanted = self._split_rows
        while wanted:
            piece: Mapping[str, Any] | pa.RecordBatch | None = self._left
            if piece is None:
                piece = next(self._rows, None)
            self._left = None
            if piece is None:
                break
            if isinstance(piece, Mapping):
                dicts.append(piece)
                wanted -= 1
                continue
            batches += self._of_dicts(dicts)
            dicts = []
            batch: pa.RecordBatch = piece
            if batch.num_rows > wanted:
                self._left = batch.slice(wanted)
                batch = batch.slice(0, wanted)
            batches.append(self._checked(batch))
            wanted -= batch.num_rows
        batches += self._of_dicts(dicts)
        self._at += self._split_rows - wanted
        return batches

    def _of_dicts(self, dicts: list[Mapping[str, Any]]) -> list[pa.RecordBatch]:
        if not dicts:
            return []
        if self._schema is not None:
            known = set(self._schema.names)
            for row in dicts:
                if not known.issuperset(row):
                    raise SourceChangedError(
                        f"source {self.name!r} gave a row with {sorted(set(row) - known)}, and its "
                        f"columns are {_text(self._schema)}; give schema= with all columns"
                    )
        return [self._checked(batch_of_dicts(self.name, dicts, self._schema))]

    def _checked(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if self._schema is None:
            self._schema = batch.schema
        elif not batch.schema.equals(self._schema):
            raise SourceChangedError(
                f"source {self.name!r} gave columns {_text(batch.schema)}, and before "
                f"{_text(self._schema)}; give schema=, and the same columns in each batch"
            )
        return batch

    def _pieces(self) -> Iterator[Mapping[str, Any] | pa.RecordBatch]:
        """Return the dicts and the record batches that have rows."""
        made = self._factory()
        if isinstance(made, Iterator):
            if made is self._last_made:
                raise ConfigError(
                    f"the factory of source {self.name!r} returned the same iterator again, which "
                    "has no rows any more; make a new one in each call"
                )
            self._last_made = made
        for item in made:
            if isinstance(item, Mapping):
                yield item
            elif isinstance(item, pa.RecordBatch | pa.Table):
                batches = item.to_batches() if isinstance(item, pa.Table) else [item]
                yield from (batch for batch in batches if batch.num_rows)
            else:
                raise TypeError(
                    f"the factory of source {self.name!r} gave {a_type(item)}; give "
                    "dicts, record batches or tables"
                )


def _text(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema)


# Makes record batches of dicts, and refuses values that a column cannot hold unchanged.


_REFUSALS = (pa.ArrowException, TypeError, ValueError, OverflowError)
"""What Arrow raises for a value; the first covers its own errors."""

_short = reprlib.Repr()
_short.maxstring = _short.maxother = 80


def batch_of_dicts(
    source: str, rows: Sequence[Mapping[str, Any]], schema: pa.Schema | None
) -> pa.RecordBatch:
    """Return rows as a record batch; fields that a row lacks are null.

    Args:
        source: The name of the source.
        rows: The rows, at least one.
        schema: The columns; `None` for those of these rows, in the order in which they appear.

    Raises:
        SourceDataError: A value does not fit its column, or there is no column.
    """
    if schema is None:
        names = list(dict.fromkeys(chain.from_iterable(rows)))
        odd = next((name for name in names if not isinstance(name, str)), None)
        if odd is not None:
            raise SourceDataError(
                f"source {source!r} gave a column named {odd!r}; give texts as names"
            )
        fields = [pa.field(name, pa.null()) for name in names]
    else:
        fields = list(schema)
    if not fields:
        raise SourceDataError(
            f"source {source!r} gave {counted(len(rows), 'row')} without a column; give schema=, "
            "or leave such rows out"
        )
    arrays = []
    for field in fields:
        name = field.name
        values = [row.get(name) for row in rows]
        arrays.append(_column(source, field, values, is_typed=schema is not None))
    if schema is not None:
        return pa.RecordBatch.from_arrays(arrays, schema=schema)
    return pa.RecordBatch.from_arrays(arrays, names=[field.name for field in fields])


def _column(source: str, field: pa.Field, values: list[Any], *, is_typed: bool) -> pa.Array:
    kind = field.type if is_typed else None
    try:
        array = _array(values, kind)
    except _REFUSALS as error:
        refused = _refused(values, kind)
        what = f"{len(values)} values together" if len(refused) > 1 else _short.repr(refused[0])
        given = "" if kind is None else f" as {kind}"
        raise SourceDataError(
            f"source {source!r}: column {field.name!r} cannot have {what}{given} ({error}); give "
            "schema= with a type for all values, or convert them first"
        ) from error
    if array.null_count and not field.nullable:
        raise SourceDataError(
            f"source {source!r}: column {field.name!r} has a null, and schema= says that it has "
            "none; make the field nullable, or leave such rows out"
        )
    return array


def _array(values: list[Any], kind: pa.DataType | None) -> pa.Array:
    array = pa.array(values, kind)
    check_kept(values, array)
    return array


def _refused(values: list[Any], kind: pa.DataType | None) -> list[Any]:
    """Return the first value that is refused alone; all values if there is none."""
    rest = values
    while len(rest) > 1:
        half = len(rest) // 2
        for part in (rest[:half], rest[half:]):
            try:
                _array(part, kind)
            except _REFUSALS:
                rest = part
                break
        else:
            return values
    return rest


# Finds values that Arrow silently changes when it makes an array of them.
#
# It turns 1.5 into the integer 1 and a time into a date, truncates a time to the unit of its
# column, moves a time between zones where only one side has a zone, and drops values that a struct
# has no field for.


_compute: Any = pyarrow.compute

_CHANGED = "the value would change"

_PER_UNIT = {"s": 1_000_000, "ms": 1_000, "us": 1, "ns": 0}
"""Microseconds per unit of time; 0 for finer units."""


def check_kept(values: list[Any], array: pa.Array) -> None:
    """Check that an array has the values that it was made from; floats may be rounded.

    Args:
        values: The values, at any depth.
        array: What `pyarrow.array` made of them.

    Raises:
        ValueError: A value has changed.
    """
    if _has_changed(values, array):
        raise ValueError(_CHANGED)


def _has_changed(values: list[Any], array: pa.Array) -> bool:
    kind, types = array.type, pa.types
    if _is_right(array):
        return False
    if types.is_dictionary(kind):
        return _has_changed(values, array.dictionary_decode())
    if types.is_nested(kind):
        return _have_parts_changed(values, array)
    if types.is_temporal(kind):
        return _have_times_changed(values, kind)
    return _have_numbers_changed(values, array)


def _have_parts_changed(values: list[Any], array: pa.Array) -> bool:
    present = (value for value in values if value is not None)
    if pa.types.is_struct(array.type):
        return _have_fields_changed(values, array)
    if pa.types.is_map(array.type):
        pairs = list(chain.from_iterable(map(_pairs, present)))
        return _has_changed([key for key, _ in pairs], array.keys) or _has_changed(
            [item for _, item in pairs], array.items
        )
    items = array.flatten()
    return not _is_right(items) and _has_changed(list(chain.from_iterable(present)), items)


def _have_numbers_changed(values: list[Any], array: pa.Array) -> bool:
    if pa.types.is_integer(array.type):
        if set(map(type, values)) <= {int, type(None)}:
            return False
        return any(
            kept is not None and kept != value
            for value, kept in zip(values, array.to_pylist(), strict=True)
        )
    return any(
        kept is not None and math.isinf(kept) and not math.isinf(value)
        for value, kept in zip(values, array.to_pylist(), strict=True)
    )


def _is_right(array: pa.Array) -> bool:
    """Return whether an array certainly has what it was made from."""
    if pa.types.is_floating(array.type):
        return not _compute.any(_compute.is_inf(array.cast(pa.float64()))).as_py()
    return _is_exact(array.type)


def _is_exact(kind: pa.DataType) -> bool:
    """Return whether Arrow refuses everything that a type cannot hold."""
    types = pa.types
    if types.is_dictionary(kind) or _is_list(kind):
        return _is_exact(kind.value_type)
    if types.is_map(kind):
        return _is_exact(kind.key_type) and _is_exact(kind.item_type)
    is_inexact = (types.is_struct, types.is_integer, types.is_temporal, types.is_floating)
    return not any(is_kind(kind) for is_kind in is_inexact)


def _is_list(kind: pa.DataType) -> bool:
    types = pa.types
    return any(
        is_kind(kind)
        for is_kind in (
            types.is_list,
            types.is_large_list,
            types.is_fixed_size_list,
            types.is_list_view,
            types.is_large_list_view,
        )
    )


def _pairs(value: Any) -> Iterable[Any]:
    return value.items() if isinstance(value, Mapping) else value


def _have_fields_changed(values: list[Any], array: pa.Array) -> bool:
    names = [field.name for field in array.type]
    rows = [_fields_of(value, names) for value in values]
    known = set(names)
    for row in rows:
        if not known.issuperset(row):
            lost = next((name for name in row if name not in known and row[name] is not None), None)
            if lost is not None:
                raise ValueError(f"there is no field {lost!r} in {array.type}")
    # Not `field`, which includes the children of null structs.
    return any(
        _has_changed([row.get(name) for row in rows], child)
        for name, child in zip(names, array.flatten(), strict=True)
    )


def _fields_of(value: Any, names: list[str]) -> Mapping[str, Any]:
    """Return a struct as a mapping; Arrow also takes its values in order, or pairs."""
    if value is None:
        return {}
    if isinstance(value, Mapping):
        return value
    items = list(value)
    if all(isinstance(item, tuple) and len(item) == 2 and item[0] in names for item in items):
        return dict(items)
    return dict(zip(names, items, strict=False))


def _have_times_changed(values: list[Any], kind: pa.DataType) -> bool:
    types = pa.types
    if types.is_date(kind):
        return any(isinstance(value, datetime.datetime) and _has_time(value) for value in values)
    unit = _PER_UNIT[kind.unit]
    if types.is_timestamp(kind):
        has_zone = kind.tz is not None
        for value in values:
            if not isinstance(value, datetime.datetime):
                if isinstance(value, float) and not value.is_integer():
                    return True
            elif not _is_nat(value):
                if (value.tzinfo is not None) != has_zone:
                    raise ValueError("times with a zone and times without one do not go together")
                if _is_cut(value.microsecond, getattr(value, "nanosecond", 0), unit):
                    return True
        return False
    if types.is_duration(kind):
        spans = (
            value
            for value in values
            if isinstance(value, datetime.timedelta) and not _is_nat(value)
        )
        return any(
            _is_cut(value.microseconds, getattr(value, "nanoseconds", 0), unit) for value in spans
        )
    times = (value for value in values if isinstance(value, datetime.time))
    return any(value.tzinfo is not None or _is_cut(value.microsecond, 0, unit) for value in times)


def _has_time(value: datetime.datetime) -> bool:
    if _is_nat(value):
        raise ValueError("NaT is not a date; give None")
    if value.tzinfo is not None:
        raise ValueError("a time with a zone has another date elsewhere; give its date()")
    return value.time() != datetime.time.min or getattr(value, "nanosecond", 0) != 0


def _is_nat(value: object) -> bool:
    """Return whether a value is the `NaT` of pandas, which Arrow treats as null except in dates."""
    return type(value).__name__ == "NaTType"


def _is_cut(microseconds: int, nanoseconds: int, unit: int) -> bool:
    """Return whether a unit, in microseconds, is too coarse to hold a time."""
    return unit > 0 and (nanoseconds != 0 or microseconds % unit != 0)
