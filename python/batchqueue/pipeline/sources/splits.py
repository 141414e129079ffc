"""Plans, made of the splits that follow a position: up to a limit, and up to another position."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Generic, Literal, TypeVar

import pyarrow as pa

from batchqueue.base.checks import check_choice
from batchqueue.exceptions import ConfigError
from batchqueue.pipeline.contract import (
    Limit,
    Plan,
    Position,
    PositionError,
    SourceChangedError,
    Split,
    checked_position,
)

Step = Split | Position
"""The next split, or a position after input that is passed over."""


def within(steps: Iterator[Step], start: Position, limit: Limit) -> Plan:
    """Take splits up to the first that would exceed the limit; at least one if there is any.

    A split of unknown size is alone in its plan. Input before an error is read before the error is
    raised. An empty plan ends after the input that was passed over.
    """
    taken: list[Split] = []
    end = start
    rows = size = 0
    while rows < limit.rows and size < limit.bytes:
        try:
            step = next(steps, None)
        except Exception:
            if taken:
                break
            raise
        if step is None:
            break
        if not isinstance(step, Split):
            end = end if taken else step
            continue
        if step.rows is None or step.bytes is None:
            taken += [] if taken else [step]
            break
        rows += step.rows
        size += step.bytes
        if taken and (rows > limit.rows or size > limit.bytes):
            break
        taken.append(step)
    return Plan(tuple(taken), taken[-1].end if taken else end)


def until(steps: Iterable[Step], start: Position, end: Position, source: str) -> list[Split]:
    """Take the splits up to a position.

    Raises:
        SourceChangedError: No step leads to that position.
    """
    taken: list[Split] = []
    if start == end:
        return taken
    for step in steps:
        if isinstance(step, Split):
            taken.append(step)
        if end == (step.end if isinstance(step, Split) else step):
            return taken
    raise SourceChangedError(
        f"source {source!r}: no split between {start!r} and the end of the input ends at {end!r}; "
        "read with the settings and the input that the positions come from, or use a new checkpoint"
    )


class SteppedSource:
    """A source that yields its splits from a position on, one by one, up to what exists now.

    Attributes:
        name: Its name in statistics and errors.
    """

    name: str

    def plan(self, start: Position, limit: Limit) -> Plan:
        """Return the next splits."""
        self._check(start)
        return within(self._steps(start), start, limit)

    def between(self, start: Position, end: Position) -> list[Split]:
        """Return the splits between two positions."""
        self._check(start)
        self._check(end)
        return until(self._steps(start), start, end, self.name)

    def _check(self, position: Position) -> None:
        """Refuse what is not a position of this source."""
        raise NotImplementedError

    def _steps(self, start: Position) -> Iterator[Step]:
        """Yield all steps from a position on."""
        raise NotImplementedError


# What table formats have in common: reading a history of immutable versions, split by split.


OnChange = Literal["error", "skip"]

_VARIABLE_BYTES = 32
"""A guess for a value of variable length where nothing is known about it."""


History = TypeVar("History")


class TableSource(SteppedSource, Generic[History]):
    """A table of immutable versions, which is opened in the process that reads.

    Attributes:
        name: Its name in statistics and errors.
        bounded: Whether it ends, as it does unless `watch` is set.
    """

    def __init__(
        self,
        name: str,
        *,
        columns: Sequence[str] | None,
        start: object,
        watch: bool,
        on_change: OnChange,
    ) -> None:
        if start == "latest" and not watch:
            raise ConfigError(
                "start is 'latest' and watch is False: no row follows; set watch=True"
            )
        check_choice("on_change", on_change, ("error", "skip"))
        self.name = name
        self._columns = check_columns(columns)
        self.bounded = not watch
        self._on_change: OnChange = on_change
        self._open()

    def _open(self) -> None:
        self._history = self._opened()
        # For the thread that reads the lag, which opens versions while the other thread plans.
        self._history_of_lag = self._opened()

    def _opened(self) -> History:
        """Return the history of the table, which is read on first use."""
        raise NotImplementedError

    def __getstate__(self) -> dict[str, Any]:
        """Leave out open handles, but keep the schema."""
        histories = ("_history", "_history_of_lag")
        return {name: value for name, value in self.__dict__.items() if name not in histories}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._open()


@contextmanager
def at_first_run() -> Iterator[None]:
    """Report input that is missing before anything was read as an invalid setting.

    Raises:
        ConfigError: Instead of `SourceChangedError`.
    """
    try:
        yield
    except SourceChangedError as error:
        raise ConfigError(str(error)) from error


def check_columns(columns: object) -> list[str] | None:
    """Return the names of columns as a list, or None for all of them.

    Raises:
        ConfigError: They are not distinct names.
    """
    if columns is None:
        return None
    names = list(columns) if isinstance(columns, Sequence) and not isinstance(columns, str) else []
    if not names or not all(isinstance(name, str) for name in names):
        raise ConfigError(f"columns is {columns!r}; give a list of names, or None for all columns")
    if len(set(names)) < len(names):
        raise ConfigError(f"columns is {columns!r}; give each name once")
    return names


def selected(schema: pa.Schema, columns: Sequence[str] | None, table: str) -> pa.Schema:
    """Return the fields of a schema that were asked for, in that order and without metadata.

    Raises:
        ConfigError: A column is missing.
    """
    names = schema.names if columns is None else columns
    missing = [name for name in names if name not in schema.names]
    if missing:
        raise ConfigError(f"{table} has no columns {missing}; it has {schema.names}")
    return pa.schema([schema.field(name).remove_metadata() for name in names])


def check_position(position: Position, source: str, fields: dict[str, tuple[type, ...]]) -> None:
    """Refuse what is not a position of the source.

    Args:
        position: The position.
        source: The name of the source.
        fields: The types of its fields, by name.

    Raises:
        PositionError: A field is missing, unknown, or of another type.
    """
    checked_position(position, source)
    valid = position.keys() == fields.keys() and all(
        isinstance(position[name], types) and not isinstance(position[name], bool)
        for name, types in fields.items()
    )
    if not valid:
        raise PositionError(
            f"source {source!r}: {position!r} is not one of its positions, which have the fields "
            f"{', '.join(fields)}; use the checkpoint that belongs to this source, or a new one"
        )


def row_bytes(schema: pa.Schema, stored_bytes: dict[str, float] | None = None) -> int:
    """Estimate the size of a row in memory, at least 1.

    Values of a fixed width are exact. The size of strings, lists and the like is estimated from
    their compressed size.

    Args:
        schema: The columns.
        stored_bytes: The bytes that a row takes in its file, by column, where known.
    """
    stored = stored_bytes or {}
    return max(1, round(sum(_value_bytes(field, stored.get(field.name)) for field in schema)))


def _value_bytes(field: pa.Field, stored: float | None) -> float:
    kind: Any = field.type
    count = 1
    while pa.types.is_fixed_size_list(kind):
        count, kind = count * kind.list_size, kind.value_type
    try:
        fixed: float = kind.bit_width / 8
    except ValueError:  # a variable width
        return _VARIABLE_BYTES if stored is None else 8 + 2 * stored
    return count * fixed
