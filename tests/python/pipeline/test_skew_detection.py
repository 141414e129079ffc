"""Lags of the partitions of a stage, the figures of their skew, and which are hot."""

import math

import pytest

from batchqueue.groups import GroupMonitor, MemoryStreams, SkewDetectionConfig
from batchqueue.pipeline import Lag, PipelineMetric, SkewState
from batchqueue.pipeline.prometheus import samples_of
from batchqueue.pipeline.runner.pressure import PartitionProgress, lag_of
from pipeline_support.flow_support import CheckedFlow, chain, reading


def progress(latest, committed=None, **about):
    return PartitionProgress(latest=latest, committed=committed, **about)


def lags(*values, rate=100.0):
    """Partitions from 0 with these lags, all at the same rate."""
    return {number: progress(lag, rate_per_s=rate) for number, lag in enumerate(values)}


def flow_of(**settings):
    skew = SkewDetectionConfig(check_interval_s=0.5, **settings)
    return CheckedFlow(chain("orders", "totals"), skew)


def metrics_with(*values, checks=1, rate=100.0, **settings):
    """The metrics of a stage after so many checks with these lags."""
    flow = flow_of(**settings)
    for _ in range(checks):
        flow.check(totals=reading(partitions=lags(*values, rate=rate)))
    return flow.controller.metrics("totals")


class TestLag:
    def test_lag_of_one_partition(self):
        assert progress(1_000, 400).lag == 600

    def test_lag_of_many(self):
        partitions = [progress(10, 4), progress(20, 20), progress(7, 0)]
        assert [each.lag for each in partitions] == [6, 0, 7]
        assert lag_of(partitions) == 13
        assert lag_of([]) == 0

    def test_missing_commit_counts_as_0(self):
        assert progress(50, None).lag == 50

    def test_no_data_is_lag_0(self):
        assert progress(0).lag == 0
        assert progress(0).lag_seconds == 0.0

    def test_trimmed_rows_are_not_part_of_the_lag(self):
        assert progress(100, 10, low=60).lag == 40

    def test_negative_lag_is_unknown(self):
        assert progress(10, 11).lag is None
        assert lag_of([progress(5), progress(10, 11)]) is None
        assert progress(10, 11).lag_seconds is None

    def test_lag_of_a_source_keeps_its_seconds(self):
        assert PartitionProgress.of_lag(Lag(600, 3.0)).lag_seconds == 3.0
        assert PartitionProgress.of_lag(Lag(600, None)).lag_seconds is None
        assert PartitionProgress.of_lag(Lag(None, 3.0)).lag is None
        assert PartitionProgress.of_lag(Lag(None, 3.0)).lag_seconds == 3.0
        assert PartitionProgress.of_lag(Lag(600, 0.0)).lag_seconds == 0.0
        assert PartitionProgress.of_lag(Lag(0, 0.0)).lag_seconds == 0.0


class TestReport:
    def test_similar_lags_are_not_skewed(self):
        metrics = metrics_with(100, 110, 90, 100)
        assert (metrics.avg_lag, metrics.max_lag, metrics.min_lag) == (100.0, 110, 90)
        assert metrics.lag_deviation == pytest.approx(50**0.5)
        assert not metrics.skew_detected
        assert metrics.skewed_partitions == ()

    def test_three_times_average_is_skew(self):
        metrics = metrics_with(60, 40, 300, 0)
        assert (metrics.skew_ratio, metrics.skew_detected) == (3.0, True)
        assert metrics.skewed_partitions == (2,)

    def test_all_zero(self):
        metrics = metrics_with(0, 0, 0)
        assert (metrics.avg_lag, metrics.max_lag, metrics.skew_detected) == (0.0, 0, False)

    def test_only_one_has_data(self):
        metrics = metrics_with(0, 0, 8, 0)
        assert (metrics.skew_ratio, metrics.skew_detected) == (4.0, True)
        assert metrics.skewed_partitions == (2,)

    def test_exactly_at_threshold_is_not_skewed(self):
        metrics = metrics_with(200, 50, 50, 100)
        assert (metrics.skew_ratio, metrics.skew_detected) == (2.0, False)

    def test_ratio_1_0(self):
        assert metrics_with(70, 70).skew_ratio == 1.0

    def test_ratio_2_5(self):
        assert metrics_with(250, 50, 50, 50).skew_ratio == 2.5

    def test_ratio_0_when_avg_0(self):
        assert metrics_with(0, 0).skew_ratio == 0.0

    def test_threshold_can_be_set(self):
        assert metrics_with(60, 40, 300, 0, skew_threshold=3.0).skew_detected is False

    def test_unknown_lag_is_left_out_and_not_0(self):
        metrics = metrics_with(300, None, 100)
        assert (metrics.avg_lag, metrics.max_lag, metrics.min_lag) == (200.0, 300, 100)


class TestMetrics:
    def test_get_partition_metrics_structure(self):
        flow = flow_of()
        flow.check(
            totals=reading(partitions={3: progress(1_000, 400, rate_per_s=60.0, owner="etl-1")})
        )
        partition = flow.controller.get_partition_metrics("totals")[3]
        assert (partition.partition, partition.owner, partition.is_hot) == (3, "etl-1", False)
        assert (partition.latest_offset, partition.committed_offset) == (1_000, 400)
        assert (partition.lag, partition.lag_seconds, partition.rate_per_s) == (600, 10.0, 60.0)

    def test_all_partitions_in_metrics(self):
        flow = flow_of()
        flow.check(totals=reading(partitions=lags(3, None, 0)))
        metrics = flow.controller.get_partition_metrics("totals")
        assert {name: each.lag for name, each in metrics.items()} == {0: 3, 1: None, 2: 0}

    def test_partitions_may_have_names(self):
        flow = flow_of()
        named = {"orders-b.parquet": progress(9), "orders-a.parquet": progress(0)}
        flow.check(totals=reading(partitions=named))
        metrics = flow.controller.metrics("totals")
        assert metrics.partitions.keys() == named.keys()
        assert metrics.partition_lags == {"orders-b.parquet": 9, "orders-a.parquet": 0}

    def test_metrics_in_stage_metrics(self):
        flow = flow_of()
        flow.check(totals=reading(partitions=lags(1_000, 100, 100, 100)))
        metrics = flow.controller.metrics("totals")
        assert metrics.partitions == flow.controller.get_partition_metrics("totals")
        assert metrics.partition_lags == {0: 1_000, 1: 100, 2: 100, 3: 100}
        assert (metrics.max_lag, metrics.avg_lag, metrics.skew_detected) == (1_000, 325.0, True)

    def test_stage_without_a_reading_has_no_figures(self):
        metrics = flow_of().controller.metrics("totals")
        assert (metrics.partitions, metrics.partition_lags) == ({}, {})
        assert [metrics.avg_lag, metrics.max_lag, metrics.min_lag] == [None] * 3
        assert metrics.is_missing

    def test_metrics_of_an_earlier_check_do_not_change(self):
        flow = flow_of()
        flow.check(totals=reading(10, partitions=lags(10)))
        earlier = flow.controller.metrics("totals")
        flow.check(totals=reading(20, partitions=lags(20)))
        assert (earlier.lag, earlier.partition_lags) == (10, {0: 10})


class TestDecision:
    def test_two_partitions(self):
        """The ratio of two partitions cannot exceed 2, and one of them is hot nevertheless."""
        metrics = metrics_with(12_000, 10, checks=2)
        assert metrics.skew_ratio < 2
        assert not metrics.skew_detected
        assert metrics.hot_partitions == {0}
        assert metrics.partitions[0].is_hot

    def test_one_record_is_quiet(self, caplog):
        metrics = metrics_with(1, 0, 0, 0, checks=3, rate=0.0)
        assert (metrics.skew_ratio, metrics.skew_detected) == (4.0, True)
        assert metrics.hot_partitions == frozenset()
        assert metrics.skew_state.state is SkewState.NO_SKEW
        assert caplog.messages == []

    def test_partition_is_hot_after_two_readings_of_skew(self):
        """Checks of backpressure in between do not count: they come 20 times as often."""
        flow = CheckedFlow(chain("orders", "totals"), SkewDetectionConfig())
        hot_at = []
        for _ in range(25):
            flow.check(totals=reading(partitions=lags(12_000, 10)))
            if flow.controller.hot_partitions("totals"):
                hot_at.append(flow.clock.now_s)
        assert hot_at[0] == 10.5

    def test_disabled_detection_has_figures_and_no_decision(self):
        metrics = metrics_with(12_000, 10, 10, checks=3, enabled=False)
        assert (metrics.skew_detected, metrics.hot_partitions) == (True, frozenset())
        assert metrics.skew_state.state is SkewState.MONITORING


class TestStates:
    def test_states_follow_the_readings(self):
        flow = flow_of()

        def state(*values):
            flow.check(totals=reading(partitions=lags(*values)))
            return flow.controller.metrics("totals").skew_state.state

        assert state(None, None) is SkewState.MONITORING
        assert state(12_000, 10) is SkewState.NO_SKEW
        assert state(12_000, 10) is SkewState.MITIGATING
        assert state(12_000, 10) is SkewState.MITIGATING
        assert state(None, None) is SkewState.MONITORING
        assert state(12_000, 10) is SkewState.MITIGATING
        assert state(10, 10) is SkewState.NO_SKEW

    def test_state_passes_through_the_alert(self):
        flow = flow_of()
        for _ in range(2):
            flow.check(totals=reading(partitions=lags(12_000, 10)))
        assert [each.value for each in flow.controller._flows["totals"].skew.machine.path] == [
            "no_skew",
            "monitoring",
            "collecting_metrics",
            "calculating_lag",
            "skew_detected",
            "logging_alert",
            "mitigating",
        ]


class TestSamples:
    def test_samples_of_a_stage(self):
        flow = flow_of()
        flow.check(
            totals=reading(6_000, 20, busy_ratio=0.5, partitions=lags(8, None) | {2: progress(5)})
        )
        samples = list(samples_of(flow.controller.metrics("totals")))
        values = {(metric.name, *labels): value for metric, labels, value in samples}
        assert len(values) == len(samples)
        assert values["QUEUE_ROWS",] == 20
        assert values["BUSY_RATIO",] == 0.5
        assert values["SLOW_DOWN_FACTOR",] == 0.0
        assert values["BACKPRESSURE_ACTIVE",] == values["EARLY_WARNING",] == 1
        assert values["LAG_RECORDS", "0"] == 8
        assert values["LAG_SECONDS", "0"] == 0.08
        assert values["LAG_RECORDS", "2"] == 5
        assert values["STATE", "backpressure", "monitoring"] == 1
        assert values["STATE", "backpressure", "normal"] == 0
        assert not {("LAG_RECORDS", "1"), ("LAG_SECONDS", "1"), ("LAG_SECONDS", "2")} & set(values)

    def test_what_is_not_known_has_no_sample(self):
        flow = flow_of()
        flow.check(totals=reading(None, None, partitions={0: progress(5, rate_per_s=0.0)}))
        metrics = flow.controller.metrics("totals")
        assert metrics.partitions[0].lag_seconds == math.inf
        names = {metric.name for metric, _, _ in samples_of(metrics)}
        assert not {"QUEUE_ROWS", "BUSY_RATIO", "LAG_SECONDS"} & names
        assert "LAG_RECORDS" in names

    def test_samples_have_the_labels_of_their_metric(self):
        flow = CheckedFlow(chain("orders", "totals"), gate="both")
        for _ in range(2):
            flow.check(totals=reading(6_000, partitions=lags(8)))
        for stage in ("orders", "totals"):
            for metric, labels, _ in samples_of(flow.controller.metrics(stage)):
                assert len(labels) == len(metric.value.labels), metric

    def test_paused_seconds_by_cause(self):
        flow = CheckedFlow(chain("orders", "totals", "store"), gate="both")
        for lags_now in ({"totals": 6_000}, {"totals": 0, "store": 6_000}, {"store": 6_000}):
            flow.check(**lags_now)
        flow.check(store=0)
        flow.check(store=0)
        metrics = flow.controller.metrics("orders")
        assert metrics.paused_seconds == {"totals": 0.5, "store": 1.0}
        samples = [each for each in samples_of(metrics) if each[0] is PipelineMetric.PAUSED_SECONDS]
        assert [(labels, value) for _, labels, value in samples] == [
            (("totals",), 0.5),
            (("store",), 1.0),
        ]

    def test_source_that_is_slowed_down_is_not_paused(self):
        flow = CheckedFlow(chain("orders", "totals"), gate="both")
        for _ in range(2):
            flow.check(totals=3_900)
        assert flow.controller.decision("orders").factor == 0.7
        assert flow.controller.metrics("orders").paused_seconds == {}

    def test_checks_that_ceased_are_a_pause_of_three_intervals(self):
        flow = CheckedFlow(chain("orders", "totals"), gate="both")
        flow.check(totals=6_000)
        flow.clock.now_s += 100
        flow.check(totals=0)
        assert flow.controller.metrics("orders").paused_seconds == {"totals": 1.5}


class TestNames:
    def test_names_are_distinct_and_fit_their_kind(self):
        names = [metric.value.name for metric in PipelineMetric]
        assert len(set(names)) == len(names)
        for metric in PipelineMetric:
            spec = metric.value
            assert spec.name.startswith("batchqueue_pipeline_")
            assert spec.name.endswith("_total") == (spec.kind == "counter")
            assert spec.unit
            assert spec.what
            assert spec.changes


class TestGroup:
    def test_readings_of_a_group(self):
        """Lags of a stream in memory, which no worker has begun to read."""
        streams = MemoryStreams("orders", partitions=4)
        with streams.producer() as producer:
            for partition, count in enumerate((1_000, 100, 100, 100)):
                producer.send_many([b"x"] * count, partition=partition)
        flow = flow_of()
        with GroupMonitor("revenue_totals", streams) as monitor:
            partitions = monitor.metrics().partitions
        found = {number: progress(each.lag) for number, each in partitions.items()}
        flow.check(totals=reading(lag_of(found.values()), partitions=found))
        metrics = flow.controller.metrics("totals")
        assert (metrics.lag, metrics.max_lag, metrics.avg_lag) == (1_300, 1_000, 325.0)
        assert (metrics.skew_detected, metrics.skewed_partitions) == (True, (0,))
