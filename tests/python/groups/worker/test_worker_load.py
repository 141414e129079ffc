"""What a worker measures of its partitions, and what a plan makes of it."""

import json

import pytest

from batchqueue.groups.messages import Ticket
from batchqueue.groups.worker.load import LoadMeter, weigh

SECOND = 1_000.0


@pytest.fixture
def meter():
    return LoadMeter()


def measured(meter, seconds, *, begin=0, busy=0.5, records=100):
    """Measures partition 0 each second, in which a call takes a share of the time."""
    for second in range(begin, begin + seconds):
        meter.begin("call", 0, second * SECOND)
        meter.end("call", records, (second + busy) * SECOND)
        loads = meter.measure([0], (second + 1) * SECOND)
    return loads


def test_load_is_the_mean_at_first(meter):
    meter.measure([0], 0)
    measured(meter, 3, busy=0.9, records=30)
    load = measured(meter, 3, begin=3, busy=0.1, records=90)[0]
    assert (load.busy, load.rate, load.seconds) == pytest.approx((0.5, 60, 6))


def test_load_forgets_what_was_long_ago(meter):
    meter.measure([0], 0)
    measured(meter, 60, busy=0.9)
    assert measured(meter, 150, begin=60, busy=0.1)[0].busy == pytest.approx(0.1, abs=0.01)


def test_time_before_a_partition_came_does_not_count(meter):
    meter.measure([], 0)
    assert meter.measure([0], 60 * SECOND) == {}
    assert measured(meter, 1, begin=60, busy=0.5)[0].busy == pytest.approx(0.5)


def test_call_counts_while_it_runs(meter):
    meter.measure([0, 1], 0)
    meter.begin("slow", 0, 0)
    assert meter.measure([0, 1], 10 * SECOND)[0].busy == pytest.approx(1)
    meter.end("slow", 5, 15 * SECOND)
    loads = meter.measure([0, 1], 20 * SECOND)
    assert (loads[0].busy, loads[0].rate) == pytest.approx((0.75, 0.25))
    assert loads[1].busy == 0


def test_two_calls_of_one_partition_are_added(meter):
    meter.measure([0], 0)
    meter.begin("first", 0, 0)
    meter.begin("second", 0, 0)
    assert meter.measure([0], SECOND)[0].busy == pytest.approx(2)


def test_partition_that_went_away_begins_anew(meter):
    meter.measure([0], 0)
    measured(meter, 10, busy=0.9)
    meter.measure([], 11 * SECOND)
    meter.measure([0], 12 * SECOND)
    assert measured(meter, 2, begin=12, busy=0.1)[0].busy == pytest.approx(0.1)


def test_load_is_known_after_five_seconds(meter):
    meter.measure([0], 0)
    assert not measured(meter, 4)[0].is_known
    assert measured(meter, 1, begin=4)[0].is_known


def test_plan_keeps_the_weight_of_a_partition_that_is_not_known_yet():
    stats = {"a": json.dumps({"weights": {"0": 0.25}}), "b": json.dumps({"weights": {}})}
    ticket = Ticket(1, True, 2, {}, {}, weights={0: 0.5, 1: 0.75}, stats=stats)
    assert weigh(ticket) == {0: 0.25, 1: 0.75}
