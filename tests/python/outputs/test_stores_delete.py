"""Old metrics can be deleted, and their ledger stays."""

import os
import random
import signal
from datetime import UTC, datetime, timedelta, timezone

import pytest

from batchqueue import ConfigError
from batchqueue.aggregation import CountMetrics, Ranking, metric_type

COUNT = metric_type("test.count", CountMetrics)
WORST = metric_type("test.worst", Ranking, limit=2)
HOUR, DAY = 3_600, 86_400


def test_metrics_before_a_time_are_deleted_and_their_epochs_stay_applied(store):
    for sink_id in ("sink", "other"):
        with store.transaction(sink_id) as transaction:
            hours = [COUNT("a", hour * HOUR) for hour in range(48)]
            transaction.merge([*hours, WORST("a", 0, 9, "x"), WORST("a", 0, 8, "y")])
            transaction.record("query", 3, {"rows": 48})
    assert store.delete(before=30 * HOUR, sink_id="sink") == 32
    assert [item.time_bucket for item in store.read(COUNT, "sink")] == [
        hour * HOUR for hour in range(30, 48)
    ]
    assert store.read(WORST, "sink") == []
    assert len(store.read(COUNT, "other")) == 48
    with store.transaction("sink") as transaction:
        assert transaction.applied("query", 3)
        transaction.merge([COUNT("a", 0), COUNT("a", 30 * HOUR)])
    assert [item.count for item in store.read(COUNT, "sink")][:2] == [1, 2]
    assert store.delete(before=0, sink_id="sink") == 0
    assert store.delete(before=10 * DAY, sink_id="sink") == 19
    assert store.sinks() == ["other", "sink"]


@pytest.mark.parametrize(
    ("before", "left"),
    [
        (datetime(1970, 1, 2, tzinfo=UTC), 1),
        (datetime(1970, 1, 2, 0, 0, 0, 1, tzinfo=UTC), 0),
        (datetime(1970, 1, 2, tzinfo=timezone(timedelta(hours=1))), 1),
        (datetime(1970, 1, 1, tzinfo=UTC), 2),
    ],
)
def test_limit_is_a_time_of_any_zone(store, before, left):
    with store.transaction() as transaction:
        transaction.merge([COUNT("a", 0), COUNT("a", DAY)])
    store.delete(before=before)
    assert len(store.read(COUNT)) == left


def test_range_is_deleted_and_what_is_before_and_after_stays(store):
    with store.transaction() as transaction:
        transaction.merge([COUNT("a", hour * HOUR) for hour in range(96)])
    since = datetime(1970, 1, 2, tzinfo=UTC)
    assert store.delete(since=since, before=3 * DAY + HOUR) == 49
    left = [item.time_bucket for item in store.read(COUNT)]
    assert left == [hour * HOUR for hour in (*range(24), *range(73, 96))]
    assert store.delete(since=DAY, before=DAY) == store.delete(since=DAY, before=0) == 0
    with pytest.raises(ConfigError, match=r"since='1970'.*a datetime with a zone"):
        store.delete(since="1970", before=DAY)


@pytest.mark.parametrize("before", [datetime(2026, 1, 1), "2026-01-01", 1.5, True, None])
def test_other_limits_are_refused_and_nothing_is_deleted(store, before):
    with store.transaction() as transaction:
        transaction.merge([COUNT("a", 0)])
    with pytest.raises(ConfigError, match=r"before=.*a datetime with a zone"):
        store.delete(before=before)
    assert store.read(COUNT) == [COUNT("a", 0)]


def test_killed_delete_leaves_everything_or_what_stays(store):
    """The process is killed at any moment of the delete; the ledger is the same either way."""
    chance = random.Random(5)
    hours = [COUNT(f"entity {number}", hour * HOUR) for number in range(40) for hour in range(48)]
    with store.transaction() as transaction:
        transaction.record("query", 3, {"rows": len(hours)})
    for _ in range(12):
        with store.transaction() as transaction:
            transaction.save(hours)
        child = os.fork()
        if child == 0:
            signal.signal(signal.SIGALRM, lambda *_: os.kill(os.getpid(), signal.SIGKILL))
            signal.setitimer(signal.ITIMER_REAL, chance.uniform(0.0005, 0.03))
            store.delete(before=30 * HOUR)
            os._exit(0)
        os.waitpid(child, 0)
        with store.transaction() as transaction:  # after what a server may still commit
            assert transaction.last_batch("query") == 3
        left = {item.time_bucket // HOUR for item in store.read(COUNT)}
        assert left in ({*range(48)}, {*range(30, 48)})
        assert len(store.read(COUNT)) == 40 * len(left)
        assert store.delete(before=30 * HOUR) == 40 * (len(left) - 18)
