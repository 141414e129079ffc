"""What the log says of flow control: at changes only, and not too often."""

import logging

import pytest

from batchqueue.base.background_log import flush_log
from batchqueue.groups import SkewDetectionConfig
from batchqueue.pipeline.runner.controller import rounded_up
from batchqueue.pipeline.runner.pressure import PartitionProgress
from core_support.waits import WAIT_S
from pipeline_support.flow_support import CheckedFlow, chain, reading


@pytest.fixture
def lines(caplog):
    caplog.set_level(logging.INFO, logger="batchqueue")

    def lines():
        assert flush_log(WAIT_S)
        said = [(each.levelname, each.getMessage()) for each in caplog.records]
        caplog.clear()
        return said

    return lines


@pytest.fixture
def flow():
    return CheckedFlow(chain("orders", "totals"), gate="both")


def test_nothing_is_logged_while_nothing_changes(flow, lines):
    for lag in (0, 3_000, 4_000, None):
        flow.check(totals=lag)
    assert lines() == []


def test_activation_and_pause_are_logged_once(flow, lines):
    for _ in range(3):
        flow.check(totals=reading(6_000, busy_ratio=0.98))
    assert lines() == [
        ("WARNING", "Backpressure activated: totals (lag 6000 > 5000, workers 98 % busy)"),
        ("INFO", "pausing orders: totals (lag 6000 > 5000, workers 98 % busy)"),
    ]


def test_early_warning_pauses_without_an_activation(flow, lines):
    flow.check(totals=4_500)
    assert lines() == [("INFO", "pausing orders: totals (lag 4500 > 4000, early warning)")]


def test_source_that_is_not_gated_is_not_said_to_pause(lines):
    CheckedFlow(chain("orders", "totals")).check(totals=6_000)
    # Nor is it a warning: a full queue that holds its source back does what it should.
    assert lines() == [("INFO", "Backpressure activated: totals (lag 6000 > 5000)")]


def test_release_is_logged_with_the_readings(flow, lines):
    flow.check(totals=6_000)
    lines()
    flow.clock.now_s += 60
    flow.check(totals=reading(3_400, 12))
    assert lines() == [
        ("INFO", "Backpressure deactivated: totals (lag 3400, queue 12)"),
        ("INFO", "resuming orders"),
    ]


def test_changes_within_a_minute_are_logged_when_it_is_over(flow, lines):
    flow.check(totals=6_000)
    lines()
    for _ in range(4):
        flow.check(totals=0)
        flow.check(totals=6_000)
    flow.check(totals=0)
    assert lines() == []
    flow.clock.now_s = 60.4
    flow.check(totals=0)
    assert lines() == [
        ("INFO", "Backpressure deactivated: totals (lag 0, queue 0) (8 changes not logged)"),
        ("INFO", "resuming orders (8 changes not logged)"),
    ]


def test_changes_that_are_over_within_the_minute_leave_no_line(flow, lines):
    flow.check(totals=6_000)
    flow.check(totals=0)
    flow.check(totals=6_000)
    lines()
    flow.clock.now_s = 100
    flow.check(totals=6_000)
    assert lines() == []


def test_each_stage_has_a_minute_for_itself(lines):
    flow = CheckedFlow(chain("orders", "totals", "store"))
    flow.check(totals=6_000)
    flow.check(store=6_000)
    assert [line.partition(" (")[0] for _, line in lines()] == [
        "Backpressure activated: totals",
        "Backpressure activated: store",
    ]


class TestAdvice:
    def test_threshold_that_a_stage_passes_between_two_checks_is_named(self, lines):
        flow = CheckedFlow(chain("orders", "totals"), gate="both", queue_size_threshold=50_000)
        for _ in range(3):
            flow.check(totals=reading(rate_per_s=20_000.0))
        [(level, line)] = lines()
        assert level == "WARNING"
        assert line == (
            "Backpressure of totals: lag_threshold 5000 is less than totals completes in two "
            "checks (20000 rows/s, every 0.5 s), so it would run dry while its sources pause; set "
            "lag_threshold=20000"
        )

    def test_both_thresholds_are_named_if_both_are_too_low(self, lines):
        flow = CheckedFlow(chain("orders", "totals"), gate="signal")
        flow.check(totals=reading(rate_per_s=20_000.0))
        [(_, line)] = lines()
        assert "lag_threshold 5000, queue_size_threshold 1000 is less than" in line
        assert line.endswith("; set lag_threshold=20000, queue_size_threshold=20000")

    @pytest.mark.parametrize(("rate", "count"), [(1_000.0, 0), (1_000.1, 1), (None, 0), (0.0, 0)])
    def test_threshold_of_exactly_two_checks_is_enough(self, lines, rate, count):
        flow = CheckedFlow(chain("orders", "totals"), gate="both")
        flow.check(totals=reading(rate_per_s=rate))
        assert len(lines()) == count

    @pytest.mark.parametrize(
        "settings", [{}, {"enabled": False, "gate": "both"}], ids=["by default", "disabled"]
    )
    def test_signal_that_gates_no_source_needs_no_advice(self, lines, settings):
        flow = CheckedFlow(chain("orders", "totals"), **settings)
        flow.check(totals=reading(rate_per_s=20_000.0))
        assert lines() == []

    def test_advice_is_repeated_only_when_it_grows(self, lines, flow):
        for rate in (20_000.0, 19_000.0, 3_000.0, 20_000.0):
            flow.check(totals=reading(rate_per_s=rate))
            flow.clock.now_s += 60
        assert len(lines()) == 1
        flow.check(totals=reading(rate_per_s=31_000.0))
        assert [line.rpartition("set ")[2] for _, line in lines()] == [
            "lag_threshold=31000, queue_size_threshold=31000"
        ]

    @pytest.mark.parametrize(
        ("rows", "rounded"), [(0.3, 1), (9.9, 10), (99, 99), (100.5, 110), (20_001, 21_000)]
    )
    def test_advice_is_rounded_up_to_two_digits(self, rows, rounded):
        assert rounded_up(rows) == rounded


def test_skew_is_logged_when_it_begins_and_ends(lines):
    skew = SkewDetectionConfig(check_interval_s=0.5)
    flow = CheckedFlow(chain("orders", "totals"), skew)

    def check(lag):
        progress = {
            0: PartitionProgress(latest=lag, rate_per_s=100.0),
            1: PartitionProgress(latest=9),
        }
        flow.clock.now_s += 60
        flow.check(totals=reading(partitions=progress))

    for lag in (2_000, 2_000, 2_000, 10):
        check(lag)
    (level, begun), (_, ended) = lines()
    assert level == "WARNING"
    assert begun.startswith("Partition skew detected in totals: max_lag=2000, avg_lag=1004.5")
    assert "partition 0: lag 2000, 20 s" in begun
    assert ended == "Partition skew ended in totals"
