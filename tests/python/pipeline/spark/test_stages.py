"""What runs in a task: chunks, types and errors of mapInArrow and of sinks, without Spark."""

import datetime

import pyarrow as pa
import pytest

from batchqueue.pipeline.contract import OperatorError
from batchqueue.pipeline.graph import AggregateStep, MapStep
from batchqueue.pipeline.spark.sinks import write_task
from batchqueue.pipeline.spark.stages import arrow_schema, run_chain, spark_schema
from spark_support.numbered_rows import BY_CITY, SCHEMA, rows_of

ODD = pa.schema(
    [
        ("u8", pa.uint8()),
        ("u64", pa.uint64()),
        ("f16", pa.float16()),
        ("word", pa.dictionary(pa.int32(), pa.string())),
        ("clock", pa.time32("ms")),
        ("day", pa.date64()),
        ("seen", pa.timestamp("ns", "Europe/Rome")),
        ("view", pa.string_view()),
    ]
)


def odd_rows() -> pa.RecordBatch:
    noon = datetime.time(12)
    day = datetime.date(2024, 2, 29)
    seen = datetime.datetime(2024, 2, 29, 12, tzinfo=datetime.UTC)
    columns = [
        pa.array([255, None], pa.uint8()),
        pa.array([2**64 - 1, 0], pa.uint64()),
        pa.array([0.5, None], pa.float32()).cast(pa.float16()),
        pa.array(["rome", "oslo"]).dictionary_encode(),
        pa.array([noon, None], pa.time32("ms")),
        pa.array([day, None], pa.date64()),
        pa.array([seen, None], ODD.field("seen").type),
        pa.array(["a", None], pa.string_view()),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=ODD)


def test_operators_see_the_types_of_the_source_though_spark_has_others():
    seen = []

    def note(chunk):
        seen.append(chunk)
        return chunk

    spark_types = arrow_schema(spark_schema(ODD, "source"))
    from_spark = odd_rows().cast(spark_types)
    [result] = run_chain([MapStep(note, None, None)], ODD, ODD, 500, [from_spark])
    assert seen[0].equals(odd_rows())
    assert result.equals(from_spark)


def test_chunks_are_not_larger_than_those_of_the_pipeline():
    sizes = []

    def note(chunk):
        sizes.append(chunk.num_rows)
        return chunk

    batches = [rows_of(0, 1200), rows_of(1200, 1210), rows_of(1210, 1215)]
    results = list(run_chain([MapStep(note, None, None)], SCHEMA, SCHEMA, 500, batches))
    assert sizes == [500, 500, 215]
    assert pa.Table.from_batches(results)["id"].to_pylist() == list(range(1215))


def test_batches_of_spark_stay_as_they_are_without_a_size_of_chunks():
    sizes = []

    def note(chunk):
        sizes.append(chunk.num_rows)
        return chunk

    batches = [rows_of(0, 1200), rows_of(1200, 1200), rows_of(1200, 1210)]
    results = list(run_chain([MapStep(note, None, None)], SCHEMA, SCHEMA, None, batches))
    assert sizes == [1200, 10]
    assert pa.Table.from_batches(results)["id"].to_pylist() == list(range(1210))


def test_groups_come_once_at_the_end_of_a_task():
    after = pa.schema([("city", pa.string()), ("orders", pa.int64()), ("cents", pa.int64())])
    steps = [AggregateStep(BY_CITY, 1)]
    [groups] = run_chain(steps, SCHEMA, after, 100, [rows_of(0, 1000)])
    assert sum(groups["orders"].to_pylist()) == 1000
    assert len(set(groups["city"].to_pylist())) == groups.num_rows == 5


def test_other_columns_than_for_an_empty_batch_are_an_error_with_a_remedy():
    step = MapStep(lambda chunk: chunk.select(["id"]), None, None)
    with pytest.raises(
        OperatorError, match=r"returned the columns id, .* id, city, cents.*schema="
    ):
        list(run_chain([step], SCHEMA, SCHEMA, 500, [rows_of(0, 10)]))


def test_values_that_do_not_fit_are_an_error_with_a_remedy():
    after = pa.schema([("id", pa.int8())])
    step = MapStep(lambda chunk: chunk.select(["id"]), None, None)
    with pytest.raises(OperatorError, match=r"do not fit the schema .* id int8 .*schema="):
        list(run_chain([step], SCHEMA, after, 500, [rows_of(1000, 1010)]))


class Noting:
    def __init__(self, batch_rows: int, fail_at: int = 10**9) -> None:
        self.batch_rows = batch_rows
        self.fail_at = fail_at
        self.calls: list[object] = []

    def open(self, pipeline: str) -> None:
        self.calls.append(f"open {pipeline}")

    def write(self, chunks) -> None:
        rows = [chunk.num_rows for chunk in chunks]
        if len(self.calls) == self.fail_at:
            raise OSError("the disk is full")
        self.calls.append(rows)

    def close(self) -> None:
        self.calls.append("close")


def test_sink_gets_writes_of_its_size_between_open_and_close():
    sink = Noting(batch_rows=250)
    given = [rows_of(start, start + 100) for start in range(0, 700, 100)]
    assert write_task(sink, "revenue", given) == 700
    assert sink.calls == ["open revenue", [100, 100, 100], [100, 100, 100], [100], "close"]


def test_sink_is_closed_when_it_raises_and_without_rows():
    sink = Noting(batch_rows=100, fail_at=2)
    with pytest.raises(OSError, match="disk is full"):
        write_task(sink, "revenue", [rows_of(0, 100), rows_of(100, 200), rows_of(200, 300)])
    assert sink.calls == ["open revenue", [100], "close"]
    empty = Noting(batch_rows=100)
    assert write_task(empty, "revenue", []) == 0
    assert empty.calls == ["open revenue", "close"]
