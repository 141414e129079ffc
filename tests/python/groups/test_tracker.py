"""The mark of a partition, its counts and its credits, also when chunks end out of order."""

import sys

import pytest

from batchqueue.groups.worker import tracker as tracker_module
from batchqueue.groups.worker.tracker import PartitionTracker, RecordCounts


def add(tracker, count, size=1):
    """Adds a chunk with the next offsets."""
    first = tracker.position + 1
    return tracker.add(count, first, first + count - 1, size)


def run(tracker, chunk, **counts):
    """Starts and ends a chunk; all of its records are handled by default."""
    assert tracker.start(chunk)
    return tracker.settle(chunk, **(counts or {"handled": chunk.running}))


@pytest.fixture
def tracker():
    return PartitionTracker(-1, prefetch=10, prefetch_bytes=100)


# The mark


def test_mark_follows_chunks_that_end_in_order(tracker):
    for last in (1, 3, 5):
        assert run(tracker, add(tracker, 2))
        assert tracker.mark == (last, last + 1)


def test_mark_waits_for_an_earlier_chunk_and_then_passes_all_that_are_done(tracker):
    first, second, third = (add(tracker, 2) for _ in range(3))
    assert not run(tracker, third)
    assert not run(tracker, second)
    assert tracker.mark == (-1, 0)
    assert run(tracker, first)
    assert tracker.mark == (5, 6)


def test_chunk_is_done_when_its_last_part_has_ended(tracker):
    chunk = add(tracker, 5)
    assert tracker.start(chunk, 2)
    assert tracker.start(chunk, 3)
    assert not tracker.settle(chunk, handled=2)
    assert not tracker.settle(chunk, dead=1, skipped=1)
    assert tracker.mark.offset == -1
    assert tracker.settle(chunk, handled=1)
    assert tracker.mark.offset == 4


def test_chunk_with_a_part_that_was_not_started_is_not_done(tracker):
    chunk = add(tracker, 5)
    assert tracker.start(chunk, 2)
    assert not tracker.settle(chunk, handled=2)
    assert tracker.mark.offset == -1


def test_offsets_may_have_gaps(tracker):
    assert run(tracker, tracker.add(2, 1_000, 5_000, 1))
    assert tracker.mark == (5_000, 2)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda tracker: tracker.add(0, 10, 10, 1),
        lambda tracker: tracker.add(2, 3, 11, 1),
        lambda tracker: tracker.add(2, 11, 10, 1),
        lambda tracker: tracker.start(add(tracker, 2), 3),
        lambda tracker: tracker.start(add(tracker, 2), 0),
        lambda tracker: tracker.settle(add(tracker, 2), handled=1),
        lambda tracker: run(tracker, add(tracker, 2), handled=3),
        lambda tracker: run(tracker, add(tracker, 2), handled=2, skipped=1),
        lambda tracker: run(tracker, add(tracker, 2), handled=2, dead=-1),
        lambda tracker: tracker.give_back(add(tracker, 2), 1),
        lambda tracker: tracker.acknowledge(1),
    ],
)
def test_numbers_that_cannot_be_right_are_refused_and_change_nothing(tracker, wrong):
    add(tracker, 4)
    with pytest.raises(ValueError, match=r"give|committed"):
        wrong(tracker)
    counts = tracker.counts
    assert (tracker.mark.offset, counts.in_hand) == (-1, counts.fetched)
    assert tracker.room.records == 10 - counts.fetched


# Counts


def test_all_that_was_fetched_is_counted_at_rest(tracker):
    first, second = add(tracker, 4), add(tracker, 3)
    add(tracker, 2)
    run(tracker, first, handled=2, dead=1, skipped=1)
    tracker.start(second)
    assert tracker.revoke() == 2
    tracker.settle(second, handled=3)
    assert tracker.counts == RecordCounts(fetched=9, handled=5, dead=1, skipped=1, dropped=2)
    assert tracker.counts.in_hand == 0


def test_counts_of_trackers_add_up():
    total = RecordCounts(7, 1, 1, 1, 1) + RecordCounts(20, 2, 3, 4, 5)
    assert total == RecordCounts(27, 3, 4, 5, 6)
    assert total.in_hand == 9


# Credits


def test_records_that_ended_above_the_mark_use_credit(tracker):
    first, second = add(tracker, 4), add(tracker, 6)
    run(tracker, second)
    assert tracker.room == (0, 0)
    run(tracker, first)
    assert tracker.room == (10, 100)


def test_full_in_bytes_is_full(tracker):
    chunk = add(tracker, 1, size=99)
    assert tracker.room == (9, 1)
    add(tracker, 1, size=1)
    assert tracker.room == (0, 0)
    assert tracker.fill == 1.0
    run(tracker, chunk)
    assert tracker.room == (9, 99)


def test_record_larger_than_all_credit_passes(tracker):
    assert run(tracker, add(tracker, 1, size=1_000))
    assert tracker.room == (10, 100)


def test_prefetch_of_a_hot_partition_can_be_doubled(tracker):
    add(tracker, 10)
    assert tracker.room == (0, 0)
    tracker.prefetch *= 2
    assert tracker.room == (10, 99)
    assert tracker.fill == 0.5


def test_revoked_partition_has_no_room(tracker):
    tracker.revoke()
    assert tracker.room == (0, 0)


# Revoke


def test_revoke_drops_only_what_comes_after_the_last_started_chunk(tracker):
    first, second, third = (add(tracker, 2) for _ in range(3))
    tracker.start(second)
    assert tracker.revoke() == 2
    assert not tracker.start(third)
    # Without the first chunk, the mark could not pass the second, which the next owner would get.
    run(tracker, first)
    assert tracker.settle(second, handled=2) is True
    assert tracker.mark.offset == 3


def test_revoke_keeps_every_started_chunk_in_whatever_order_they_started(tracker):
    first, second, third = (add(tracker, 2) for _ in range(3))
    tracker.start(third)
    tracker.start(first)
    assert tracker.revoke() == 0
    tracker.settle(first, handled=2)
    tracker.settle(third, handled=2)
    run(tracker, second)
    assert tracker.mark.offset == 5


def test_what_arrives_after_revoke_counts_as_dropped(tracker):
    tracker.revoke()
    assert add(tracker, 3) is None
    assert tracker.counts == RecordCounts(fetched=3, dropped=3)


def test_partition_is_drained_when_nothing_is_in_hand_and_the_mark_is_acknowledged(tracker):
    chunk = add(tracker, 2)
    tracker.start(chunk)
    tracker.revoke()
    assert not tracker.drained
    tracker.settle(chunk, handled=2)
    assert not tracker.drained
    tracker.acknowledge(1)
    assert tracker.drained
    tracker.end()
    assert not tracker.drained


def test_idle_partition_is_drained_only_after_revoke(tracker):
    assert not tracker.drained
    tracker.revoke()
    assert tracker.drained


def test_record_given_back_stops_the_mark_and_drops_what_waits_after_it(tracker):
    first, second, third = (add(tracker, 2) for _ in range(3))
    for chunk in (first, second, third):
        tracker.start(chunk, 1)
    tracker.give_back(second, 1)
    assert not tracker.start(second)
    assert not tracker.start(third)
    assert tracker.start(first)
    tracker.settle(first, handled=2)
    tracker.settle(third, handled=1)
    assert tracker.mark.offset == 1
    assert tracker.counts == RecordCounts(fetched=6, handled=3, dropped=3)
    tracker.acknowledge(1)
    assert tracker.drained


def test_earlier_record_given_back_later_drops_what_waits_between(tracker):
    first, second, third = (add(tracker, 2) for _ in range(3))
    tracker.start(first)
    tracker.start(third)
    tracker.give_back(third, 2)
    assert second.waiting == 2
    tracker.give_back(first, 2)
    assert not tracker.start(second)
    assert tracker.counts == RecordCounts(fetched=6, dropped=6)


# After the assignment


def test_result_after_the_end_changes_nothing(tracker):
    first, second = add(tracker, 2), add(tracker, 2)
    run(tracker, first)
    tracker.start(second)
    assert tracker.end() == 2
    before = tracker.counts, tracker.mark
    assert not tracker.settle(second, handled=2)
    assert not tracker.start(second)
    tracker.give_back(second, 2)
    assert add(tracker, 5) is None
    assert tracker.revoke() == tracker.end() == 0
    assert (tracker.counts, tracker.mark) == before
    assert before[0] == RecordCounts(fetched=4, handled=2, dropped=2)


def test_nothing_is_left_to_commit_after_the_end(tracker):
    run(tracker, add(tracker, 2))
    assert tracker.to_commit() == (1, 2)
    tracker.end()
    assert tracker.to_commit() is None
    assert not tracker.drained


def test_chunk_of_an_earlier_assignment_changes_nothing(tracker):
    old = add(PartitionTracker(-1), 2)
    old.tracker.start(old)
    add(tracker, 2)
    assert not tracker.start(old)
    assert not tracker.settle(old, handled=2)
    tracker.give_back(old, 2)
    assert tracker.counts == RecordCounts(fetched=2)
    assert tracker.room.records == 8
    assert old.running == 2


# Commits


def test_mark_is_to_commit_until_it_is_acknowledged(tracker):
    assert tracker.to_commit() is None
    run(tracker, add(tracker, 2))
    sent = tracker.to_commit()
    run(tracker, add(tracker, 3))
    tracker.acknowledge(sent.offset)
    assert tracker.to_commit() == (4, 5)
    tracker.acknowledge(4)
    assert tracker.to_commit() is None


def test_late_acknowledgement_changes_nothing(tracker):
    run(tracker, add(tracker, 2))
    run(tracker, add(tracker, 3))
    tracker.acknowledge(4)
    tracker.acknowledge(1)
    assert tracker.to_commit() is None


# Cost


def lines_run(chunks, backwards):
    """Counts the lines of the tracker that run until this many chunks are done and dropped."""
    count = 0

    def trace(frame, event, _):
        nonlocal count
        if frame.f_code.co_filename != tracker_module.__file__:
            return None
        count += event == "line"
        return trace

    tracker = PartitionTracker(-1)
    before = sys.gettrace()
    sys.settrace(trace)
    try:
        started = [add(tracker, 1) for _ in range(chunks)]
        for chunk in started:
            tracker.start(chunk)
        for chunk in reversed(started) if backwards else started:
            tracker.settle(chunk, handled=1)
        for _ in range(chunks):
            add(tracker, 1)
        tracker.revoke()
    finally:
        sys.settrace(before)
    assert (tracker.mark.records, tracker.counts.in_hand) == (chunks, 0)
    return count


@pytest.mark.parametrize("backwards", [False, True])
def test_cost_of_a_chunk_does_not_grow_with_the_number_of_chunks(backwards):
    assert lines_run(400, backwards) <= 2.1 * lines_run(200, backwards)
