"""Plans, made of the splits that follow a position: up to a limit, and up to another position."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

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

if TYPE_CHECKING:
    import pyarrow as pa


Step = Split | Position
"""The next split, or a position behind input that is passed over."""


def within(steps: Iterator[Step], start: Position, limit: Limit) -> Plan:
    """Take splits up to the first that would exceed the limit; at least one if there is any.

    A split of unknown size is alone in its plan. What comes before an error is read before it is
    raised. An empty plan ends behind what was passed over.
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
        SourceChangedError: None of the steps leads there.
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


# What table formats have in common: reading a history of immutable versions, split by split.


OnChange = Literal["error", "skip"]

_VARIABLE_BYTES = 32
"""A guess for a value of variable length where nothing is known about it."""


@contextmanager
def at_first_run() -> Iterator[None]:
    """Let what is missing before anything was read be a wrong setting.

    Raises:
        ConfigError: Instead of `SourceChangedError`.
    """
    try:
        yield
    except SourceChangedError as error:
        raise ConfigError(str(error)) from error


def check_choice(setting: str, value: object, choices: Sequence[str]) -> None:
    """Refuse a value that is not among the choices of a setting.

    Raises:
        ConfigError: It is not.
    """
    if not (isinstance(value, str) and value in choices):
        raise ConfigError(f"{setting} is {value!r}; give {' or '.join(map(repr, choices))}")


def check_columns(columns: object) -> list[str] | None:
    """Return the names of columns as a list, or None for all of them.

    Raises:
        ConfigError: They are not different names.
    """
    if columns is None:
        return None
    names = list(columns) if isinstance(columns, Sequence) and not isinstance(columns, str) else []
    if not names or not all(isinstance(name, str) for name in names):
        raise ConfigError(f"columns is {columns!r}; give a list of names, or None for all columns")
    if len(set(names)) < len(names):
        raise ConfigError(f"columns is {columns!r}; give each name once")
    return names


def selected(schema: "pa.Schema", columns: Sequence[str] | None, table: str) -> "pa.Schema":
    """Return the fields of a schema that were asked for, in that order and without metadata.

    Raises:
        ConfigError: A column is missing.
    """
    import pyarrow as pa

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


def row_bytes(schema: "pa.Schema", stored_bytes: dict[str, float] | None = None) -> int:
    """Estimate the size of a row in memory, at least 1.

    Values of a fixed width are exact. Strings, lists and the like are stored compressed, which
    gives their size roughly.

    Args:
        schema: The columns.
        stored_bytes: What a row takes in its file, by column, where that is known.
    """
    stored = stored_bytes or {}
    return max(1, round(sum(_value_bytes(field, stored.get(field.name)) for field in schema)))


def _value_bytes(field: "pa.Field", stored: float | None) -> float:
    import pyarrow as pa

    kind: Any = field.type
    count = 1
    while pa.types.is_fixed_size_list(kind):
        count, kind = count * kind.list_size, kind.value_type
    try:
        fixed: float = kind.bit_width / 8
    except ValueError:  # a variable width
        return _VARIABLE_BYTES if stored is None else 8 + 2 * stored
    return count * fixed
