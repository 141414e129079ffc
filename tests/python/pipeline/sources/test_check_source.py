"""`check_source` accepts a right source, and finds a violation of each rule and names it."""

import threading
from collections.abc import Callable

import pyarrow as pa
import pytest

from batchqueue.pipeline.contract import Lag, Limit, Plan, PositionError, Split
from batchqueue.pipeline.testing import check_source

SIZES = [3, 0, 10, 1, 1, 6, 2]


class Good:
    """Splits of some rows, with a number as the position."""

    name = "good"
    bounded = True

    def schema(self):
        return pa.schema({"n": pa.int64()})

    def initial(self):
        return {"split": 0}

    def split(self, number):
        start, end = {"split": number}, {"split": number + 1}
        return Split("all", start, end, SIZES[number], 8 * SIZES[number], number)

    def number(self, position):
        if set(position) != {"split"}:
            raise PositionError(f"{position!r} is foreign")
        return position["split"]

    def plan(self, start, limit):
        first = behind = self.number(start)
        rows = size = 0
        while behind < len(SIZES):
            rows, size = rows + SIZES[behind], size + 8 * SIZES[behind]
            if behind > first and (rows > limit.rows or size > limit.bytes):
                break
            behind += 1
        return Plan(tuple(map(self.split, range(first, behind))), {"split": behind})

    def between(self, start, end):
        return [self.split(number) for number in range(self.number(start), self.number(end))]

    def read(self, split):
        first = sum(SIZES[: split.what])
        yield pa.record_batch({"n": pa.array(range(first, first + SIZES[split.what]), pa.int64())})

    def lag(self, at):
        return {"all": Lag(sum(SIZES[self.number(at) :]), None)}

    def commit(self, end):
        pass


def test_right_source_passes():
    check_source(Good(), rows=sum(SIZES))
    check_source(Good(), limits=[Limit(2, 100)])


class UnknownSizes(Good):
    """The size of a split is not known before it is read."""

    def split(self, number):
        return super().split(number)._replace(rows=None, bytes=None)

    def plan(self, start, limit):
        number = self.number(start)
        splits = (self.split(number),) if number < len(SIZES) else ()
        return Plan(splits, splits[0].end if splits else start)

    def lag(self, at):
        return {}


class Unbounded(Good):
    bounded = False

    def lag(self, at):
        return {"all": Lag(None, 0.5)}


@pytest.mark.parametrize("source", [UnknownSizes(), Unbounded()], ids=lambda each: str(each.name))
def test_sources_with_unknown_sizes_and_without_an_end_pass(source):
    check_source(source, rows=sum(SIZES))


class NoName(Good):
    name = ""


class HoldsLock(Good):
    def __init__(self):
        self.lock = threading.Lock()


class HoldsLockOnceRead(Good):
    def read(self, split):
        self.lock = threading.Lock()
        yield from super().read(split)


class LosesSettings(Good):
    """Pickled, it forgets how many rows to leave out."""

    skip = 0

    def __init__(self):
        self.skip = 1

    def __getstate__(self):
        return {}

    def read(self, split):
        for batch in super().read(split):
            yield batch.slice(min(self.skip, batch.num_rows - 1))

    def split(self, number):
        return super().split(number)._replace(rows=None)

    def plan(self, start, limit):
        return UnknownSizes.plan(self, start, limit)


class MovingStart(Good):
    starts = 0

    def initial(self):
        MovingStart.starts += 1
        return {"split": 0, "begun": self.starts}

    def number(self, position):
        return position["split"]


class Cursor(Good):
    """It continues where it stopped, whatever it is asked for."""

    at = 0

    def plan(self, start, limit):
        self.number(start)
        plan = super().plan({"split": self.at}, limit)
        self.at = plan.end["split"]
        return plan


class CutsByLimit(Good):
    """Its splits depend on the limit."""

    def plan(self, start, limit):
        row, total = self.number(start), sum(SIZES)
        behind = min(row + min(limit.rows, 5), total)
        what = (row, behind)
        split = Split("all", start, {"split": behind}, behind - row, 8, what)
        return Plan((split,) if behind > row else (), {"split": behind})

    def read(self, split):
        yield pa.record_batch({"n": pa.array(range(*split.what), pa.int64())})


class NothingForOneRow(Good):
    """Nothing fits a small limit."""

    def plan(self, start, limit):
        plan = super().plan(start, limit)
        if plan.splits and plan.splits[0].rows > limit.rows:
            return Plan((), start)
        return plan


class IgnoresLimit(Good):
    def plan(self, start, limit):
        return super().plan(start, Limit(1_000, 1_000))


class PlansBehindUnknown(UnknownSizes):
    def plan(self, start, limit):
        return Good.plan(self, start, Limit(1_000, 1_000))

    split = UnknownSizes.split


class EndIsElsewhere(Good):
    def plan(self, start, limit):
        plan = super().plan(start, limit)
        return plan._replace(end={"split": plan.end["split"] + bool(plan.splits)})


class BetweenForgetsEmpty(Good):
    def between(self, start, end):
        return [split for split in super().between(start, end) if split.rows]


class SetInPosition(Good):
    def initial(self):
        return {"split": {0}}


class LargePosition(Good):
    def initial(self):
        return {"split": "0" * 70_000}


class IntKeys(Good):
    """Keys of JSON are strings, so that the position changes in the checkpoint."""

    def initial(self):
        return {0: 0}

    def number(self, position):
        if set(position) != {0}:
            raise PositionError(f"{position!r} is foreign")
        return position[0]


class OtherSchema(Good):
    def schema(self):
        return pa.schema({"n": pa.int32()})


class YieldsTables(Good):
    def read(self, split):
        yield from (pa.Table.from_batches([batch]) for batch in super().read(split))


class WrongRows(Good):
    def split(self, number):
        return super().split(number)._replace(rows=0)


class ReadsOnce(Good):
    seen = frozenset()

    def read(self, split):
        if split.what in self.seen:
            return
        yield from super().read(split)
        self.seen |= {split.what}


class Shuffles(Good):
    turn = 0

    def read(self, split):
        self.turn += 1
        for batch in super().read(split):
            yield batch.sort_by([("n", "ascending" if self.turn % 3 else "descending")])


class BeginsAgain(Good):
    """After the end comes the beginning."""

    ends = 0

    def plan(self, start, limit):
        plan = super().plan(start, limit)
        self.ends += not plan.splits
        return plan if self.ends < 20 else super().plan({"split": 0}, limit)


class AcceptsForeign(Good):
    def number(self, position):
        return position.get("split", 0)


class StumblesOverForeign(Good):
    def number(self, position):
        return position["split"]


class NegativeLag(Good):
    def lag(self, at):
        return {"all": Lag(None, -0.1)}


class GrowingLag(Good):
    def lag(self, at):
        return {"all": Lag(self.number(at), None)}


class LagAtTheEnd(Good):
    def lag(self, at):
        return {"all": Lag(1, None)}


class NothingLeftAfterCommit(Good):
    """It starts again once its input was committed."""

    committed = False

    def commit(self, end):
        self.committed = True

    def plan(self, start, limit):
        return super().plan({"split": 0} if self.committed else start, limit)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (NoName, "name must be"),
        (HoldsLock, "does not pickle.*lock.*__getstate__"),
        (HoldsLockOnceRead, "does not pickle.*lock"),
        (LosesSettings, "after pickling"),
        (MovingStart, "initial.. returns"),
        (Cursor, "the same splits"),
        (CutsByLimit, "limit.*the same splits"),
        (NothingForOneRow, "the first plan is empty"),
        (IgnoresLimit, "only a single split may exceed"),
        (PlansBehindUnknown, "unknown size and not the last"),
        (EndIsElsewhere, "they must be equal"),
        (BetweenForgetsEmpty, r"between\(.*the same splits"),
        (SetInPosition, "cannot be stored.*not JSON"),
        (LargePosition, "cannot be stored.*bytes and the limit"),
        (IntKeys, "comes back from a checkpoint as .* keys of type str"),
        (OtherSchema, "yields the schema .n: int64. and schema.. is .n: int32."),
        (YieldsTables, "yields Table, not RecordBatch"),
        (WrongRows, "says rows=0 and has 3"),
        (ReadsOnce, "when it is read again 0 rows"),
        (Shuffles, "in the same order each time"),
        (BeginsAgain, "ends for good"),
        (AcceptsForeign, "plan accepts it; raise PositionError"),
        (StumblesOverForeign, "plan raises KeyError.*raise PositionError"),
        (NegativeLag, "-0.1 seconds; it must not be negative"),
        (GrowingLag, "grows from 0 to 1"),
        (LagAtTheEnd, "at the end.*must be 0"),
        (NothingLeftAfterCommit, "ends for good"),
    ],
)
def test_violation_is_found_and_named(make: Callable[[], Good], message: str):
    with pytest.raises(AssertionError, match=f"(?s){message}"):
        check_source(make())


def test_wrong_number_of_rows_is_found():
    with pytest.raises(AssertionError, match="has 23 rows and not 24"):
        check_source(Good(), rows=24)


def test_input_without_rows_is_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(globals(), "SIZES", [0])
    with pytest.raises(AssertionError, match="no rows; give check_source an input with some"):
        check_source(Good())


def test_what_is_not_a_source_is_refused():
    with pytest.raises(AssertionError, match="is not a source: it needs"):
        check_source(object())
