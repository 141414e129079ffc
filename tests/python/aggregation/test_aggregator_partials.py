"""Partials of an `Aggregator`: to the next worker, to a second queue, to another process."""

import pickle

import pyarrow as pa
import pytest

from aggregation_support import TOTALS, WAIT_S, rows, run_script, totals
from batchqueue import (
    BatchQueueError,
    ConfigError,
    PartitionPolicy,
)
from batchqueue.aggregation import Aggregation, Aggregator, Count, First, Quantiles, Sum


def test_too_many_groups_are_refused_or_emitted_early():
    limited = Aggregation(keys=["key"], measures=TOTALS.measures, max_groups=10)
    alone = Aggregator(limited)
    alone.update(rows([*range(8)] * 2))
    before = totals(alone)
    with pytest.raises(
        BatchQueueError, match="more groups than max_groups, 10: raise it, or give a next worker"
    ):
        alone.consume([rows([7, 8]), rows([9, 10])])
    assert totals(alone) == before
    alone.update(rows([8, 9, 9]))
    assert len(alone) == 10

    handed = []
    early = Aggregator(limited, handed.append, flush_period_ms=60_000)
    early.consume([rows([*range(8)] * 2), rows([7, 8]), rows([*range(100)])])
    assert all(partials.num_rows <= 10 for partials in handed)
    assert len(early) <= 10
    early.on_close()
    merged = Aggregator(TOTALS)
    merged.consume(handed)
    wanted = Aggregator(TOTALS)
    wanted.consume([rows([*range(8)] * 2), rows([7, 8]), rows([*range(100)])])
    assert totals(merged) == totals(wanted)


def test_partials_the_next_worker_does_not_take_are_offered_again():
    taken = []

    def one_at_a_time(partials):
        taken.extend(partials.slice(0, 1).to_pylist())
        return 1

    aggregator = Aggregator(TOTALS, one_at_a_time, flush_period_ms=60_000)
    aggregator.update(rows([1, 2, 3]))
    aggregator.flush()
    assert totals(aggregator) == {2: (1, 1), 3: (1, 2)}
    aggregator.on_idle()
    aggregator.update(rows([4]))
    with pytest.raises(BatchQueueError, match="refused 1 groups at close"):
        aggregator.on_close()
    assert [row["key"] for row in taken] == [1, 2, 3]
    assert (aggregator.dropped, len(aggregator)) == (1, 0)


@pytest.mark.parametrize("answer", ["all", -1, 4, 1.5, True, False])
def test_next_worker_must_return_how_many_groups_it_took(answer):
    aggregator = Aggregator(TOTALS, lambda _: answer)
    aggregator.update(rows([1, 2, 3]))
    with pytest.raises(BatchQueueError, match="must return how many of the 3 groups it took"):
        aggregator.flush()
    assert (aggregator.dropped, len(aggregator)) == (3, 0)


def test_next_worker_that_raises_is_named_and_counted(make_queue, caplog):
    def fail(_):
        raise ZeroDivisionError("no")

    aggregator = Aggregator(TOTALS, fail, flush_period_ms=0)
    queue = make_queue()
    queue.add_handler("a", aggregator)
    queue.produce_arrow(rows([1, 2]), type_column="tag")
    queue.shutdown(WAIT_S)
    assert (aggregator.dropped, queue.stats().failed) == (2, 2)
    assert "ZeroDivisionError: no" in caplog.text


def test_next_worker_that_takes_a_part_makes_room_for_the_next_batch():
    limited = Aggregation(keys=["key"], measures=TOTALS.measures, max_groups=10)
    half = Aggregator(limited, lambda partials: partials.num_rows // 2, flush_period_ms=60_000)
    half.update(rows([*range(10)]))
    half.update(rows([10]))
    assert sorted(totals(half)) == [*range(5, 11)]
    stuck = Aggregator(limited, lambda partials: 0, flush_period_ms=60_000)
    stuck.update(rows([*range(10)]))
    with pytest.raises(
        BatchQueueError, match="than max_groups, 10, and the next worker took none of them"
    ):
        stuck.update(rows([10]))
    assert sorted(totals(stuck)) == [*range(10)]


def test_returned_partials_find_room_whatever_was_added_meanwhile():
    limited = Aggregation(keys=["key"], measures=TOTALS.measures, max_groups=3)

    def add_others(partials):
        if partials.num_rows == 3:
            aggregator.update(rows([4, 5, 6]))
        return 0

    aggregator = Aggregator(limited, add_others, flush_period_ms=60_000)
    aggregator.update(rows([1, 2, 3]))
    aggregator.flush()
    assert sorted(totals(aggregator)) == [1, 2, 3, 4, 5, 6]
    assert aggregator.dropped == 0


def test_partials_go_from_l1_to_l2_through_a_second_queue(make_queue):
    description = Aggregation(keys=["shop", "key"], measures={"n": Count(), "total": Sum("value")})
    l2 = Aggregator(description)
    second, first = make_queue(), make_queue(threads=2, partitions=PartitionPolicy.adaptive())
    for shop in "abc":
        first.add_handler(
            shop,
            Aggregator(
                description, lambda partials: second.produce_arrow(partials, type_column="shop")
            ),
        )
        second.add_handler(shop, l2)
    data = pa.table({"shop": list("abc") * 1_000, "key": [1, 2] * 1_500, "value": range(3_000)})
    for _ in range(10):
        first.produce_arrow(data, type_column="shop")
    first.shutdown(WAIT_S)
    second.shutdown(WAIT_S)
    wanted = (
        data.group_by(["shop", "key"]).aggregate([("value", "sum"), ([], "count_all")]).to_pylist()
    )
    found = {(row["shop"], row["key"]): (row["n"], row["total"]) for row in l2.result().to_pylist()}
    assert found == {
        (row["shop"], row["key"]): (10 * row["count_all"], 10 * row["value_sum"]) for row in wanted
    }


def test_partials_of_another_process_are_merged():
    script = """
        import pickle, sys
        import pyarrow as pa
        from batchqueue.aggregation import Aggregator
        aggregator = Aggregator(pickle.loads(sys.stdin.buffer.read()))
        aggregator.update(pa.table({"key": [1, 2, 1], "value": [1, 2, 3]}))
        partials = aggregator.partials()
        with pa.ipc.new_stream(sys.stdout.buffer, partials.schema) as stream:
            stream.write_batch(partials)
    """
    aggregator = Aggregator(TOTALS)
    aggregator.update(pa.ipc.open_stream(run_script(script, pickle.dumps(TOTALS))).read_all())
    aggregator.update(rows([2]))
    assert totals(aggregator) == {1: (2, 4), 2: (2, 2)}


def test_partials_without_their_metadata_are_not_counted_as_rows():
    aggregator = Aggregator(Aggregation(keys=["key"], measures={"n": Count()}))
    aggregator.update(rows([1, 1]))
    partials = aggregator.partials().replace_schema_metadata(None)
    with pytest.raises(
        ConfigError,
        match="the metadata of their schema is missing, so they would be counted as rows",
    ):
        aggregator.update(partials)


def test_partials_of_another_aggregation_or_version_are_rejected():
    aggregator, other = (
        Aggregator(TOTALS),
        Aggregator(Aggregation(keys=["key"], measures={"n": Count()})),
    )
    aggregator.update(rows([1]))
    partials = aggregator.partials()
    with pytest.raises(ConfigError, match="these partials belong to another aggregation"):
        other.update(partials)
    metadata = {**partials.schema.metadata, b"batchqueue.aggregation.version": b"2"}
    with pytest.raises(
        ConfigError, match='have layout version "2", but this batchqueue reads version "1"'
    ):
        aggregator.update(partials.replace_schema_metadata(metadata))
    broken = partials.set_column(1, "n", pa.array([1]))
    with pytest.raises(
        ConfigError, match='column "n" is of type Int64; give partials as they were emitted'
    ):
        aggregator.update(broken)
    assert len(aggregator) == 0


def test_unreadable_sketch_changes_nothing():
    aggregator = Aggregator(Aggregation(keys=["key"], measures={"q": Quantiles("value", [0.5])}))
    aggregator.update(rows([1, 1]))
    partials = aggregator.partials()
    aggregator.update(partials)
    sketch = pa.StructArray.from_arrays([pa.array([b"\xff\xff"])], ["sketch"])
    broken = pa.RecordBatch.from_arrays([partials["key"], sketch], schema=partials.schema)
    with pytest.raises(BatchQueueError, match="a sketch cannot be read"):
        aggregator.update(broken)
    assert aggregator.result()["q"].to_pylist() == [[0.0]]


@pytest.mark.parametrize("key", ["text", "ä"])
def test_slices_without_rows_change_nothing(key):
    aggregator = Aggregator(Aggregation(keys=["key"], measures={"first": First("key", by="value")}))
    aggregator.update(rows([key, "b", "c"]).slice(2, 0))
    aggregator.update(rows([key, "b", "c"]).slice(1, 2))
    partials = aggregator.partials()
    aggregator.update(partials.slice(1, 0))
    aggregator.update(partials.slice(1, 1))
    assert aggregator.result().to_pylist() == [{"key": "c", "first": "c"}]
