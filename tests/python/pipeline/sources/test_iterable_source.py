"""`IterableSource`: dicts, batches and tables in any mixture, in splits, from any row on."""

import json
import pickle

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchqueue.exceptions import ConfigError
from batchqueue.pipeline import (
    IterableSource,
    Limit,
    Pipeline,
    PositionError,
    SourceChangedError,
    StageFailedError,
)
from pipeline_support.sinks import Ledger

LIMIT = Limit(rows=10, bytes=1 << 20)


def some_dicts():
    return [{"n": n} for n in range(7)]


def walk(source, at=None):
    """Reads everything from a position on; returns the splits and the numbers."""
    at = source.initial() if at is None else at
    splits, numbers = [], []
    while (plan := source.plan(at, LIMIT)).splits:
        for split in plan.splits:
            splits.append(split)
            numbers += [n for batch in source.read(split) for n in batch["n"].to_pylist()]
        at = json.loads(json.dumps(plan.end))
    return splits, numbers


@st.composite
def pieces(draw):
    """Dicts, batches and tables of consecutive numbers; some are empty."""
    made, at = [], 0
    for kind, rows in draw(
        st.lists(st.tuples(st.sampled_from("dbt"), st.integers(0, 9)), max_size=12)
    ):
        numbers = list(range(at, at + rows))
        at += rows
        batch = pa.record_batch({"n": pa.array(numbers, pa.int64())})
        if kind == "d":
            made += [{"n": n} for n in numbers]
        else:
            made.append(batch if kind == "b" else pa.Table.from_batches([batch, batch.slice(0, 0)]))
    return made, at


@given(made=pieces(), split_rows=st.integers(1, 12), data=st.data())
def test_all_rows_in_order_from_any_position_on(made, split_rows, data):
    items, rows = made
    source = IterableSource(lambda: iter(items), split_rows=split_rows)
    splits, numbers = walk(source)
    assert numbers == list(range(rows))
    assert [split.start["rows"] for split in splits] == list(range(0, rows, split_rows))
    first = data.draw(st.integers(0, len(splits)))
    last = data.draw(st.integers(first, len(splits)))
    starts = [*(split.start for split in splits), {"rows": rows}]
    again = pickle.loads(pickle.dumps(IterableSource(Items(items), split_rows=split_rows)))
    assert again.between(starts[first], starts[last]) == splits[first:last]
    assert walk(again, starts[first])[1] == numbers[starts[first]["rows"] :]
    for split in reversed(splits):  # read out of turn
        (at, end) = split.start["rows"], split.end["rows"]
        assert [n for b in again.read(split) for n in b["n"].to_pylist()] == numbers[at:end]


class Items:
    """A factory that pickles."""

    def __init__(self, items):
        self.items = items

    def __call__(self):
        return iter(self.items)


def test_it_resumes_behind_the_last_cut(tmp_path):
    for rows in (7, 20):
        numbers = Items([{"n": n} for n in range(rows)])
        flow = Pipeline("p", checkpoint=str(tmp_path / "state"))
        flow.source(IterableSource(numbers, split_rows=3)).to(Ledger(tmp_path / "l.db"))
        flow.run()
    assert Ledger(tmp_path / "l.db").numbers == list(range(20))


def test_reading_in_turn_makes_one_iterable():
    made = []
    source = IterableSource(lambda: made.append(None) or some_dicts(), split_rows=2)
    assert walk(source)[1] == list(range(7))
    assert len(made) == 1


def test_it_takes_no_more_than_a_split():
    taken = []

    def rows():
        for n in range(1_000):
            taken.append(n)
            yield {"n": n}

    source = IterableSource(rows, split_rows=10)
    source.plan({"rows": 0}, Limit(500, 1 << 20))
    assert len(taken) == 10


def test_schema_is_that_of_the_first_split():
    assert IterableSource(some_dicts).schema() == pa.schema({"n": pa.int64()})
    assert IterableSource(list).schema() == pa.schema([])
    given_one = pa.schema({"n": pa.int8()})
    assert IterableSource(some_dicts, schema=given_one).schema() == given_one


def test_given_schema_types_all_rows():
    schema = pa.schema({"n": pa.int16(), "s": pa.string()})
    source = IterableSource(lambda: [{"n": 1}, {"s": "a"}], schema=schema)
    (split,) = source.plan({"rows": 0}, LIMIT).splits
    (batch,) = source.read(split)
    assert batch.schema == schema
    assert batch.to_pylist() == [{"n": 1, "s": None}, {"n": None, "s": "a"}]


@pytest.mark.parametrize(
    ("items", "message"),
    [
        ([{"n": 1}, {"n": 2}, {"n": 3, "m": 4}], r"gave a row with \['m'\]"),
        ([{"n": 1}, {"n": 2}, pa.record_batch({"n": ["a"]})], "gave columns n string, and before"),
        ([{"n": 1}, 3], "gave an int; give dicts"),
        (["text"], "gave a str; give dicts"),
    ],
)
def test_rows_that_do_not_fit_are_refused(items, message):
    source = IterableSource(lambda: items, split_rows=2)
    with pytest.raises((SourceChangedError, TypeError), match=message):
        walk(source)


def test_an_iterator_that_is_used_up_is_refused():
    used = iter(some_dicts())
    source = IterableSource(lambda: used, split_rows=3)
    assert walk(source)[1] == list(range(7))
    with pytest.raises(ConfigError, match="returned the same iterator again"):
        walk(source)


def test_fewer_rows_than_before_are_refused():
    items = some_dicts()
    source = IterableSource(lambda: items, split_rows=3)
    splits, _ = walk(source)
    del items[4:]
    with pytest.raises(SourceChangedError, match="has 4 rows and the position is row 6"):
        list(source.read(splits[2]))
    with pytest.raises(SourceChangedError, match="has 1 row from row 3 on and had 3"):
        list(source.read(splits[1]))


def test_positions_of_other_split_rows_are_refused():
    source = IterableSource(some_dicts, split_rows=3)
    with pytest.raises(SourceChangedError, match="no end of a split at row 4"):
        source.between({"rows": 0}, {"rows": 4})
    with pytest.raises(SourceChangedError, match="no end of a split at row 9"):
        source.between({"rows": 6}, {"rows": 9})


@pytest.mark.parametrize("position", [{}, {"rows": -1}, {"rows": "1"}, {"rows": True}, {"at": 1}])
def test_positions_of_other_sources_are_refused(position):
    with pytest.raises(PositionError, match="is not a position"):
        IterableSource(some_dicts).plan(position, LIMIT)


def test_a_factory_that_raises_ends_the_run(tmp_path):
    def rows():
        yield {"n": 1}
        raise ConnectionError("gone")

    flow = Pipeline("p")
    flow.source(IterableSource(rows, split_rows=1, name="orders")).to(Ledger(tmp_path / "l.db"))
    with pytest.raises(StageFailedError, match="gone") as raised:
        flow.run()
    assert raised.value.stage == "orders"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"factory": [1]}, r"factory is \[1\]; give a function"),
        ({"split_rows": 0}, "split_rows is 0; give an int from 1"),
        ({"name": ""}, "name is ''"),
    ],
)
def test_invalid_arguments(settings, message):
    with pytest.raises(ConfigError, match=message):
        IterableSource(**({"factory": list} | settings))
