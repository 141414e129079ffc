"""L1, L2 and TopN as plain objects, with a clock that the test moves."""

from collections import Counter

import pytest

from batchqueue import BatchQueueError, ProduceTimeoutError
from batchqueue.aggregation import (
    CountMetrics,
    L1AggregateWorker,
    L2PersistenceWorker,
    MergeBuffer,
    Ranking,
    TopNWorker,
    metric_type,
)

OTHER = metric_type("test.other", CountMetrics)


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


class Next:
    """A next worker that takes only as many as it has room for, like a full queue."""

    def __init__(self, room=1_000):
        self.room = room
        self.taken = []

    def produce_many(self, partials):
        accepted = partials[: self.room]
        self.taken += accepted
        self.room -= len(accepted)
        return len(accepted)

    def counts(self):
        totals = Counter()
        for partial in self.taken:
            totals[partial.entity] += partial.count
        return totals


def test_buffer_keeps_one_partial_per_type_and_key():
    buffer = MergeBuffer()
    buffer.accept_all(
        [CountMetrics("a", 0), OTHER("a", 0), CountMetrics("a", 0), CountMetrics("a", 60)]
    )
    buffer.accept_all([OTHER("a", 0, 5)])
    assert len(buffer) == 3
    assert buffer.keys() == {CountMetrics: [("a", 0), ("a", 60)], OTHER: [("a", 0)]}
    assert buffer.drain() == [CountMetrics("a", 0, 2), CountMetrics("a", 60, 1), OTHER("a", 0, 6)]
    assert len(buffer) == 0
    assert buffer.drain() == []


@pytest.mark.parametrize(
    "item", [CountMetrics("a", 0), metric_type("test.r", Ranking)("a", 0, 1, "id")]
)
def test_item_that_is_produced_twice_counts_twice_and_is_not_changed(item):
    before = item.to_rows()
    buffer = MergeBuffer()
    buffer.accept_all([item, item, item])
    assert buffer.drain()[0].to_rows() != before
    assert item.to_rows() == before


def test_l1_emits_after_its_period_on_idle_and_on_close():
    clock, handed = Clock(), []
    worker = L1AggregateWorker(
        lambda partials: handed.append(partials), flush_period_ms=500, clock=clock
    )
    worker.consume([CountMetrics("a", 0)] * 3)
    clock.now = 0.499
    worker.consume([CountMetrics("a", 0)])
    assert handed == []
    clock.now = 0.5
    worker.consume([CountMetrics("a", 0)])
    assert handed == [[CountMetrics("a", 0, 5)]]
    clock.now = 0.999
    worker.consume([CountMetrics("a", 0)])
    assert len(handed) == 1
    worker.on_idle()
    worker.on_idle()
    assert handed[1:] == [[CountMetrics("a", 0, 1)]]
    worker.consume([CountMetrics("b", 0)])
    worker.on_close()
    assert handed[2:] == [[CountMetrics("b", 0, 1)]]
    assert worker.dropped == 0


@pytest.mark.parametrize(
    "make",
    [
        lambda taker, clock: L2PersistenceWorker(taker, period_s=60, clock=clock),
        lambda taker, clock: TopNWorker(taker, flush_period_ms=60_000, clock=clock),
    ],
    ids=["L2", "TopN"],
)
def test_l2_and_top_n_wait_for_their_period_even_when_idle(make):
    clock, handed = Clock(), []
    worker = make(handed.extend, clock)
    worker.consume([CountMetrics("a", 0), CountMetrics("a", 0)])
    clock.now = 59.9
    worker.on_idle()
    assert handed == []
    clock.now = 60
    worker.on_idle()
    assert handed == [CountMetrics("a", 0, 2)]
    worker.consume([CountMetrics("a", 0)])
    worker.on_close()
    assert handed[1:] == [CountMetrics("a", 0, 1)]


def test_top_n_emits_the_best_rows_of_each_group():
    worst = metric_type("test.worst", Ranking, limit=2)
    handed = []
    worker = TopNWorker(handed.extend)
    worker.consume(
        [
            worst(day, 0, score, f"flight-{score}")
            for day in ("mon", "tue")
            for score in (5, 9, 7, 1)
        ]
    )
    worker.on_close()
    assert {ranking.entity: [entry.score for entry in ranking.entries] for ranking in handed} == {
        "mon": [9, 7],
        "tue": [9, 7],
    }


def test_no_loss_partials_refused_by_a_full_next_worker_are_merged_and_offered_again():
    taker = Next(room=1)
    worker = L1AggregateWorker(taker.produce_many)
    worker.consume([CountMetrics("a", 0), CountMetrics("b", 0), CountMetrics("c", 0)])
    worker.on_idle()
    assert taker.counts() == {"a": 1}
    worker.consume([CountMetrics("a", 0), CountMetrics("b", 0)])
    taker.room = 1_000
    worker.on_close()
    assert taker.counts() == {"a": 2, "b": 2, "c": 1}
    assert len(taker.taken) == 4
    assert worker.dropped == 0


def test_nothing_silent_refusals_at_close_are_counted_and_raised():
    taker = Next(room=1)
    worker = L1AggregateWorker(taker.produce_many)
    worker.consume([CountMetrics("a", 0), CountMetrics("b", 0), CountMetrics("c", 0)])
    with pytest.raises(BatchQueueError, match="L1AggregateWorker dropped 2 partials at close"):
        worker.on_close()
    assert worker.dropped == 2
    assert taker.counts() == {"a": 1}


def test_next_worker_that_returns_false_has_taken_nothing():
    worker = L1AggregateWorker(lambda partials: False)
    worker.consume([CountMetrics("a", 0)])
    with pytest.raises(BatchQueueError, match="dropped 1 partial at close"):
        worker.on_close()


def test_no_duplication_time_out_keeps_only_what_was_not_accepted():
    taken = []

    def next_worker(partials):
        if taken:
            taken.extend(partials)
            return len(partials)
        taken.append(partials[0])
        raise ProduceTimeoutError("full", accepted=1)

    worker = L1AggregateWorker(next_worker)
    worker.consume([CountMetrics("a", 0), CountMetrics("b", 0)])
    worker.on_idle()
    worker.on_close()
    assert taken == [CountMetrics("a", 0), CountMetrics("b", 0)]


def test_next_worker_that_raises_is_not_called_again_and_its_partials_are_counted():
    calls = []

    def next_worker(partials):
        calls.append(partials)
        raise OSError("no route")

    worker = L2PersistenceWorker(next_worker, period_s=0)
    with pytest.raises(OSError, match="no route"):
        worker.consume([CountMetrics("a", 0), CountMetrics("b", 0)])
    worker.on_close()
    assert len(calls) == 1
    assert worker.dropped == 2
