"""Splits by key: equal keys meet in one partition, in order, in every process and version."""

import datetime as dt
import os
import subprocess
import sys
from collections import defaultdict
from decimal import Decimal

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchqueue import _core
from batchqueue.pipeline import PipelineError
from batchqueue.pipeline.contract import OperatorError
from batchqueue.pipeline.runner.keying import Partitioner
from pipeline_support.random_batches import TYPES, batches, values_of

KEY_TYPES = [kind for kind in TYPES if not pa.types.is_nested(kind)]
MANY = 1_000_003
"""So many partitions that different keys hardly share one."""


def partition_of(value, kind=None, partitions=MANY):
    """The partition of a key of one column."""
    batch = pa.record_batch({"k": pa.array([value], kind), "pad": [0]})
    [(partition, _)] = Partitioner(["k"], partitions).split(batch)
    return partition


def partition_of_row(*values, partitions=MANY):
    """The partition of a key of several columns."""
    names = [f"k{place}" for place in range(len(values))]
    batch = pa.record_batch([pa.array([value]) for value in values], names)
    [(partition, _)] = Partitioner(names, partitions).split(batch)
    return partition


def column(batch_of_rows, name="n"):
    return batch_of_rows[name].to_pylist()


class TestEqualKeysMeet:
    @given(st.data(), st.integers(1, 9))
    @settings(max_examples=150, deadline=None)
    def test_no_row_is_lost_doubled_or_overtaken(self, data, partitions):
        kinds = data.draw(st.lists(st.sampled_from(KEY_TYPES), min_size=1, max_size=3))
        names = [f"k{place}" for place in range(len(kinds))]
        schema = pa.schema([*zip(names, kinds, strict=True), ("n", pa.int64())])
        chunks = data.draw(st.lists(batches(schema), min_size=1, max_size=3))
        partitioner = Partitioner(names, partitions)
        expected, found, home = defaultdict(list), defaultdict(list), {}
        for place, chunk in enumerate(chunks):
            chunk = chunk.set_column(
                len(names), "n", pa.array(range(place * 1_000, place * 1_000 + chunk.num_rows))
            )
            for row in chunk.to_pylist():
                # 0.0 and -0.0 are equal in Python as well.
                expected[tuple(row[name] for name in names)].append(row["n"])
            parts = partitioner.split(chunk)
            assert [number for number, _ in parts] == sorted({number for number, _ in parts})
            assert sum(rows.num_rows for _, rows in parts) == chunk.num_rows
            for number, rows in parts:
                assert 0 <= number < partitions
                assert rows.schema.equals(chunk.schema)
                rows.validate(full=True)
                for row in rows.to_pylist():
                    key = tuple(row[name] for name in names)
                    assert home.setdefault(key, number) == number
                    found[key].append(row["n"])
        assert found == expected

    def test_order_is_kept_within_a_partition(self):
        keys = [key % 7 for key in range(500)]
        for _, rows in Partitioner(["k"], 3).split(pa.record_batch({"k": keys, "n": range(500)})):
            assert column(rows) == sorted(column(rows))

    def test_many_keys_use_all_partitions(self):
        parts = Partitioner(["k"], 16).split(
            pa.record_batch({"k": [f"customer-{number}" for number in range(4_000)]})
        )
        sizes = [rows.num_rows for _, rows in parts]
        assert len(sizes) == 16
        assert min(sizes) > 150

    def test_keys_of_one_partition_of_a_stream_use_all_partitions(self):
        for keys in (range(4_000), [f"customer-{number}" for number in range(4_000)]):
            owned = [key for key in keys if _core.partition_of_key(key, 8) == 3]
            parts = Partitioner(["k"], 8).split(pa.record_batch({"k": owned}))
            assert len(parts) == 8
            assert max(rows.num_rows for _, rows in parts) < len(owned) / 8 * 1.5

    def test_more_partitions_than_rows(self):
        parts = Partitioner(["k"], 1_024).split(pa.record_batch({"k": list("abcde")}))
        assert sorted(values_of(rows for _, rows in parts), key=str) == [{"k": k} for k in "abcde"]


class TestSeveralColumns:
    def test_are_not_joined_ambiguously(self):
        assert partition_of_row("a", "bc") != partition_of_row("ab", "c")
        assert partition_of_row("as", "b") != partition_of_row("a", "sb")
        assert partition_of_row("", "a") != partition_of_row("a", "")
        assert partition_of_row("a", None) != partition_of_row(None, "a")
        assert partition_of_row("n", "n") != partition_of_row(None, None)
        assert partition_of_row(1, 256) != partition_of_row(256, 1)

    def test_agree_across_chunks_whatever_else_is_in_them(self):
        names = ["a", "b", "c"]
        rows = [{"a": a, "b": b, "c": c} for a in (1, None) for b in "xyz" for c in (0.5, None)]
        alone = {}
        for row in rows:
            batch = pa.RecordBatch.from_pylist(
                [row], pa.schema({"a": pa.int64(), "b": pa.string(), "c": pa.float64()})
            )
            [(alone[tuple(row.values())], _)] = Partitioner(names, 50).split(batch)
        for number, part in Partitioner(names, 50).split(pa.RecordBatch.from_pylist(rows * 3)):
            for row in part.to_pylist():
                assert alone[tuple(row.values())] == number

    def test_their_order_counts(self):
        batch = pa.record_batch({"a": ["x"], "b": ["y"]})
        [(forward, _)] = Partitioner(["a", "b"], MANY).split(batch)
        [(backward, _)] = Partitioner(["b", "a"], MANY).split(batch)
        assert forward != backward

    def test_twenty_columns_of_many_keys(self):
        rows = 1_000
        names = [f"c{place}" for place in range(20)]
        batch = pa.record_batch([pa.array(range(rows))] * 20, names)
        parts = Partitioner(names, 8).split(batch)
        assert sum(part.num_rows for _, part in parts) == rows
        assert len(parts) == 8


class TestStability:
    def test_partitions_never_change(self):
        # Stored state relies on these numbers: a change of the code must not change them.
        single = [partition_of(value) for value in ("Rome", 42, 2.5, True, None)]
        assert single == [285_993, 496_071, 979_387, 242_058, 789_372]
        assert partition_of(dt.datetime(2026, 1, 2), pa.timestamp("us")) == 128_276
        assert partition_of(Decimal("1.50"), pa.decimal128(9, 2)) == 938_873
        assert partition_of_row("Rome", 42, None, 2.5) == 51_386

    def test_other_processes_agree(self):
        script = (
            "import pyarrow as pa; from batchqueue.pipeline.runner.keying import Partitioner;"
            "batch = pa.record_batch({'k': ['Rome', 'Oslo', None], 'f': [0.5, 1.5, None]});"
            "print([n for n, _ in Partitioner(['k', 'f'], 1_000_003).split(batch)])"
        )
        environment = {**os.environ, "PYTHONHASHSEED": "12345"}
        found = subprocess.run(
            [sys.executable, "-c", script],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        batch = pa.record_batch({"k": ["Rome", "Oslo", None], "f": [0.5, 1.5, None]})
        wanted = [number for number, _ in Partitioner(["k", "f"], MANY).split(batch)]
        assert found.stdout.strip() == str(wanted)


class TestFunction:
    def split(self, function, partitions=4, rows=6):
        batch = pa.record_batch({"n": range(rows)})
        parts = Partitioner([], partitions, function).split(batch)
        return {number: column(part) for number, part in parts}

    @pytest.mark.parametrize(
        "function",
        [
            lambda batch: batch["n"],
            lambda batch: pa.chunked_array([batch["n"][:2], batch["n"][2:]]),
            lambda batch: batch["n"].cast(pa.uint8()),
            lambda batch: batch["n"].to_numpy(),
            lambda batch: batch["n"].to_pandas(),
            lambda batch: batch["n"].to_pylist(),
        ],
        ids=["array", "chunked", "uint8", "numpy", "pandas", "list"],
    )
    def test_gives_the_partition_of_each_row_modulo_the_partitions(self, function):
        assert self.split(function) == {0: [0, 4], 1: [1, 5], 2: [2], 3: [3]}

    def test_negative_numbers_count_from_the_end(self):
        assert self.split(lambda batch: pc.negate(batch["n"])) == {
            0: [0, 4],
            1: [3],
            2: [2],
            3: [1, 5],
        }

    def test_largest_numbers(self):
        found = self.split(lambda _: pa.array([2**64 - 1] * 6, pa.uint64()))
        assert found == {3: [0, 1, 2, 3, 4, 5]}

    def named(self, result):
        def region(_batch):
            return result

        return region

    @pytest.mark.parametrize(
        ("result", "message"),
        [
            (pa.array([1] * 5), "returned 5 values"),
            (pa.array([1.0] * 6), "returned values of type double"),
            (pa.array(["1"] * 6), "returned values of type string"),
            (pa.array([True] * 6), "returned values of type bool"),
            (pa.array([0, 1, None, 3, 4, 5]), "returned null for row 2 of the chunk"),
            (3, "returned an int"),
            (None, "returned a NoneType"),
            ([object()] * 6, "returned a list"),
            ([2**70] * 6, "returned a list"),
        ],
    )
    def test_invalid_results_are_refused(self, result, message):
        with pytest.raises(OperatorError) as raised:
            self.split(self.named(result))
        assert str(raised.value) == (
            f"key_by(region) {message}; return an integer for each of the 6 rows"
        )
        assert raised.value.operator == "key_by(region)"

    def test_what_it_raises_is_the_cause(self):
        def region(_batch):
            raise KeyError("city")

        with pytest.raises(OperatorError, match=r"key_by\(region\) raised KeyError: 'city'") as it:
            self.split(region)
        assert isinstance(it.value.__cause__, KeyError)
        assert it.value.cause is it.value.__cause__


class TestOnePartition:
    def test_the_batch_is_returned_as_it_is(self):
        batch = pa.record_batch({"k": [1, 2, 3]})
        [(number, rows)] = Partitioner(["k"], 1).split(batch)
        assert number == 0
        assert rows is batch

    def test_so_it_is_if_all_keys_have_the_same(self):
        batch = pa.record_batch({"k": ["a"] * 3})
        [(_, rows)] = Partitioner(["k"], 8).split(batch)
        assert rows is batch

    def test_parts_do_not_keep_the_memory_of_the_others(self):
        batch = pa.record_batch({"k": [0] * 9_999 + [1]})
        small = Partitioner([], 2, lambda part: part["k"]).split(batch)[1][1]
        assert small.get_total_buffer_size() < 100

    def test_a_batch_without_rows_has_no_parts(self):
        for partitions in (1, 4):
            assert Partitioner(["k"], partitions).split(pa.record_batch({"k": []})) == []


class TestColumns:
    @pytest.mark.parametrize("partitions", [1, 4])
    def test_a_missing_one_is_named_with_those_that_exist(self, partitions):
        with pytest.raises(PipelineError) as raised:
            Partitioner(["city", "town"], partitions).split(
                pa.record_batch({"city": ["a"], "cents": [1]})
            )
        assert str(raised.value) == (
            "key_by(city, town) found that 'town' is missing; the columns are ['city', 'cents']"
        )

    def test_one_that_occurs_twice_is_refused(self):
        batch = pa.RecordBatch.from_arrays([pa.array([1]), pa.array([2])], ["a", "a"])
        with pytest.raises(OperatorError, match="'a' occurs twice"):
            Partitioner(["a"], 2).split(batch)
