"""Conformance tests for your own sources and sinks: call them in a test, on a small input."""

import gc
import json
import pickle
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import deepcopy
from itertools import cycle, islice, pairwise
from typing import Any, NoReturn

import pyarrow as pa

from batchqueue.base.words import counted
from batchqueue.pipeline.contract import (
    Limit,
    Plan,
    Position,
    PositionError,
    Sink,
    Source,
    Split,
    TransactionalSink,
    checked_position,
)

__all__ = ["check_sink", "check_source"]


LIMITS = (
    Limit(1, 1),
    Limit(7, 1 << 20),
    Limit(1_000, 1 << 20),
    Limit(1 << 31, 1 << 40),
)
_MOST_PAIRS = 20


def check_source(
    source: Source, *, rows: int | None = None, limits: Sequence[Limit] = LIMITS
) -> None:
    """Check that a source keeps the contract, by reading its whole input several times.

    Use a small input of several splits; a few hundred rows are enough. An unbounded source is read
    up to its first empty plan, and its input must not change meanwhile. `commit` is called last.

    Args:
        source: The source.
        rows: The number of rows that it must return. Default: None, any number above 0.
        limits: The limits to plan with, each alone and all in turn, at least one. Default: from a
            single row to everything.

    Raises:
        AssertionError: A rule is broken; the message says which, and where.

    Example:
        >>> import pyarrow as pa
        >>> import pyarrow.parquet as pq
        >>> from batchqueue.pipeline import FileSource
        >>> pq.write_table(pa.table({"n": range(100)}), "numbers.parquet", row_group_size=30)
        >>> check_source(FileSource("numbers.parquet"), rows=100)
    """
    probe = Probe(source)
    copy = Probe(probe.pickled())
    splits, ends = _check_plans(probe, copy, limits)
    total = _check_reads(probe, copy, splits)
    probe.require(total > 0, "it has no rows; give check_source an input with some")
    probe.require(rows is None or total == rows, f"it has {total} rows and not {rows}")
    _check_between(probe, copy, splits)
    _check_end(probe, ends[-1], limits)
    _check_foreign_positions(probe)
    _check_lag(probe, [probe.initial(), *ends])
    for _ in range(2):
        source.commit(probe.position(ends[-1], "the last end"))
    _check_end(probe, ends[-1], limits)


# The steps that `check_source` repeats; each reports what is wrong, and where.


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
        """Return a position as a checkpoint would return it."""
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

    def read(self, split: Split) -> pa.Table:
        """Read a split, and check its batches."""
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
        """Start reading a split and drop it, as a stopping run does."""
        next(iter(self.source.read(split)), None)


def equal(left: Any, right: Any) -> bool:
    """Return whether two values are equal, or at least pickle to the same bytes."""
    if isinstance(left, Split) and isinstance(right, Split):
        return left[:-1] == right[:-1] and equal(left.what, right.what)
    try:
        same = bool(left == right)
    except Exception:  # arrays of numpy have no truth value
        same = False
    return same or pickle.dumps(left) == pickle.dumps(right)


def _one_line(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name}: {field.type}" for field in schema)


def _check_plans(
    probe: Probe, copy: Probe, limits: Sequence[Limit]
) -> tuple[list[Split], list[Position]]:
    """Return all splits and their ends, which are the same for any limits."""
    probe.require(
        equal(probe.initial(), copy.initial()),
        f"initial() returns {probe.initial()!r}, and after pickling {copy.initial()!r}",
    )
    splits = probe.walk(cycle([limits[0]]), f"limit {limits[0]}")
    probe.require(bool(splits), "the first plan is empty; give check_source an input with rows")
    ways = [(cycle([limit]), f"limit {limit}") for limit in limits[1:]]
    ways += [(cycle(limits), "the limits in turns"), (cycle(reversed(limits)), "in reverse turns")]
    for limit, where in ways:
        others = probe.walk(limit, where)
        probe.require_same_splits(splits, others, f"limit {limits[0]}", where)
    probe.require_same_splits(
        splits, copy.walk(cycle(limits), "after pickling"), "the source", "its pickled copy"
    )
    return splits, [split.end for split in splits]


def _check_reads(probe: Probe, copy: Probe, splits: list[Split]) -> int:
    """Return the number of rows, which are the same whenever they are read."""
    total = 0
    for split in splits:
        table = probe.read(split)
        probe.abandon(split)
        for reader, when in ((probe, "when it is read again"), (copy, "after pickling")):
            again = reader.read(pickle.loads(pickle.dumps(split)))
            probe.require(
                table.equals(again),
                f"read of {probe.where(split)} gives {table.num_rows} rows, and {when} "
                f"{again.num_rows} rows or other values; it must give the same rows in the same "
                "order each time",
            )
        probe.require(
            split.rows is None or split.rows == table.num_rows,
            f"{probe.where(split)} says rows={split.rows} and has {table.num_rows}; give the exact "
            "number, or None",
        )
        total += table.num_rows
    probe.pickled()  # again, now that it has open handles
    return total


def _check_between(probe: Probe, copy: Probe, splits: list[Split]) -> None:
    ends = [probe.initial(), *(split.end for split in splits)]
    last = len(splits)
    chosen = random.Random(0)
    neighbours = chosen.sample(list(pairwise(range(last + 1))), min(last, _MOST_PAIRS))
    others = [sorted(chosen.choices(range(last + 1), k=2)) for _ in range(_MOST_PAIRS)]
    for first, behind in [(0, last), (0, 0), (last, last), *neighbours, *others]:
        for reader in (probe, copy):
            found = reader.source.between(ends[first], ends[behind])
            where = f"between({ends[first]!r}, {ends[behind]!r})"
            probe.require_same_splits(splits[first:behind], list(found), "plan", where)


def _check_end(probe: Probe, end: Position, limits: Sequence[Limit]) -> None:
    for limit in limits:
        plan = probe.source.plan(end, limit)
        probe.require(
            not plan.splits,
            f"plan(..., {limit}) was empty at {end!r}, and now returns {len(plan.splits)} splits; "
            "the input must not change during the check, and a bounded source ends for good",
        )
        end = probe.position(plan.end, "the end of an empty plan")


def _check_foreign_positions(probe: Probe) -> None:
    own = probe.initial()
    strange: list[Position] = [{"position of another source": 1}]
    strange += [{}] if own else []
    for position in strange:
        for call, arguments in (
            ("plan", (position, LIMITS[0])),
            ("between", (position, position)),
            ("between", (own, position)),
        ):
            try:
                getattr(probe.source, call)(*arguments)
            except PositionError:
                continue
            except Exception as error:
                outcome = f"raises {type(error).__name__}: {error}"
            else:
                outcome = "accepts it"
            probe.fail(
                f"{position!r} is a position of another source, and {call} {outcome}; raise "
                "PositionError"
            )


def _check_lag(probe: Probe, positions: list[Position]) -> None:
    before: dict[str, int] = {}
    for position in positions:
        for partition, lag in probe.source.lag(position).items():
            for value, unit in ((lag.records, "records"), (lag.seconds, "seconds")):
                probe.require(
                    value is None or value >= 0,
                    f"lag({position!r}) of partition {partition!r} is {value} {unit}; it must not "
                    "be negative, and None if it is not known",
                )
            if lag.records is None:
                continue
            earlier = before.get(partition, lag.records)
            probe.require(
                lag.records <= earlier,
                f"lag of partition {partition!r} grows from {earlier} to {lag.records} records at "
                f"{position!r}, although more has been read and nothing has come",
            )
            before[partition] = lag.records
    for partition, lag in probe.source.lag(positions[-1]).items():
        probe.require(
            not lag.records,
            f"lag of partition {partition!r} is {lag.records} records at the end, "
            f"{positions[-1]!r}; it must be 0, or None if it is not known",
        )


_PIPELINE = "check_sink"
_POSITIONS: dict[str, Position] = {
    "orders": {"file": 3, "piece": 0, "at": ["a/ü.parquet", 1 << 60, None], "part": 0.5},
    "clients": {"offsets": {"0": 17, "1": 0}, "done": True, "filler": "x" * 60_000},
}


def check_sink(
    make: Callable[[], Sink],
    *,
    chunks: Sequence[pa.RecordBatch] | None = None,
    read: Callable[[], Iterable[dict[str, Any]]] | None = None,
) -> None:
    """Check that a sink keeps the contract.

    A sink with `commit` and `last_cut` is given cuts, and is dropped and recreated between them as
    after a crash. If the sink has `open`, it is called first.

    Args:
        make: Returns a new instance of the sink, always for the same place, which is empty at
            first.
        chunks: What to write, at least two record batches. Default: None, four of them with the
            columns `n` (int64, each value once) and `s` (string).
        read: Returns the rows that readers see, in any order, as dicts. Default: None, only what
            `last_cut` returns is checked.

    Raises:
        AssertionError: A rule is broken; the message says which, and where.

    Example:
        >>> from pyarrow import dataset
        >>> from batchqueue.pipeline import FileSink
        >>> check_sink(
        ...     lambda: FileSink("numbers"),
        ...     read=lambda: dataset.dataset("numbers").to_table().to_pylist(),
        ... )
    """
    check = _SinkCheck(make, list(chunks) if chunks is not None else _some_chunks(), read)
    if len(check.chunks) < 2:
        has = counted(len(check.chunks), "record batch", "record batches")
        raise AssertionError(f"chunks has {has}; give at least two")
    if isinstance(check.sink, TransactionalSink):
        check.cuts()
    else:
        check.writes()


_Cut = tuple[int, dict[str, Position]]


class _SinkCheck:
    def __init__(
        self,
        make: Callable[[], Sink],
        chunks: list[pa.RecordBatch],
        read: Callable[[], Iterable[dict[str, Any]]] | None,
    ) -> None:
        self.make, self.chunks, self.read = make, chunks, read
        self.sink: Any = None
        self.crash()

    def crash(self) -> None:
        """Continue with a new instance; the old one is dropped without any call."""
        self.sink = None
        gc.collect()
        made = self.make()
        if not isinstance(made, Sink):
            raise AssertionError(f"{made!r} is not a sink: it needs batch_rows and write")
        self.sink = made
        if hasattr(self.sink, "open"):
            self.sink.open(_PIPELINE)
        rows = self.sink.batch_rows
        if not isinstance(rows, int) or rows < 1:
            self.fail(f"batch_rows is {rows!r}; it must be an int of at least 1")

    def writes(self) -> None:
        """Check a sink without cuts."""
        self.sink.write([])
        self.sink.write(self.chunks)
        self.shows(self.chunks, "after write")
        self.crash()
        self.shows(self.chunks, "in a new instance after write")

    def cuts(self) -> None:
        """Check a transactional sink."""
        first, rest = self.chunks[:1], self.chunks[1:]
        self.remembers(None, "of an empty place")
        self.sink.write(first)
        self.crash()
        self.has(None, [], "after a write without commit and a crash")

        self.sink.write([])
        for chunk in first:
            self.sink.write([chunk])
        cut = self.commit(1, {"orders": {"file": 1}})
        self.shows(first, "after cut 1")
        self.crash()
        self.has(cut, first, "after cut 1 and a crash")

        self.sink.write(rest)
        self.crash()
        self.has(cut, first, "after an aborted cut 2")
        self.sink.write(rest)
        cut = self.commit(2, _POSITIONS)
        self.crash()
        self.has(cut, self.chunks, "after cut 2 was written again")

        cut = self.commit(3, {"orders": {"file": 9}})
        self.crash()
        self.has(cut, self.chunks, "after a cut without rows")

    def commit(self, cut: int, positions: dict[str, Position]) -> _Cut:
        """Commit, check that the same instance reports the cut, and return it."""
        self.sink.commit(cut, deepcopy(positions))  # the sink may keep them, and change them
        self.remembers((cut, positions), f"after commit({cut}, ...)")
        return cut, positions

    def has(self, cut: _Cut | None, chunks: list[pa.RecordBatch], when: str) -> None:
        """Compare the last cut, and the rows that readers see."""
        self.remembers(cut, when)
        self.shows(chunks, when)

    def remembers(self, expected: _Cut | None, when: str) -> None:
        """Compare the last cut."""
        last = self.sink.last_cut()
        found = last and (last[0], {name: dict(at) for name, at in last[1].items()})
        if found == expected:
            return
        shown = repr(found) if len(repr(found)) < 500 else f"{repr(found)[:500]}..."
        if expected is None:
            self.fail(f"last_cut() is {shown} {when}; it must be None")
        self.fail(f"last_cut() is {shown} {when}; it must be cut {expected[0]} with its positions")

    def shows(self, chunks: list[pa.RecordBatch], when: str) -> None:
        """Compare the rows that readers see."""
        if self.read is None:
            return
        expected = _sorted(row for chunk in chunks for row in chunk.to_pylist())
        found = _sorted(self.read())
        if found != expected:
            wrong = sum(a != b for a, b in zip(found, expected, strict=False))
            self.fail(
                f"readers see {counted(len(found), 'row')} {when}, {wrong} of them wrong; they "
                f"must see {len(expected)}: what was committed, once, and nothing else"
            )

    def fail(self, message: str) -> NoReturn:
        """Raise AssertionError in the name of the sink."""
        raise AssertionError(f"sink {type(self.sink).__name__}: {message}")


def _sorted(rows: Iterable[dict[str, Any]]) -> list[str]:
    return sorted(json.dumps(row, sort_keys=True, default=repr) for row in rows)


def _some_chunks() -> list[pa.RecordBatch]:
    counts = (500, 1, 37, 500)
    starts = [sum(counts[:number]) for number in range(len(counts))]
    return [
        pa.record_batch(
            {
                "n": pa.array(range(start, start + count), pa.int64()),
                "s": [f"row {number}" for number in range(count)],
            }
        )
        for start, count in zip(starts, counts, strict=True)
    ]
