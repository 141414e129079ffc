"""Values as keys: which are equal, whatever the type of their column is."""

import datetime as dt
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from batchqueue.pipeline.contract import OperatorError
from batchqueue.pipeline.runner.keying import Partitioner
from pipeline_support.random_batches import of_each_type

MANY = 1_000_003
"""So many partitions that different keys hardly share one."""


def partition_of(value, kind=None, partitions=MANY):
    """The partition of a key of one column."""
    batch = pa.record_batch({"k": pa.array([value], kind), "pad": [0]})
    [(partition, _)] = Partitioner(["k"], partitions).split(batch)
    return partition


def column(batch_of_rows, name="n"):
    return batch_of_rows[name].to_pylist()


class TestEqualValues:
    def test_nulls_meet(self):
        for kind in (pa.int64(), pa.string(), pa.float64(), pa.null()):
            batch = pa.record_batch({"k": pa.array([None, None, None], kind)})
            [(_, rows)] = Partitioner(["k"], MANY).split(batch)
            assert rows.num_rows == 3

    def test_null_is_not_zero_or_empty(self):
        for value, kind in ((0, pa.int64()), ("", pa.string()), (False, pa.bool_())):
            assert partition_of(None, kind) != partition_of(value, kind)

    def test_nans_of_any_bits_meet(self):
        bits = np.array([0x7FF8000000000000, 0xFFF8000000000001, 0x7FF0000000000002], np.uint64)
        batch = pa.record_batch({"k": pa.array(bits.view(np.float64))})
        [(_, rows)] = Partitioner(["k"], MANY).split(batch)
        assert rows.num_rows == 3

    def test_negative_zero_is_zero(self):
        assert partition_of(-0.0) == partition_of(0.0) != partition_of(5e-324)

    @pytest.mark.parametrize(
        ("value", "kinds"),
        [
            (5, [pa.int8(), pa.uint16(), pa.int32(), pa.int64(), pa.uint64()]),
            (-5, [pa.int8(), pa.int64()]),
            (0.5, [pa.float16(), pa.float32(), pa.float64()]),
            ("ä", [pa.string(), pa.large_string(), pa.string_view()]),
            ("ä", [pa.string(), pa.dictionary(pa.int8(), pa.string())]),
            ("ä", [pa.string(), pa.dictionary(pa.int64(), pa.large_string())]),
            (b"abcd", [pa.binary(), pa.large_binary(), pa.binary(4), pa.binary_view()]),
            (dt.datetime(2026, 1, 2), [pa.timestamp(unit) for unit in ("s", "ms", "us", "ns")]),
            (dt.date(1960, 1, 2), [pa.date32(), pa.date64()]),
            (dt.time(1, 2, 3), [pa.time32("s"), pa.time32("ms"), pa.time64("us"), pa.time64("ns")]),
            (dt.timedelta(-1, 5), [pa.duration(unit) for unit in ("s", "ms", "us", "ns")]),
            (Decimal("-12.50"), [pa.decimal128(9, 2), pa.decimal128(9, 4), pa.decimal256(50, 2)]),
            (Decimal("1200"), [pa.decimal128(9, 0), pa.decimal128(9, 2), pa.decimal32(5, 0)]),
            (Decimal("0"), [pa.decimal128(9, 0), pa.decimal128(9, 2), pa.decimal64(5, 1)]),
        ],
    )
    def test_types_of_a_kind_agree(self, value, kinds):
        assert len({partition_of(value, kind) for kind in kinds}) == 1

    def test_every_timestamp_fits(self):
        last = pa.array([2**63 - 1, -(2**63)]).cast(pa.timestamp("s"))
        assert len(Partitioner(["k"], MANY).split(pa.record_batch({"k": last}))) == 2

    def test_decimals_differ_in_the_last_of_38_digits(self):
        digits = "12345678901234567890123456789012345678"
        kind = pa.decimal128(38, 0)
        assert partition_of(Decimal(digits), kind) != partition_of(Decimal(digits) + 1, kind)

    def test_decimals_of_the_same_digits_differ(self):
        values = [Decimal(text) for text in ("1.2", "12", "120", "-12", "0.12", "0")]
        assert len({partition_of(value, pa.decimal128(9, 2)) for value in values}) == 6

    def test_kinds_of_time_differ(self):
        kinds = [pa.timestamp("us"), pa.duration("us"), pa.time64("us"), pa.int64()]
        ticks = pa.array([1_000])
        found = {
            Partitioner(["k"], MANY).split(pa.record_batch({"k": ticks.cast(kind)}))[0][0]
            for kind in kinds
        }
        assert len(found) == 4

    def test_run_ends_dictionaries_and_extensions_agree_with_their_values(self):
        plain = pa.array(["a", "a", "b"])
        uuids = pa.array([b"a" * 16], pa.binary(16))
        assert [
            (number, rows.num_rows)
            for number, rows in Partitioner(["k"], MANY).split(
                pa.record_batch({"k": pc.run_end_encode(plain)})
            )
        ] == [
            (number, rows.num_rows)
            for number, rows in Partitioner(["k"], MANY).split(pa.record_batch({"k": plain}))
        ]
        extension = pa.ExtensionArray.from_storage(pa.uuid(), uuids)
        [(found, _)] = Partitioner(["k"], MANY).split(pa.record_batch({"k": extension}))
        assert found == partition_of(b"a" * 16)

    def test_dictionaries_with_a_null_or_the_same_value_twice(self):
        words = pa.DictionaryArray.from_arrays(
            pa.array([0, 1, 2, None], pa.int8()), pa.array(["a", None, "a"])
        )
        parts = Partitioner(["k"], MANY).split(pa.record_batch({"k": words, "n": range(4)}))
        assert {tuple(column(rows)) for _, rows in parts} == {(0, 2), (1, 3)}

    def test_text_that_is_not_utf8(self):
        text = pa.array([b"\xff\xfe"]).view(pa.string())
        [(found, _)] = Partitioner(["k"], MANY).split(pa.record_batch({"k": text}))
        assert found == partition_of(b"\xff\xfe")

    @pytest.mark.parametrize("name", ["list", "struct", "map", "sparse_union", "interval"])
    def test_nested_columns_and_intervals_cannot_be_keys(self, name):
        interval = pa.array([(1, 2, 3)], pa.month_day_nano_interval())
        batch = pa.record_batch({"k": {**of_each_type(), "interval": interval}[name]})
        with pytest.raises(
            OperatorError, match=r"key_by\(k\) column 'k' is a .*, which cannot be a key; map it"
        ):
            Partitioner(["k"], 2).split(batch)

    def test_every_other_column_goes_along(self):
        for name, array in of_each_type(100).items():
            keys = [row % 3 for row in range(100)]
            batch = pa.record_batch({"k": keys, "n": range(100), "v": array})
            for _, rows in Partitioner(["k"], MANY).split(batch):
                wanted = [array[row].as_py() for row in column(rows)]
                assert column(rows, "v") == wanted, name
                assert rows.schema.equals(batch.schema)
