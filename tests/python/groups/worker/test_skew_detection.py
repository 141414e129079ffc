"""Lags and skew as a monitor reads them of each backend. `test_skew.py` has the figures alone."""

import threading

import pytest

from batchqueue import ConfigError
from batchqueue.groups import GroupMonitor, SkewDetectionConfig, Worker
from core_support.waits import WAIT_S, eventually
from groups_support.backends import lag, on_memory
from groups_support.workers import Blocker, Collected, running, send, worker_of


@pytest.fixture
def metrics_with(backend):
    """Returns what a monitor says of a new stream whose partitions hold so many records."""

    def metrics_with(*counts):
        streams = stream_with(backend, *counts)
        with GroupMonitor("g", streams) as monitor:
            return monitor.metrics()

    return metrics_with


def stream_with(backend, *counts):
    streams = backend.streams(len(counts))
    with streams.producer() as producer:
        for partition, count in enumerate(counts):
            producer.send_many([b"x"] * count, partition=partition)
    return streams


def lags_of(metrics):
    return [each.lag for each in metrics.partitions.values()]


class TestLag:
    def test_lag_of_one_partition(self, metrics_with):
        assert metrics_with(7).partitions[0].lag == 7

    def test_lag_of_many(self, metrics_with):
        metrics = metrics_with(6, 0, 7)
        assert (lags_of(metrics), metrics.lag) == ([6, 0, 7], 13)

    def test_missing_commit_counts_as_0(self, metrics_with):
        metrics = metrics_with(5, 1)
        assert [each.done for each in metrics.partitions.values()] == [0, 0]
        assert lags_of(metrics) == [5, 1]

    def test_no_data_is_lag_0(self, metrics_with):
        assert metrics_with(0).partitions[0].lag == 0

    def test_lag_follows_commits(self, backend):
        streams = stream_with(backend, 3, 4)
        with running(worker_of(streams, Collected())), GroupMonitor("g", streams) as monitor:
            eventually(lambda: lags_of(monitor.metrics()) == [0, 0], "all is committed")
            assert monitor.metrics().skew.skew_ratio == 0.0


class TestSkew:
    def test_similar_lags_are_not_skewed(self, metrics_with):
        skew = metrics_with(10, 11, 9, 10).skew
        assert (skew.avg_lag, skew.max_lag, skew.seed_skewed) == (10.0, 11, False)

    def test_three_times_average_is_skew(self, metrics_with):
        skew = metrics_with(6, 4, 30, 0).skew
        assert (skew.skew_ratio, skew.seed_skewed, skew.skewed_partitions) == (3.0, True, (2,))

    def test_all_zero(self, metrics_with):
        skew = metrics_with(0, 0, 0).skew
        assert (skew.avg_lag, skew.std, skew.seed_skewed) == (0.0, 0.0, False)

    def test_only_one_has_data(self, metrics_with):
        skew = metrics_with(0, 0, 8, 0).skew
        assert (skew.skew_ratio, skew.seed_skewed, skew.skewed_partitions) == (4.0, True, (2,))

    def test_exactly_at_threshold_is_not_skewed(self, metrics_with):
        skew = metrics_with(20, 5, 5, 10).skew
        assert (skew.skew_ratio, skew.seed_skewed) == (2.0, False)

    def test_ratio_1_0(self, metrics_with):
        assert metrics_with(5, 5).skew.skew_ratio == 1.0

    def test_ratio_2_5(self, metrics_with):
        assert metrics_with(10, 2, 2, 2).skew.skew_ratio == 2.5

    def test_ratio_0_when_avg_0(self, metrics_with):
        assert metrics_with(0, 0).skew.skew_ratio == 0.0


class TestMetrics:
    def test_get_partition_metrics_structure(self, metrics_with):
        partition = metrics_with(3, 0).partitions[0]
        assert (partition.partition, partition.owner, partition.token) == (0, None, 0)
        assert (partition.done, partition.lag, partition.dead) == (0, 3, 0)
        assert partition.end > 0
        assert (partition.is_blocked, partition.is_hot) == (False, False)

    def test_all_partitions_in_metrics(self, metrics_with):
        metrics = metrics_with(0, 1, 0, 2)
        assert list(metrics.partitions) == [0, 1, 2, 3]
        assert metrics.skew.partition_lags == {0: 0, 1: 1, 2: 0, 3: 2}


class TestStress:
    def test_partition_skew_1000_to_100(self, metrics_with):
        skew = metrics_with(1_000, 100, 100, 100).skew
        assert (skew.max_lag, skew.avg_lag, skew.seed_skewed) == (1_000, 325.0, True)
        assert skew.skewed_partitions == (0,)

    def test_extreme_skew_10000_to_10(self, backend):
        """It is noticed, and a worker gets through it."""
        streams = stream_with(backend, 10_000, *[10] * 15)
        with GroupMonitor("g", streams) as monitor:
            skew = monitor.metrics().skew
            assert (skew.max_lag, skew.min_lag, skew.skewed_partitions) == (10_000, 10, (0,))
            got = Collected()
            with running(worker_of(streams, got)):
                eventually(lambda: got.count == 10_150, "all are handled")
                eventually(lambda: lag(streams) == 0, "all are committed")
            assert got.is_in_order()


class TestWorkerSettings:
    def lagging(self, streams, **skew):
        """A worker whose partition 0 is blocked and far behind."""
        blocker, got = Blocker(), Collected()
        settings = {"skew": SkewDetectionConfig(check_interval_s=0.1, min_seconds=0.1, **skew)}
        worker = Worker("g", streams, codec="utf8", lease_ms=1_000, **settings)
        worker.handler_factory(lambda each: blocker.of() if each.partition == 0 else got)
        send(streams, 30, partition=0)
        return worker, blocker

    @on_memory
    def test_a_worker_takes_a_config(self, backend):
        worker, blocker = self.lagging(backend.streams(2), min_records=20)
        with running(worker):
            eventually(lambda: worker.metrics().hot_partitions == (0,), "the hot partition")
            blocker.release()
            eventually(lambda: worker.metrics().hot_partitions == (), "the calm")

    @on_memory
    @pytest.mark.parametrize("skew", [{"enabled": False, "min_records": 20}, {"min_records": 40}])
    def test_a_partition_within_the_limits_is_not_hot(self, backend, skew):
        worker, blocker = self.lagging(backend.streams(2), **skew)
        with running(worker):
            eventually(lambda: worker.metrics().partitions.keys() == {0, 1}, "both partitions")
            eventually(lambda: worker.metrics().partitions[0].lag == 30, "the lag")
            seen = threading.Event()
            with worker._member.lock:  # two readings later
                worker._member.call_at(worker._member.now_ms() + 2_500, seen.set)
            assert seen.wait(WAIT_S)
            assert worker.metrics().hot_partitions == ()
            blocker.release()

    @on_memory
    def test_another_value_is_refused(self, backend):
        with pytest.raises(ConfigError, match="skew is 'on', a str; give SkewDetectionConfig"):
            Worker("g", backend.streams(2), skew="on")
