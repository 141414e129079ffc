"""Aggregations in a chain: a row per group with each flush, whole or in parts."""

import random
from collections import defaultdict

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchqueue import ConfigError
from batchqueue.aggregation import (
    Aggregation,
    Count,
    First,
    Max,
    Mean,
    Min,
    Quantiles,
    Sum,
    TopN,
    Window,
)
from batchqueue.pipeline.chunks import ChunkCutter
from batchqueue.pipeline.contract import OperatorError
from batchqueue.pipeline.graph import AggregateStep, FilterStep
from batchqueue.pipeline.operators import (
    Chain,
    PartialAggregateStep,
)
from pipeline_support.chains import mapped
from pipeline_support.random_batches import values_of

SALES = Aggregation(
    keys=["city"],
    measures={
        "orders": Count(),
        "cents": Sum("cents"),
        "least": Min("cents"),
        "most": Max("cents"),
    },
)
SCHEMA = pa.schema({"city": pa.string(), "cents": pa.int64()})
ROWS = st.lists(
    st.tuples(st.none() | st.sampled_from(["Rome", "Oslo", "Bern", ""]), st.integers(-99, 99)),
    max_size=30,
)


def chunk(rows):
    cities, cents = zip(*rows, strict=True) if rows else ((), ())
    return pa.record_batch(
        [pa.array(cities, pa.string()), pa.array(cents, pa.int64())], schema=SCHEMA
    )


def limited(max_groups):
    return Aggregation(keys=SALES.keys, measures=SALES.measures, max_groups=max_groups)


def grouped(rows):
    """The groups of some rows, counted with a dict."""
    values = defaultdict(list)
    for city, cents in rows:
        values[city].append(cents)
    return {city: (len(own), sum(own), min(own), max(own)) for city, own in values.items()}


def combined(batches):
    """The groups of emitted batches. A group may occur several times, as a sink would see it."""
    values = defaultdict(list)
    for row in values_of(batches):
        values[row["city"]].append((row["orders"], row["cents"], row["least"], row["most"]))
    return {
        city: tuple(
            combine(column)
            for combine, column in zip((sum, sum, min, max), zip(*own, strict=True), strict=True)
        )
        for city, own in values.items()
    }


def chains_of(aggregation, spread):
    """The chains of all workers: those of the first half, and that of the second."""
    first, second = PartialAggregateStep(aggregation, spread), AggregateStep(aggregation, 1)
    return [Chain([first]) for _ in range(spread)], Chain([second])


def through(chains, last, chunks, cutter=None):
    """What the last chain emits when chunks are dealt to the others at random, and all flush."""
    chance = random.Random(0)
    partials = [batch for each in chunks for batch in chance.choice(chains).process(each)]
    partials += [batch for chain in chains for batch in chain.flush()]
    if cutter is not None:
        partials = [
            chunk.batch
            for chunks in (*map(cutter.add, partials), cutter.rest())
            for chunk in chunks
        ]
    emitted = [batch for each in partials for batch in last.process(each)]
    return emitted + last.flush()


class TestWhole:
    @given(st.lists(ROWS, max_size=6))
    @settings(deadline=None)
    def test_emits_the_groups_of_all_rows_with_the_flush(self, chunks):
        chain = Chain([AggregateStep(SALES, 1)])
        for rows in chunks:
            assert chain.process(chunk(rows)) == []
        batches = chain.flush()
        rows = [row for each in chunks for row in each]
        assert combined(batches) == grouped(rows)
        assert sum(batch.num_rows for batch in batches) == len(grouped(rows))

    def test_agrees_with_pyarrow(self):
        chance = random.Random(1)
        table = pa.table(
            {
                "a": [chance.choice([1, 2, None]) for _ in range(5_000)],
                "b": [chance.choice("xyz") for _ in range(5_000)],
                "v": [chance.choice([None, 0.5, 1.5, -3.0]) for _ in range(5_000)],
            }
        )
        measures = {"rows": Count(), "sum": Sum("v"), "mean": Mean("v"), "max": Max("v")}
        chain = Chain([AggregateStep(Aggregation(keys=["a", "b"], measures=measures), 1)])
        for batch in table.to_batches(max_chunksize=500):
            chain.process(batch)
        [batch] = chain.flush()
        wanted = table.group_by(["a", "b"]).aggregate(
            [([], "count_all"), ("v", "sum"), ("v", "mean"), ("v", "max")]
        )
        wanted = wanted.select(["a", "b", "count_all", "v_sum", "v_mean", "v_max"])
        order = [("a", "ascending"), ("b", "ascending")]
        found = pa.Table.from_batches([batch]).rename_columns(wanted.column_names)
        assert found.sort_by(order).to_pylist() == wanted.sort_by(order).to_pylist()

    def test_begins_anew_after_each_flush(self):
        chain = Chain([AggregateStep(SALES, 1)])
        for rows in ([("Rome", 1), ("Oslo", 2)], [("Rome", 5)], [], [("Bern", 7)]):
            chain.process(chunk(rows))
            assert combined(chain.flush()) == grouped(rows)
        assert chain.flush() == []

    def test_every_kind_of_measure(self):
        measures = {
            "first": First("cents", by="cents"),
            "quantiles": Quantiles("cents", (0.0, 1.0)),
            "top": TopN("cents", 2),
        }
        chain = Chain([AggregateStep(Aggregation(keys=[], measures=measures), 1)])
        chain.process(chunk([("Rome", 3), ("Oslo", 1)]))
        chain.process(chunk([("Rome", 7)]))
        [row] = values_of(chain.flush())
        assert (row["first"], row["top"]) == (1, [{"value": 7}, {"value": 3}])
        assert row["quantiles"] == pytest.approx([1, 7], rel=0.02)

    def test_windows_are_groups(self):
        aggregation = Aggregation(
            keys=[], measures={"rows": Count()}, window=Window("t", 60, name="minute")
        )
        chain = Chain([AggregateStep(aggregation, 1)])
        chain.process(pa.record_batch({"t": [0, 59, 60, 200]}))
        assert values_of(chain.flush()) == [
            {"minute": 0, "rows": 2},
            {"minute": 60, "rows": 1},
            {"minute": 180, "rows": 1},
        ]

    def test_operators_before_and_behind_it(self):
        def doubled(batch):
            return batch.set_column(2, "cents", pc.multiply(batch["cents"], 2))

        chain = Chain(
            [
                FilterStep(pc.field("cents") > 0),
                AggregateStep(SALES, 1),
                mapped(doubled),
                FilterStep(pc.field("cents") > 5),
            ]
        )
        chain.process(chunk([("Rome", 1), ("Rome", 2), ("Oslo", 2), ("Oslo", -9)]))
        assert [(row["city"], row["cents"]) for row in values_of(chain.flush())] == [("Rome", 6)]

    def test_an_aggregation_of_an_aggregation(self):
        sizes = Aggregation(keys=["orders"], measures={"cities": Count()})
        chain = Chain([AggregateStep(SALES, 1), AggregateStep(sizes, 1)])
        chain.process(chunk([("Rome", 1), ("Rome", 2), ("Oslo", 2), ("Bern", 9)]))
        assert {row["orders"]: row["cities"] for row in values_of(chain.flush())} == {2: 1, 1: 2}


class TestManyGroups:
    @given(st.lists(ROWS, max_size=6), st.integers(1, 4))
    @settings(deadline=None)
    def test_are_emitted_before_the_flush(self, chunks, max_groups):
        chain = Chain([AggregateStep(limited(max_groups), 1)])
        batches = []
        for rows in chunks:
            batches += chain.process(chunk(rows))
        early = len(batches)
        batches += chain.flush()
        rows = [row for each in chunks for row in each]
        assert combined(batches) == grouped(rows)
        assert all(0 < batch.num_rows <= max_groups for batch in batches)
        assert len({batch.schema for batch in batches}) <= 1
        if len(grouped(rows)) > max_groups:
            assert early > 0

    def test_of_one_chunk(self):
        chain = Chain([AggregateStep(limited(10), 1)])
        rows = [(str(number), number) for number in range(1_000)]
        batches = chain.process(chunk(rows)) + chain.flush()
        assert combined(batches) == grouped(rows)
        assert all(0 < batch.num_rows <= 10 for batch in batches)


class TestSpread:
    @given(st.lists(ROWS, max_size=8), st.integers(2, 4), st.sampled_from([2, 1_000]))
    @settings(deadline=None)
    def test_halves_give_what_the_whole_gives(self, chunks, spread, max_groups):
        chains, last = chains_of(limited(max_groups), spread)
        cutter = ChunkCutter(chunk_rows=3)
        batches = through(chains, last, [chunk(rows) for rows in chunks], cutter)
        rows = [row for each in chunks for row in each]
        assert combined(batches) == grouped(rows)
        if max_groups > 5:
            assert sum(batch.num_rows for batch in batches) == len(grouped(rows))

    def test_means_and_quantiles_are_merged_and_not_averaged(self):
        measures = {"mean": Mean("cents"), "quantiles": Quantiles("cents", (0.5,))}
        chains, last = chains_of(Aggregation(keys=["city"], measures=measures), 2)
        partials = []
        for chain, rows in zip(chains, ([("Rome", 1)] * 9, [("Rome", 100)]), strict=True):
            chain.process(chunk(rows))
            partials += chain.flush()
        for partial in partials:
            assert last.process(partial) == []
        [row] = values_of(last.flush())
        assert row["mean"] == pytest.approx(10.9)
        assert row["quantiles"] == pytest.approx([1], rel=0.02)

    def test_workers_may_have_no_rows(self):
        chains, last = chains_of(SALES, 3)
        assert combined(through(chains, last, [chunk([("Rome", 1)])])) == grouped([("Rome", 1)])
        assert through(chains, last, []) == []

    def test_each_flush_begins_anew(self):
        chains, last = chains_of(SALES, 2)
        for rows in ([("Rome", 1), ("Oslo", 2)], [("Rome", 5)]):
            chunks = [chunk([row]) for row in rows]
            assert combined(through(chains, last, chunks)) == grouped(rows)

    def test_both_halves_are_flushed_and_have_no_state(self):
        chains, last = chains_of(SALES, 2)
        for chain in (*chains, last):
            assert chain.keeps_rows
            assert not chain.has_state


class TestErrors:
    def chain(self, **measures):
        return Chain([AggregateStep(Aggregation(keys=["city"], measures=measures), 1)])

    def test_a_missing_column_is_named(self):
        with pytest.raises(
            OperatorError, match=r'^aggregate\(n\) raised ConfigError: .*"euros"'
        ) as it:
            self.chain(n=Sum("euros")).process(chunk([("Rome", 1)]))
        assert isinstance(it.value.__cause__, ConfigError)

    def test_a_column_must_keep_its_type(self):
        chain = self.chain(n=Sum("cents"))
        chain.process(chunk([("Rome", 1)]))
        other = pa.record_batch({"city": ["Rome"], "cents": [0.5]})
        with pytest.raises(OperatorError, match=r"aggregate\(n\) raised ConfigError: .* as before"):
            chain.process(other)

    def test_a_sum_that_does_not_fit(self):
        chain = self.chain(n=Sum("cents"))
        chain.process(chunk([("Rome", 2**63 - 1), ("Rome", 1)]))
        with pytest.raises(OperatorError, match=r"aggregate\(n\) raised OverflowError in flush"):
            chain.flush()

    def test_partials_of_another_aggregation(self):
        partials = Chain([PartialAggregateStep(SALES, 2)])
        merge = Chain([AggregateStep(limited(5), 1)])
        partials.process(chunk([("Rome", 1)]))
        [batch] = partials.flush()
        assert merge.process(batch) == []  # only max_groups differs
        other = self.chain(n=Count())
        with pytest.raises(OperatorError, match="belong to another aggregation"):
            other.process(batch)
