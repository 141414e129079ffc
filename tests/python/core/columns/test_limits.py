"""Limits of `produce_arrow`: full partitions, timeouts, shutdown, failures, streams; in rows."""

import logging

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from batchqueue import (
    BufferStrategy,
    PartitionPolicy,
    ProduceTimeoutError,
    RetryPolicy,
)
from core_support.columns import Rows, record_batch
from core_support.handlers import Held
from core_support.queues import assert_conserved
from core_support.scripts import run_script
from core_support.threads import in_background, join, run_threads
from core_support.waits import WAIT_S, eventually


@pytest.fixture
def held_queue(make_queue):
    """A queue with room for ten rows whose handler of tag "a" holds its first; and the handler."""
    held = Held()
    queue = make_queue(buffer_size=10)
    queue.add_handler("a", held)
    assert queue.produce_arrow(record_batch(["a"]), type_column="tag") == 1
    assert held.entered.wait(WAIT_S)
    return queue, held


def test_bound_and_counts_are_in_rows(make_queue):
    held = Held()
    queue = make_queue(buffer_size=100, strategy=BufferStrategy.IF_POSSIBLE)
    queue.add_handler("a", held)
    assert queue.produce_arrow(record_batch(["a"]), type_column="tag") == 1
    assert held.entered.wait(WAIT_S)
    assert queue.produce_arrow(record_batch(["a"] * 250), type_column="tag") == 100
    stats = queue.stats()
    assert (stats.attempts, stats.produced, stats.refused, stats.total_used) == (251, 101, 150, 101)
    held.released.set()
    queue.shutdown(WAIT_S)
    assert queue.produce_arrow(record_batch(["a"] * 5), type_column="tag") == 0, (
        "the queue is shut down"
    )
    stats = queue.stats()
    assert (stats.refused, stats.consumed) == (155, 101)
    assert_conserved(stats)


def test_full_tag_does_not_block_the_others(make_queue):
    held, rows = Held(), Rows()
    queue = make_queue(threads=2, partitions=2, buffer_size=10, strategy=BufferStrategy.IF_POSSIBLE)
    queue.add_handler("full", held)
    queue.add_handler("free", rows)
    queue.produce_arrow(record_batch(["full"]), type_column="tag")
    assert held.entered.wait(WAIT_S)
    assert queue.produce_arrow(record_batch(["full"] * 40 + ["free"] * 5), type_column="tag") == 15
    held.released.set()
    queue.shutdown(WAIT_S)
    assert len(rows.numbers) == 5


def test_blocking_rows_wait_for_space_beside_objects(make_queue):
    total, numbers = Rows(), []
    queue = make_queue(buffer_size=10)
    queue.add_handler("a", total)
    queue.add_handler(int, numbers.extend)
    run_threads(
        lambda: [
            queue.produce_arrow(record_batch(["a"] * 333), type_column="tag") for _ in range(3)
        ],
        lambda: [queue.produce(number) for number in range(500)],
    )
    queue.shutdown(WAIT_S)
    assert total.numbers == list(range(333)) * 3
    assert numbers == list(range(500))
    assert all(batch.num_rows <= 10 for batch in total.batches)
    assert_conserved(queue.stats())


def test_time_out_reports_how_many_rows_were_accepted(held_queue):
    queue, held = held_queue
    with pytest.raises(ProduceTimeoutError, match=r"partition 0 stayed full \(10/10\)") as raised:
        queue.produce_arrow(record_batch(["a"] * 30), type_column="tag", timeout=0.01)
    assert raised.value.accepted == 10
    held.released.set()
    queue.shutdown(WAIT_S)
    assert_conserved(queue.stats())


def test_shutdown_releases_a_waiting_producer(held_queue):
    queue, held = held_queue
    thread, outcome = in_background(
        lambda: queue.produce_arrow(record_batch(["a"] * 30), type_column="tag")
    )
    eventually(lambda: queue.stats().attempts == 31, "the producer to wait")
    closing, _ = in_background(lambda: queue.shutdown(WAIT_S))
    join(thread)
    assert outcome == [10]
    held.released.set()
    join(closing)
    assert_conserved(queue.stats())


def test_rows_without_a_handler_are_logged_once(make_queue, caplog):
    caplog.set_level(logging.WARNING, logger="batchqueue")
    queue = make_queue()
    queue.add_handler("a", Rows())
    queue.produce_arrow(record_batch([None, "other", "a", "other"]), type_column="tag")
    assert queue.flush(WAIT_S)
    queue.shutdown(WAIT_S)
    lines = [record.getMessage() for record in caplog.records]
    assert [line for line in lines if 'tag "other"' in line and "2 items" in line], lines
    assert [line for line in lines if "no tag (null)" in line and "1 item" in line], lines
    assert queue.stats().unhandled == 3


def test_failed_batch_is_retried_with_the_same_rows(make_queue):
    calls = []

    def flaky(batches):
        calls.append([number for batch in batches for number in batch.column("number").to_pylist()])
        if len(calls) == 1:
            raise OSError("once")

    queue = make_queue(retry=RetryPolicy(attempts=3, backoff_ms=1))
    queue.add_handler("a", flaky)
    queue.produce_arrow(record_batch(["a", "b", "a"]), type_column="tag")
    queue.shutdown(WAIT_S)
    assert calls == [[0, 2], [0, 2]]
    assert queue.stats().consumed == 2


def test_failures_are_counted_in_rows(make_queue):
    def fail(batches):
        raise ValueError("no")

    queue = make_queue()
    queue.add_handler("a", fail)
    queue.produce_arrow(record_batch(["a"] * 7), type_column="tag")
    queue.shutdown(WAIT_S)
    assert queue.stats().failed == 7
    assert queue.stats().handlers()["a"].failed == 7


def test_producers_in_several_threads_keep_their_order(make_queue):
    rows = Rows()
    queue = make_queue(threads=2, partitions=PartitionPolicy.adaptive(), buffer_size=50)
    queue.add_handler("a", rows)
    queue.add_handler("b", rows)

    def producer(name):
        def body():
            for start in range(0, 1_000, 100):
                tags = ["ab"[number % 2] for number in range(100)]
                numbers = pa.array(range(start, start + 100))
                queue.produce_arrow(
                    pa.table({"tag": tags, "n": numbers, "by": [name] * 100}), type_column="tag"
                )

        return body

    run_threads(producer(0), producer(1), producer(2))
    queue.shutdown(WAIT_S)
    for tag in "ab":
        for by in range(3):
            data = pa.Table.from_batches(rows.batches)
            mine = data.filter(pc.and_(pc.equal(data["tag"], tag), pc.equal(data["by"], by)))
            assert mine["n"].to_pylist() == [
                number for number in range(1_000) if "ab"[number % 2] == tag
            ]


def test_stream_that_fails_midway_raises_and_keeps_the_rows_it_gave(make_queue):
    rows = Rows()
    queue = make_queue()
    queue.add_handler("a", rows)
    good = record_batch(["a", "a"])

    def batches():
        yield good
        raise OSError("the disk is gone")

    with pytest.raises(Exception, match="the disk is gone"):
        queue.produce_arrow(
            pa.RecordBatchReader.from_batches(good.schema, batches()), type_column="tag"
        )
    queue.shutdown(WAIT_S)
    assert rows.numbers == [0, 1]
    assert_conserved(queue.stats())


def endless(batch):
    """A reader that never ends."""

    def batches():
        while True:
            yield batch

    return pa.RecordBatchReader.from_batches(batch.schema, batches())


@pytest.mark.parametrize("strategy", BufferStrategy)
def test_stream_is_not_read_further_after_a_shutdown(make_queue, strategy):
    queue = make_queue(strategy=strategy)
    queue.add_handler("a", Rows())
    source = endless(record_batch(["a", "a"]))
    thread, outcome = in_background(lambda: queue.produce_arrow(source, type_column="tag"))
    eventually(lambda: queue.stats().produced > 10, "rows")
    queue.shutdown(WAIT_S)
    join(thread)
    stats = queue.stats()
    assert outcome == [stats.produced]
    assert_conserved(stats)


def test_stream_that_never_waits_can_be_interrupted():
    code, lines, err = run_script("""
        import pyarrow as pa
        batch = pa.record_batch({"tag": ["a", "a"]})
        def batches():
            for _ in range(50):
                yield batch
            os.kill(os.getpid(), signal.SIGINT)
            while True:
                yield batch
        with BatchQueue("q", config(strategy=BufferStrategy.IF_POSSIBLE)) as queue:
            queue.add_handler("a", len)
            try:
                reader = pa.RecordBatchReader.from_batches(batch.schema, batches())
                queue.produce_arrow(reader, type_column="tag")
            except KeyboardInterrupt as interrupt:
                say("interrupted", interrupt.accepted >= 100)
            except BatchQueueError as error:
                # The interrupt came while the generator ran, and pyarrow turned it into a failure.
                say("interrupted", "KeyboardInterrupt" in str(error) and error.accepted >= 100)
    """)
    assert (code, lines) == (0, ["interrupted True"]), err
