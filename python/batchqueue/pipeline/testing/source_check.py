"""`check_source`: does a source keep the contract that pausing and replaying rely on?"""

import pickle
import random
from collections.abc import Sequence
from itertools import cycle, pairwise

from batchqueue.pipeline.contract import Limit, Position, Source, Split
from batchqueue.pipeline.errors import PositionError
from batchqueue.pipeline.testing.probe import Probe, equal

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

    Give it a small input of several splits: a few hundred rows do. An unbounded source is read up
    to its first empty plan, and its input must not change meanwhile. `commit` is called last.

    Args:
        source: The source.
        rows: How many rows it must give. Default: None, any number above 0.
        limits: The limits to plan with, each alone and all in turns, at least one. Default: from a
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


def _check_plans(
    probe: Probe, copy: Probe, limits: Sequence[Limit]
) -> tuple[list[Split], list[Position]]:
    """Returns all splits and their ends, which are the same for any limits."""
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
    """Returns the number of rows, which are the same whenever they are read."""
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
    probe.pickled()  # now that it has opened things
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
