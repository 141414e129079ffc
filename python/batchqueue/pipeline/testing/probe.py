"""The steps that `check_source` repeats; each says what is wrong in a sentence, and where."""

import json
import pickle
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, NoReturn

from batchqueue.pipeline.contract import Limit, Plan, Position, Source, Split, checked_position
from batchqueue.pipeline.errors import PositionError

if TYPE_CHECKING:
    import pyarrow as pa

_MOST_PLANS = 100_000


class Probe:
    """A source under test."""

    def __init__(self, source: Source) -> None:
        if not isinstance(source, Source):
            needed = "name, bounded, schema, initial, plan, between, read, lag and commit"
            raise AssertionError(f"{source!r} is not a source: it needs {needed}")
        self.source = source
        self.require(
            isinstance(source.name, str) and bool(source.name) and source.name.isprintable(),
            "its name must be a str of printable characters, at least one",
        )
        self.require(
            isinstance(source.bounded, bool), f"bounded is {source.bounded!r}, not True or False"
        )

    def fail(self, message: str) -> NoReturn:
        """Raise AssertionError in the name of the source."""
        raise AssertionError(f"source {self.source.name!r}: {message}")

    def require(self, holds: bool, message: str) -> None:
        """Raise AssertionError unless a condition holds."""
        if not holds:
            self.fail(message)

    def where(self, split: Split) -> str:
        """Return which split it is, for a message."""
        return f"the split of partition {split.partition!r} from {split.start!r}"

    def pickled(self) -> Source:
        """Return a copy, as another process would get it."""
        try:
            copy: Source = pickle.loads(pickle.dumps(self.source))
        except Exception as error:
            self.fail(
                f"it does not pickle ({type(error).__name__}: {error}); open files and connections "
                "in `plan` and `read`, and drop them in `__getstate__`"
            )
        return copy

    def position(self, position: Position, what: str) -> Position:
        """Return a position as it comes back from a checkpoint."""
        try:
            restored: Position = json.loads(checked_position(position, self.source.name))
        except PositionError as error:
            self.fail(f"{what} cannot be stored: {error}")
        return restored

    def initial(self) -> Position:
        """Return the first position, which must always be the same."""
        first, second = self.source.initial(), self.source.initial()
        self.require(
            equal(first, second), f"initial() returns {first!r} and then {second!r}; it must stay"
        )
        return self.position(first, "initial()")

    def walk(self, limits: Iterator[Limit], where: str) -> list[Split]:
        """Plan from the first position up to an empty plan, and check each plan."""
        at = self.initial()
        splits: list[Split] = []
        for limit in islice(limits, _MOST_PLANS):
            plan = self.source.plan(at, limit)
            self._check_plan(plan, at, limit)
            again = self.source.plan(at, limit)
            self.require_same_splits(plan.splits, again.splits, f"plan({at!r}, {limit})", "again")
            self.require(
                equal(plan.end, again.end),
                f"plan({at!r}, {limit}) ends at {plan.end!r}, and called again at {again.end!r}",
            )
            if not plan.splits:
                break
            splits += plan.splits
            at = self.position(plan.end, f"the end of plan({at!r}, {limit})")
        else:
            self.fail(f"no end after {_MOST_PLANS} plans with {where}; give it less input")
        return splits

    def _check_plan(self, plan: Plan, at: Position, limit: Limit) -> None:
        where = f"plan({at!r}, {limit})"
        if not plan.splits:
            return
        for split in plan.splits:
            self.position(split.start, f"{where}: the start of a split")
            self.position(split.end, f"{where}: the end of a split")
            self.require(
                isinstance(split.partition, str),
                f"{where}: the partition is {split.partition!r}, not a str",
            )
        last = plan.splits[-1]
        self.require(
            equal(plan.end, last.end),
            f"{where} ends at {plan.end!r}, and its last split at {last.end!r}; they must be equal",
        )
        unknown = [split for split in plan.splits if split.rows is None or split.bytes is None]
        self.require(
            not unknown or unknown == [last],
            f"{where}: {self.where((unknown or [last])[0])} is of unknown size and not the last; "
            "such a split ends the plan",
        )
        rows = sum(split.rows or 0 for split in plan.splits)
        size = sum(split.bytes or 0 for split in plan.splits)
        self.require(
            len(plan.splits) == 1 or (rows <= limit.rows and size <= limit.bytes),
            f"{where} has {len(plan.splits)} splits of {rows} rows and {size} bytes; only a single "
            "split may exceed the limit",
        )

    def require_same_splits(
        self, left: Sequence[Split], right: Sequence[Split], name: str, other: str
    ) -> None:
        """Raise AssertionError unless two lists of splits are equal."""
        for number, (first, second) in enumerate(zip(left, right, strict=False)):
            self.require(
                equal(first, second),
                f"split {number} differs: {name} gives {first}, {other} gives {second}; the same "
                "input must always give the same splits, whatever the limits and earlier calls",
            )
        self.require(
            len(left) == len(right),
            f"{name} gives {len(left)} splits and {other} {len(right)}; the same input must always "
            "give the same splits, whatever the limits and earlier calls",
        )

    def read(self, split: Split) -> "pa.Table":
        """Read a split, and check its batches."""
        import pyarrow as pa

        schema = self.source.schema()
        batches = []
        for batch in self.source.read(split):
            self.require(
                isinstance(batch, pa.RecordBatch),
                f"read of {self.where(split)} yields {type(batch).__name__}, not RecordBatch",
            )
            self.require(
                batch.schema.equals(schema),
                f"read of {self.where(split)} yields the schema [{_one_line(batch.schema)}] and "
                f"schema() is [{_one_line(schema)}]",
            )
            batches.append(batch)
        return pa.Table.from_batches(batches, schema)

    def abandon(self, split: Split) -> None:
        """Begin to read a split and drop it, as a run does that stops."""
        next(iter(self.source.read(split)), None)


def equal(left: Any, right: Any) -> bool:
    """Whether two values are equal, or at least pickle to the same bytes."""
    if isinstance(left, Split) and isinstance(right, Split):
        return left[:-1] == right[:-1] and equal(left.what, right.what)
    try:
        same = bool(left == right)
    except Exception:  # arrays of numpy have no truth value
        same = False
    return same or pickle.dumps(left) == pickle.dumps(right)


def _one_line(schema: "pa.Schema") -> str:
    return ", ".join(f"{field.name}: {field.type}" for field in schema)
