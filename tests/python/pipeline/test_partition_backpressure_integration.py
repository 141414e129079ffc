"""Partitions, skew and pressure together, on the workers of a group in memory."""

import pytest

from batchqueue.groups import GroupMonitor, MemoryStreams, SkewDetectionConfig
from batchqueue.pipeline import PartitionState, SkewState, StageConfig
from batchqueue.pipeline.backpressure.partitions import StagePartitions
from batchqueue.pipeline.backpressure.readings import PartitionProgress, lag_of
from core_support.waits import WAIT_S, eventually
from groups_support.workers import Blocker, Collected, owns, running, send, worker_of
from pipeline_support.flow_support import CheckedFlow, chain, reading

LEASE_MS = 20_000
"""Nothing expires here, also on a busy machine: then records would rightly come again."""


class GroupStage:
    """A stage that a group of workers runs, and the controller that reads it."""

    def __init__(self, workers):
        config = StageConfig(max_workers=workers, min_workers=workers)
        skew = SkewDetectionConfig(check_interval_s=0.5)
        self.flow = CheckedFlow(chain("orders", "totals", has_credits=False), skew)
        machine = self.flow.controller.partition_states["totals"]
        self.partitions = StagePartitions("revenue", "totals", config, machine)
        self.streams = MemoryStreams("orders", partitions=self.partitions.count)
        self.partitions.queue_created()
        self.partitions.workers_spawning()
        self.monitor = GroupMonitor("g", self.streams)

    def check(self):
        """Reads the group, and returns the metrics of the stage."""
        group = self.monitor.metrics()
        owners = {number: each.owner for number, each in group.partitions.items()}
        self.partitions.observe(group.members.keys(), owners)
        found = {
            number: PartitionProgress(latest=each.lag, rate_per_s=each.rate, owner=each.owner)
            for number, each in group.partitions.items()
        }
        self.flow.check(totals=reading(lag_of(found.values()), partitions=found))
        return self.flow.controller.metrics("totals")

    @property
    def may_plan(self):
        return self.flow.controller.decision("orders").may_plan


def keeping(got):
    """Returns a handler for several workers: one partition is never in two calls."""

    def handler(batch):
        got.records[batch.partition] += batch.records

    return handler


@pytest.mark.parametrize("workers", [1, 4])
def test_multi_partition_parallel_consumption(workers):
    """No worker is idle, nothing is lost, and nothing comes twice."""
    stage, got = GroupStage(workers), Collected()
    members = [
        worker_of(stage.streams, keeping(got), name=f"w{number}", lease_ms=LEASE_MS)
        for number in range(workers)
    ]
    with running(*members):
        for member in members:
            owns(member, 1)
        send(stage.streams, 10 * workers)
        eventually(lambda: stage.check().lag == 0, "all are handled and committed")
        assert [member.metrics().handled for member in members] == [10] * workers
        metrics = stage.check()
        owners = {each.owner for each in metrics.partitions.values()}
    assert sorted(got.values, key=int) == [str(number) for number in range(10 * workers)]
    assert got.is_in_order()
    assert owners == {member.name for member in members}
    assert metrics.partition_state.state is PartitionState.RUNNING


def test_high_concurrency_16_by_16():
    """All 16 handlers are inside together, so no partition waits for another one."""
    stage, got, inside = GroupStage(16), Collected(), Blocker()

    def handler(batch):
        keeping(got)(batch)
        inside(batch.partition)

    members = [worker_of(stage.streams, handler, lease_ms=LEASE_MS) for _ in range(16)]
    with running(*members):
        for member in members:
            owns(member, 1)
        send(stage.streams, 160)
        eventually(lambda: len(inside.inside) == 16, "all partitions are handled together")
        assert stage.check().partition_state.state is PartitionState.RUNNING
        inside.release()
        eventually(lambda: got.count == 160, "all are handled")
        eventually(lambda: stage.check().lag == 0, "and committed")
    assert got.is_in_order()


def test_extreme_skew_10000_to_10():
    """It pauses the source, is found hot when the worker is hung, and is got through."""
    stage, got, hung = GroupStage(16), Collected(), Blocker()

    def handler(batch):
        got(batch)
        if batch.partition == 3:
            hung(batch)

    with stage.streams.producer() as producer:
        for partition in range(16):
            producer.send_many([b"x"] * (10_000 if partition == 3 else 10), partition=partition)
    metrics = stage.check()
    assert (metrics.max_lag, metrics.min_lag, metrics.lag) == (10_000, 10, 10_150)
    assert (metrics.skew_detected, metrics.skewed_partitions) == (True, (3,))
    assert metrics.hot_partitions == frozenset()  # without a worker nothing is drained: no rate
    assert not stage.may_plan

    with running(worker_of(stage.streams, handler, lease_ms=LEASE_MS)):
        assert hung.entered.wait(WAIT_S)
        eventually(lambda: stage.check().hot_partitions == {3}, "partition 3 is hot")
        assert stage.check().skew_state.state is SkewState.MITIGATING
        assert not stage.may_plan
        hung.release()
        eventually(lambda: stage.check().lag == 0, "all are handled and committed")
        metrics = stage.check()
    assert got.count == 10_150
    assert got.is_in_order()
    assert (metrics.hot_partitions, metrics.skew_state.state) == (frozenset(), SkewState.NO_SKEW)
    assert stage.may_plan
