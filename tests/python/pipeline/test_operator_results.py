"""What the functions of `map` and `filter` may return, and the errors for everything else."""

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from batchqueue.pipeline.contract import OperatorError
from batchqueue.pipeline.graph import FilterStep
from batchqueue.pipeline.operators import Chain
from pipeline_support.chains import error_of, found, mapped, numbers
from pipeline_support.random_batches import of_each_type


class TestMap:
    @pytest.mark.parametrize(
        ("result", "rows"),
        [
            (None, []),
            (numbers(), []),
            (numbers(1), [1]),
            ([], []),
            ([numbers(1), numbers(2)], [1, 2]),
            ((numbers(1), numbers(), numbers(2)), [1, 2]),
            (pa.Table.from_batches([numbers(1), numbers(2)]), [1, 2]),
            ([pa.Table.from_batches([numbers(1), numbers(2)]), numbers(3)], [1, 2, 3]),
            (pa.Table.from_batches([], numbers().schema), []),
        ],
        ids=["none", "empty", "batch", "no_batches", "list", "tuple", "table", "tables", "no_rows"],
    )
    def test_may_return_nothing_a_batch_or_several(self, result, rows):
        batches = Chain([mapped(lambda _: result)]).process(numbers(0))
        assert found(batches) == rows
        assert all(isinstance(batch, pa.RecordBatch) and batch.num_rows for batch in batches)

    def test_may_be_a_generator_or_a_reader(self):
        def each_row(batch):
            for row in range(batch.num_rows):
                yield batch.slice(row, 1)

        def reader(batch):
            return pa.RecordBatchReader.from_batches(batch.schema, [batch])

        batches = Chain([mapped(each_row), mapped(reader)]).process(numbers(1, 2, 3))
        assert [batch.num_rows for batch in batches] == [1, 1, 1]
        assert found(batches) == [1, 2, 3]

    @pytest.mark.parametrize(
        ("result", "what"),
        [
            (5, "an int"),
            ("ab", "a str"),
            (b"ab", "a bytes"),
            ({"n": [1]}, "a dict"),
            (pd.DataFrame({"n": [1]}), "a DataFrame with a str in it"),
            ([numbers(1), None], "a list with a NoneType in it"),
            ([[numbers(1)]], "a list with a list in it"),
            (iter([1]), "a list_iterator with an int in it"),
        ],
    )
    def test_anything_else_is_an_error_that_names_operator_and_type(self, result, what):
        def enrich(_batch):
            return result

        error = error_of(Chain([mapped(enrich)]))
        assert str(error) == (
            f"map(enrich) returned {what}; return a RecordBatch, a Table, an iterable of these, or "
            "None for nothing"
        )
        assert (error.operator, error.__cause__, error.cause) == ("map(enrich)", None, error)

    def test_an_object_with_process_is_preferred_to_its_call(self):
        class Both:
            def __call__(self, batch):
                raise AssertionError

            def process(self, batch):
                return batch

        assert found(Chain([mapped(Both())]).process(numbers(1))) == [1]

    def test_is_never_given_an_empty_batch(self):
        given = []
        chain = Chain([mapped(lambda _: [numbers(), numbers(1), numbers()]), mapped(given.append)])
        chain.process(numbers())
        assert given == []
        chain.process(numbers(7))
        assert [batch.num_rows for batch in given] == [1]


class TestSchema:
    SCHEMA = pa.schema({"n": pa.int64(), "s": pa.string()})

    def returning(self, batch):
        def enrich(_batch):
            return batch

        return Chain([mapped(enrich, self.SCHEMA)])

    def test_equal_schemas_pass_whatever_their_metadata(self):
        batch = pa.record_batch([[1], ["a"]], schema=self.SCHEMA.with_metadata({"k": "v"}))
        [passed] = self.returning(batch).process(numbers(1))
        assert passed.schema.metadata == {b"k": b"v"}

    @pytest.mark.parametrize(
        ("batch", "difference"),
        [
            (numbers(1), "'s' is missing"),
            (pa.record_batch({"x": [1]}), "'n', 's' are missing, 'x' is not declared"),
            (
                pa.record_batch({"s": ["a"], "n": [1]}),
                "the columns are ['s', 'n'], declared are ['n', 's']",
            ),
            (
                pa.record_batch({"n": pa.array([1], pa.int32()), "s": ["a"]}),
                "'n' is int32, declared is int64",
            ),
            (
                pa.record_batch(
                    [[1], ["a"]],
                    schema=pa.schema([pa.field("n", pa.int64(), nullable=False), ("s", "string")]),
                ),
                "'n' is int64 not null, declared is int64",
            ),
            (
                pa.RecordBatch.from_arrays([[1], ["a"], [2]], ["n", "s", "n"]),
                "the columns are ['n', 's', 'n'], declared are ['n', 's']",
            ),
        ],
        ids=["missing", "other", "order", "type", "nullable", "twice"],
    )
    def test_a_difference_is_in_the_message(self, batch, difference):
        assert str(error_of(self.returning(batch))) == (
            f"map(enrich) returned another schema than it declares: {difference}; change the "
            "function or schema="
        )

    def test_holds_for_flushed_batches_as_well(self):
        class Late:
            def process(self, chunk):
                return None

            def flush(self):
                return [numbers(1)]

        chain = Chain([mapped(Late(), self.SCHEMA)])
        assert chain.process(numbers(1)) == []
        with pytest.raises(OperatorError, match="map\\(Late\\) returned another schema"):
            chain.flush()


class TestFilter:
    @pytest.mark.parametrize(
        "keep",
        [
            pc.field("n") > 1,
            lambda batch: pc.greater(batch["n"], 1),
            lambda batch: pa.chunked_array([pc.greater(batch["n"], 1)]),
            lambda batch: batch["n"].to_numpy(zero_copy_only=False) > 1,
            lambda batch: batch["n"].to_pandas() > 1,
            lambda batch: [value is not None and value > 1 for value in batch["n"].to_pylist()],
        ],
        ids=["expression", "array", "chunked", "numpy", "pandas", "list"],
    )
    def test_keeps_rows_in_order_and_null_means_no(self, keep):
        chunk = numbers(3, None, 1, 2, None, 5)
        assert found(Chain([FilterStep(keep)]).process(chunk)) == [3, 2, 5]

    @pytest.mark.parametrize("keep", [pc.scalar(True), lambda batch: [True] * batch.num_rows])
    def test_a_chunk_of_which_all_stays_is_not_copied(self, keep):
        chunk = numbers(1, 2)
        [passed] = Chain([FilterStep(keep)]).process(chunk)
        assert passed is chunk

    @pytest.mark.parametrize("keep", [pc.scalar(False), lambda batch: [False] * batch.num_rows])
    def test_nothing_follows_if_no_row_stays(self, keep):
        assert Chain([FilterStep(keep)]).process(numbers(1, 2)) == []

    def test_an_expression_keeps_the_order_of_a_large_chunk(self):
        # Larger than the batches that pyarrow evaluates one by one.
        [kept] = Chain([FilterStep(pc.field("n") > 50_000)]).process(numbers(*range(200_000)))
        assert kept["n"].to_pylist() == [*range(50_001, 200_000)]

    @pytest.mark.parametrize("as_function", [False, True])
    def test_every_type_of_column_goes_along(self, as_function):
        keep = (lambda batch: pc.less(batch["n"], 30)) if as_function else pc.field("n") < 30
        for name, array in of_each_type(100).items():
            batch = pa.record_batch({"n": range(100), "v": array})
            batch = batch.replace_schema_metadata({"k": "v"}).slice(10)
            [kept] = Chain([FilterStep(keep)]).process(batch)
            assert kept["v"].to_pylist() == array[10:30].to_pylist(), name
            assert kept.schema.equals(batch.schema, check_metadata=True)

    @pytest.mark.parametrize(
        ("result", "what"),
        [
            (pa.array([True]), "1 values"),
            (pa.array([True] * 3), "3 values"),
            (pa.array([1, 0]), "values of type int64"),
            (np.array([1.0, 0.0]), "values of type double"),
            (pa.nulls(2), "values of type null"),
            (True, "a bool"),
            (None, "a NoneType"),
            (pa.scalar(True), "a BooleanScalar"),
            (pa.record_batch({"n": [True, False]}), "values of type struct<n: bool>"),
        ],
    )
    def test_other_results_of_a_function_are_errors(self, result, what):
        def is_good(_batch):
            return result

        assert str(error_of(Chain([FilterStep(is_good)]))) == (
            f"filter(is_good) returned {what}; return a boolean array with a value for each of the "
            "2 rows"
        )

    def test_an_expression_that_is_not_boolean(self):
        error = error_of(Chain([FilterStep(pc.field("n") + 1)]))
        assert "filter(add_checked(n, 1)) returned values of type int64" in str(error)

    def test_a_missing_column_is_named(self):
        error = error_of(Chain([FilterStep(pc.field("cents") > 1)]))
        assert str(error).startswith("filter((cents > 1)) raised ArrowInvalid: No match for")
        assert "cents" in str(error)
        assert isinstance(error.__cause__, pa.ArrowInvalid)
