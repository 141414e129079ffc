"""Chunks: all rows in order, within the bounds, cut without a copy, joined where they are small."""

from itertools import pairwise

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchqueue.pipeline.chunks import ChunkCutter, RowsMeter
from pipeline_support.random_batches import SCHEMAS, TYPES, VALUES, batches, of_each_type, values_of

EACH_TYPE = of_each_type()
PLAIN = [kind for kind in TYPES if not any(word in str(kind) for word in ("dictionary", "view"))]


def rows_bytes(batch):
    return RowsMeter()(batch)


def numbers(first, rows):
    return pa.record_batch({"n": range(first, first + rows)})


def cut(given_batches, rows, size=1 << 20):
    cutter = ChunkCutter(rows, size)
    chunks = [chunk for batch in given_batches for chunk in cutter.add(batch)]
    return batches_of([*chunks, *cutter.rest()])


def batches_of(chunks):
    return [chunk.batch for chunk in chunks]


def rows_of(chunks):
    return [chunk.num_rows for chunk in chunks]


def assert_within(chunks, rows, size):
    for chunk in chunks:
        chunk.validate(full=True)
        assert 1 <= chunk.num_rows <= rows
        assert rows_bytes(chunk) <= size or chunk.num_rows == 1


class TestEveryRowInOrder:
    @given(st.data(), st.integers(1, 50), st.integers(1, 4_000))
    @settings(max_examples=150, deadline=None)
    def test_chunks_have_the_rows_of_the_batches_within_the_bounds(self, data, rows, size):
        schemas = data.draw(st.lists(SCHEMAS, min_size=1, max_size=2))
        given_batches = data.draw(
            st.lists(st.sampled_from(schemas).flatmap(batches), max_size=6), "batches"
        )
        chunks = cut(given_batches, rows, size)
        assert values_of(chunks) == values_of(given_batches)
        assert_within(chunks, rows, size)

    @given(st.data(), st.integers(1, 50), st.integers(1, 4_000))
    @settings(max_examples=100, deadline=None)
    def test_neighbours_could_not_have_been_one_chunk(self, data, rows, size):
        kinds = data.draw(st.lists(st.sampled_from(PLAIN), min_size=1, max_size=3))
        schema = pa.schema([pa.field(str(place), kind) for place, kind in enumerate(kinds)])
        given_batches = data.draw(st.lists(batches(schema, max_rows=12), max_size=12))
        chunks = cut(given_batches, rows, size)
        # A byte per 8 rows and array: the bitmap that a column without nulls gains by a join.
        for first, second in pairwise(chunks):
            spare = 8 * len(kinds) * (first.num_rows + second.num_rows)
            assert (
                first.num_rows + second.num_rows > rows
                or rows_bytes(first) + rows_bytes(second) + spare > size
            )

    @given(st.data(), st.integers(1, 50), st.integers(1, 4_000), st.booleans())
    @settings(max_examples=100, deadline=None)
    def test_all_of_a_batch_is_what_add_and_rest_return(self, data, rows, size, is_measured):
        batch = data.draw(SCHEMAS.flatmap(batches))
        known = rows_bytes(batch) if is_measured else None
        cutter, other = ChunkCutter(rows, size), ChunkCutter(rows, size)
        expected = other.add(batch, known) + other.rest()
        chunks = cutter.all_of(batch, known)
        assert [chunk.size for chunk in chunks] == [chunk.size for chunk in expected]
        assert values_of(batches_of(chunks)) == values_of(batches_of(expected))
        assert rows_of(batches_of(chunks)) == rows_of(batches_of(expected))
        assert cutter.rest() == []

    def test_all_of_a_batch_comes_behind_what_waits(self):
        cutter = ChunkCutter(10)
        assert cutter.add(numbers(0, 3)) == []
        assert values_of(batches_of(cutter.all_of(numbers(3, 4)))) == values_of([numbers(0, 7)])

    def test_every_type_of_column_survives_a_cut_and_a_join(self):
        for name, array in EACH_TYPE.items():
            batch = pa.record_batch({name: array})
            pieces = [batch.slice(start, 7) for start in range(0, 70, 7)]
            chunks = cut(pieces, rows=20)
            assert values_of(chunks) == batch.slice(0, 70).to_pylist(), name

    def test_random_types_cover_those_of_arrow(self):
        ids = {kind.id for kind in VALUES} | {array.type.id for array in EACH_TYPE.values()}
        assert len(ids) >= 22


class TestCuts:
    def test_by_rows(self):
        assert rows_of(cut([numbers(0, 1_234)], rows=500)) == [500, 500, 234]

    def test_by_bytes(self):
        assert rows_of(cut([numbers(0, 10)], rows=500, size=24)) == [3, 3, 3, 1]

    def test_copy_nothing(self):
        batch = numbers(0, 1_000)
        address = batch["n"].buffers()[1].address
        for chunk in cut([batch], rows=400):
            assert chunk["n"].buffers()[1].address == address

    def test_a_batch_within_the_bounds_is_passed_as_it_is(self):
        batch = numbers(0, 500)
        [chunk] = cut([batch], rows=500)
        assert chunk["n"].buffers()[1].address == batch["n"].buffers()[1].address

    def test_a_row_larger_than_the_bound_is_alone(self):
        batch = pa.record_batch({"text": ["a", "b", "x" * 2_000, "c", "d"]})
        chunks = cut([batch], rows=500, size=1_000)
        assert rows_of(chunks) == [2, 1, 2]
        assert chunks[1]["text"].to_pylist() == ["x" * 2_000]

    def test_a_row_larger_than_the_bound_is_not_joined_to_pending_rows(self):
        small, large = pa.record_batch({"t": ["a"]}), pa.record_batch({"t": ["x" * 2_000]})
        assert rows_of(cut([small, large, small], rows=500, size=1_000)) == [1, 1, 1]

    def test_bounds_of_one_row_and_one_byte(self):
        assert rows_of(cut([numbers(0, 3)], rows=1)) == [1, 1, 1]
        assert rows_of(cut([numbers(0, 3)], rows=500, size=1)) == [1, 1, 1]


class TestSizes:
    def test_chunks_of_a_block_share_its_size_by_rows(self):
        chunks = ChunkCutter(500).add(numbers(0, 1_250))
        assert [chunk.size for chunk in chunks] == [4_000, 4_000]

    def test_sizes_add_up_whatever_the_blocks_are(self):
        text = pa.record_batch({"t": ["x" * (n % 50) for n in range(2_000)]})
        for size in (600, 5_000, 1 << 20):
            cutter = ChunkCutter(7, size)
            chunks = [*cutter.add(text), *cutter.rest()]
            assert sum(chunk.batch.num_rows for chunk in chunks) == 2_000
            measured = sum(rows_bytes(chunk.batch) for chunk in chunks)
            # The end of one slice of offsets is the beginning of the next one.
            assert abs(sum(chunk.size for chunk in chunks) - measured) <= 8 * len(chunks)

    def test_a_known_size_is_not_measured_again(self):
        assert ChunkCutter(500).add(numbers(0, 500), 123) == [(numbers(0, 500), 123)]
        chunks = ChunkCutter(500).add(numbers(0, 1_000), 123)
        assert [chunk.size for chunk in chunks] == [61, 62]


class TestJoins:
    def test_small_batches_fill_a_chunk(self):
        assert rows_of(cut([numbers(n, 1) for n in range(1_001)], rows=500)) == [500, 500, 1]

    def test_a_full_chunk_does_not_wait(self):
        cutter = ChunkCutter(3)
        assert [rows_of(batches_of(cutter.add(numbers(n, 1)))) for n in range(3)] == [[], [], [3]]
        assert cutter.rest() == []

    def test_rest_gives_what_is_pending_once(self):
        cutter = ChunkCutter(500)
        assert cutter.rest() == []
        assert cutter.add(numbers(0, 2)) == []
        assert cutter.add(numbers(2, 2)) == []
        assert values_of(batches_of(cutter.rest())) == [{"n": n} for n in range(4)]
        assert cutter.rest() == []

    def test_pending_rows_go_first_when_the_next_batch_does_not_fit(self):
        assert rows_of(cut([numbers(0, 300), numbers(0, 300)], rows=500)) == [300, 300]
        assert rows_of(cut([numbers(0, 1), numbers(0, 600)], rows=500)) == [1, 500, 100]

    def test_bytes_bound_a_join(self):
        assert rows_of(cut([numbers(n, 1) for n in range(7)], rows=500, size=24)) == [3, 3, 1]

    @pytest.mark.parametrize(
        "other",
        [
            pa.record_batch({"m": [1]}),
            pa.record_batch({"n": pa.array([1], pa.int32())}),
            pa.record_batch({"n": [1], "m": [1]}),
            numbers(0, 1).replace_schema_metadata({"a": "b"}),
            numbers(0, 1).cast(pa.schema([pa.field("n", pa.int64(), nullable=False)])),
        ],
        ids=["name", "type", "column", "metadata", "nullable"],
    )
    def test_batches_of_different_schemas_stay_apart(self, other):
        chunks = cut([numbers(0, 1), other, numbers(0, 1)], rows=500)
        assert rows_of(chunks) == [1, 1, 1]
        assert chunks[1].schema.equals(other.schema, check_metadata=True)

    def test_metadata_survives_a_join(self):
        batch = numbers(0, 1).replace_schema_metadata({"a": "b"})
        [chunk] = cut([batch, batch], rows=500)
        assert (chunk.num_rows, chunk.schema.metadata) == (2, {b"a": b"b"})

    def test_a_bitmap_that_a_join_adds_keeps_the_bound(self):
        whole = pa.record_batch({"n": pa.array([1] * 8, pa.int8())})
        null = pa.record_batch({"n": pa.array([None] * 8, pa.int8())})
        # 8 bytes, and 9 with a bitmap; together 16 and a bitmap of 2.
        chunks = cut([whole, null], rows=500, size=17)
        assert_within(chunks, 500, 17)
        assert rows_of(chunks) == [8, 8]
        assert rows_of(cut([whole, null], rows=500, size=18)) == [16]


class TestEmpty:
    def test_batches_without_rows_vanish(self):
        cutter = ChunkCutter(500)
        assert cutter.add(numbers(0, 0)) == []
        assert cutter.rest() == []

    def test_they_do_not_part_their_neighbours(self):
        other = pa.record_batch({"m": pa.array([], pa.int64())})
        assert rows_of(cut([numbers(0, 2), other, numbers(2, 2)], rows=500)) == [4]

    def test_rows_without_columns_are_counted(self):
        bare = numbers(0, 300).select([])
        assert rows_of(cut([bare, bare], rows=500)) == [300, 300]
        assert rows_of(cut([bare, bare], rows=1_000)) == [600]


class TestDictionaries:
    def words(self, count, prefix=""):
        return pa.record_batch({"w": pa.array([f"{prefix}{n:050}" for n in range(count)])}).cast(
            pa.schema({"w": pa.dictionary(pa.int32(), pa.string())})
        )

    def test_a_dictionary_larger_than_the_bound_does_not_cut_rows_one_by_one(self):
        batch = self.words(5_000)
        chunks = cut([batch], rows=500, size=100_000)
        assert batch.slice(0, 1).nbytes > 100_000
        assert rows_of(chunks) == [500] * 10

    def test_a_small_dictionary_counts_once_per_chunk(self):
        flags = pa.array(["yes", "no"] * 500).dictionary_encode()
        batch = pa.record_batch({"flag": flags})
        dictionary = flags.dictionary.nbytes
        assert rows_bytes(batch.slice(100, 500)) == 500 * 4 + dictionary

    def test_of_two_batches_are_unified(self):
        [chunk] = cut([self.words(2), self.words(3)], rows=500)
        assert chunk["w"].dictionary.to_pylist() == self.words(3)["w"].to_pylist()
        assert values_of([chunk]) == values_of([self.words(2), self.words(3)])

    def test_large_ones_are_not_unified(self):
        parts = [self.words(1_000, prefix).slice(0, 1) for prefix in "abc"]
        chunks = cut(parts, rows=500, size=100_000)
        assert rows_of(chunks) == [1, 1, 1]
        assert values_of(chunks) == values_of(parts)

    def test_too_many_values_for_the_index_stay_apart(self):
        kind = pa.dictionary(pa.int8(), pa.string())
        parts = [pa.record_batch({"w": pa.array([str(n)], kind)}) for n in range(300)]
        chunks = cut(parts, rows=500)
        assert values_of(chunks) == values_of(parts)
        assert_within(chunks, 500, 1 << 20)


class TestBytesOfRows:
    @pytest.mark.parametrize("name", EACH_TYPE)
    def test_slices_together_are_as_large_as_the_whole(self, name):
        batch = pa.record_batch({name: EACH_TYPE[name]})
        whole = rows_bytes(batch)
        slices = sum(rows_bytes(batch.slice(start, 50)) for start in range(0, 1_000, 50))
        assert whole <= slices <= whole * 1.05 + 20 * 24

    @pytest.mark.parametrize(
        "name",
        [
            *("int", "bool", "string", "fixed", "dictionary", "string_view", "binary_view", "list"),
            *("list_view", "large_list_view", "fixed_list", "struct", "map", "struct_of_view"),
        ],
    )
    def test_a_slice_is_as_large_as_a_copy_of_its_values(self, name):
        part = EACH_TYPE[name].slice(333, 100)
        copy = pa.array(part.to_pylist(), part.type)
        sizes = [rows_bytes(pa.record_batch({name: array})) for array in (part, copy)]
        assert sizes[0] == pytest.approx(sizes[1], abs=24)
        assert sizes[0] == pytest.approx(copy.nbytes, abs=24)

    def test_no_rows_have_no_bytes(self):
        for name, array in EACH_TYPE.items():
            assert rows_bytes(pa.record_batch({name: array}).slice(3, 0)) <= 8, name

    def test_an_empty_dictionary(self):
        kind = pa.dictionary(pa.int32(), pa.string())
        assert rows_bytes(pa.record_batch({"w": pa.nulls(8, kind)})) == 8 * 4 + 1

    def test_bitmaps_of_nested_columns_count(self):
        views = pa.array(["a" * 20, None] * 500, pa.string_view())
        structs = pa.StructArray.from_arrays([views], ["a"], mask=pa.array([False, True] * 500))
        batch = pa.record_batch({"v": structs}).slice(100, 800)
        assert rows_bytes(batch) == 800 * 16 + 400 * 20 + 2 * 100
        lists = pa.array([None, [1, 2]] * 500, pa.list_view(pa.int64()))
        batch = pa.record_batch({"v": lists}).slice(100, 800)
        assert rows_bytes(batch) == 800 * 8 + 400 * 16 + 100

    def test_dictionaries_in_unions_and_runs_count_as_a_whole(self):
        words = EACH_TYPE["dictionary"]
        kinds = pa.array([0] * 1_000, pa.int8())
        for array in (
            pa.UnionArray.from_sparse(kinds, [words]),
            pa.RunEndEncodedArray.from_arrays(pa.array(range(1, 1_001), pa.int32()), words),
        ):
            batch = pa.record_batch({"v": array}).slice(10, 10)
            assert rows_bytes(batch) > words.dictionary.nbytes
            assert rows_of(cut([batch], rows=500)) == [10]
