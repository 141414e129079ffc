"""Types that come and go: what a queue keeps of them, and what it promises meanwhile."""

import gc
import threading
import time
import weakref

import pyarrow as pa
import pytest

from batchqueue import PartitionPolicy, RetryPolicy
from core_support.handlers import Held, Recorder
from core_support.queues import assert_conserved
from core_support.waits import WAIT_S, eventually


def new_class(number=0):
    return type(f"Session{number}", (), {"number": number})


def is_collected(queue, reference):
    """The queue checks a few types with each call, also with one of `stats`."""
    queue.stats()
    gc.collect()
    return reference() is None


@pytest.mark.parametrize("flushes", [False, True])
@pytest.mark.parametrize("partitions", [PartitionPolicy.adaptive(), PartitionPolicy.fixed(4)])
def test_sessions_leave_no_class_handler_or_partition_behind(make_queue, partitions, flushes):
    queue = make_queue(threads=2, partitions=partitions)
    queue.add_handler(int, Recorder())
    before = queue.stats().partition_count
    references = []
    seen = 0
    for number in range(1_000):
        session, handler = new_class(number), Recorder()
        references += [weakref.ref(session), weakref.ref(handler)]
        queue.add_handler(session, handler)
        for _ in range(3):
            assert queue.produce(session())
        if flushes:
            assert queue.flush(WAIT_S)
        assert queue.remove_handler(session)
        assert handler.closed == 1
        seen += len(handler.items)
        handler.batches.clear()
        del session, handler

    def alive():
        queue.stats()
        gc.collect()
        return sum(reference() is not None for reference in references)

    eventually(lambda: alive() == 0, "nothing is left of the sessions")
    stats = queue.stats()
    assert stats.partition_count <= before + 10
    assert (stats.produced, stats.consumed) == (3_000, seen)
    assert not flushes or seen == 3_000
    assert list(stats.handlers()) == [int]
    assert_conserved(stats)


def test_class_stays_while_its_items_wait_and_dies_after_them(make_queue):
    queue = make_queue(partitions=2)
    session, handler = new_class(), Held()
    reference = weakref.ref(session)
    queue.add_handler(session, handler)
    handler.hold(queue, session())
    queue.produce(session())
    assert queue.remove_handler(session, timeout=0) is False
    del session
    assert not is_collected(queue, reference)
    handler.released.set()
    handler.batches.clear()
    assert queue.flush(WAIT_S)
    handler.batches.clear()
    eventually(lambda: is_collected(queue, reference), "the class dies")
    assert queue.stats().unhandled == 1
    assert_conserved(queue.stats())


def test_class_dies_that_was_removed_while_its_batch_backs_off(make_queue):
    queue = make_queue(retry=RetryPolicy(attempts=5, backoff_ms=600_000), partitions=2)
    failed = threading.Event()

    def fail(batch):
        failed.set()
        raise ValueError("not today")

    session = new_class()
    reference = weakref.ref(session)
    queue.add_handler(session, fail)
    queue.produce(session())
    assert failed.wait(WAIT_S)
    assert queue.remove_handler(session)
    del session
    eventually(lambda: is_collected(queue, reference), "the class dies")
    assert queue.stats().failed == 1


def test_class_dies_that_was_removed_inside_its_own_call(make_queue):
    queue = make_queue(partitions=2)
    session = new_class()
    reference = weakref.ref(session)
    removed = []
    queue.add_handler(session, lambda batch: removed.append(queue.remove_handler(type(batch[0]))))
    queue.produce(session())
    del session
    eventually(lambda: removed == [True], "the handler removes itself")
    eventually(lambda: is_collected(queue, reference), "the class dies")
    assert queue.stats().consumed == 1


def test_refused_class_is_not_kept(make_queue):
    queue = make_queue()
    queue.shutdown(WAIT_S)
    session = new_class()
    reference = weakref.ref(session)
    with pytest.raises(Exception, match="shut down"):
        queue.add_handler(session, Recorder())
    del session
    eventually(lambda: is_collected(queue, reference), "the class dies")


def test_sessions_end_while_the_queue_shuts_down(make_queue):
    queue = make_queue(threads=2, partitions=PartitionPolicy.adaptive())
    sessions = [new_class(number) for number in range(200)]
    recorder = Recorder()
    for session in sessions:
        queue.add_handler(session, recorder)
        queue.produce(session())
    remover = threading.Thread(target=lambda: [queue.remove_handler(each) for each in sessions])
    remover.start()
    assert queue.shutdown(WAIT_S) == 0
    remover.join(WAIT_S)
    assert not remover.is_alive()
    assert_conserved(queue.stats())


def test_class_that_comes_and_goes_keeps_its_order(make_queue):
    queue = make_queue(threads=2, partitions=PartitionPolicy.adaptive(), max_batch_items=5)
    sessions = [new_class(number) for number in range(4)]
    last = dict.fromkeys(sessions, -1)
    wrong = []

    def handler_of(session):
        def consume(batch):
            for item in batch:
                if type(item) is not session or item.number <= last[session]:
                    wrong.append((session, item))
                last[session] = item.number

        return consume

    stop = threading.Event()

    def produce():
        number = 0
        while not stop.is_set():
            item = sessions[number % 4]()
            item.number = number
            queue.produce(item)
            number += 1

    producer = threading.Thread(target=produce)
    producer.start()
    deadline = time.monotonic() + 1
    rounds = 0
    while time.monotonic() < deadline:
        session = sessions[rounds % 4]
        queue.add_handler(session, handler_of(session), replace=True)
        if rounds % 3:
            queue.remove_handler(sessions[(rounds // 2) % 4])
        rounds += 1
    stop.set()
    producer.join(WAIT_S)
    assert queue.shutdown(WAIT_S) == 0
    assert wrong == []
    assert_conserved(queue.stats())


def test_tags_come_and_go(make_queue):
    queue = make_queue(threads=2, partitions=PartitionPolicy.adaptive())
    for number in range(300):
        tag, rows = f"tenant {number % 100}", Recorder()
        queue.add_handler(tag, rows)
        batch = pa.record_batch({"tag": [tag, "other", tag], "x": [1, 2, 3]})
        assert queue.produce_arrow(batch, type_column="tag") == 3
        assert queue.flush(WAIT_S)
        assert [part["x"].to_pylist() for part in rows.items] == [[1, 3]]
        assert queue.remove_handler(tag)
        assert not queue.remove_handler(tag)
    stats = queue.stats()
    assert stats.partition_count <= 10
    assert (stats.consumed, stats.unhandled) == (600, 300)
    assert_conserved(stats)
