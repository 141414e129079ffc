"""Partitions, skew and pressure together: on a group in memory, and on a pipeline that runs."""

import pytest

from batchqueue.groups import GroupMonitor, MemoryStreams, SkewDetectionConfig
from batchqueue.pipeline import (
    BackpressureConfig,
    BackpressureState,
    PartitionState,
    Pipeline,
    SkewState,
    StageConfig,
)
from batchqueue.pipeline.runner.pressure import GateDecision, PartitionProgress, lag_of
from batchqueue.pipeline.runner.stage_flow import StagePartitions
from core_support.waits import WAIT_S, eventually
from groups_support.workers import Blocker, Collected, owns, running, send, worker_of
from pipeline_support.flow_support import CheckedFlow, chain, reading
from pipeline_support.numbers import Numbers
from pipeline_support.sinks import Gated

LEASE_MS = 20_000
"""Nothing expires here, also on a busy machine: then records would rightly come again."""


class GroupStage:
    """A stage that a group of workers runs, and the controller that reads it."""

    def __init__(self, workers):
        config = StageConfig(max_workers=workers, min_workers=workers)
        skew = SkewDetectionConfig(check_interval_s=0.5)
        self.flow = CheckedFlow(chain("orders", "totals"), skew, gate="both")
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


def test_partition_skew_1000_to_100(caplog):
    """The report sees it immediately; the decision, and its warning, when the worker is stuck."""
    stage, got, hung = GroupStage(4), Collected(), Blocker()

    def handler(batch):
        got(batch)
        if batch.partition == 0:
            hung(batch)

    with stage.streams.producer() as producer:
        for partition in range(4):
            producer.send_many([b"x"] * (100 if partition else 1_000), partition=partition)
    metrics = stage.check()
    assert (metrics.max_lag, metrics.avg_lag, metrics.min_lag) == (1_000, 325, 100)
    assert metrics.skew_ratio == pytest.approx(1_000 / 325)
    assert (metrics.skew_detected, metrics.skewed_partitions) == (True, (0,))
    with running(worker_of(stage.streams, handler, lease_ms=LEASE_MS)):
        assert hung.entered.wait(WAIT_S)
        eventually(lambda: stage.check().hot_partitions == {0}, "partition 0 is hot")
        hung.release()
        eventually(lambda: stage.check().lag == 0, "all are handled and committed")
    assert got.count == 1_300
    warnings = [each.message for each in caplog.records if "skew" in each.message.lower()]
    assert len(warnings) == 1
    assert "max_lag=1000" in warnings[0]


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


def same(chunk):
    return chunk


class Held:
    """A pipeline of three, whose sink is held: source, process, sink."""

    def __init__(self, gate, rows=30_000):
        config = BackpressureConfig(check_interval_s=0.05, gate=gate)
        self.rows, self.sink = rows, Gated()
        self.flow = Pipeline("held", backpressure=config)
        source = self.flow.source(Numbers(rows), name="source")
        source.map(same).to(self.sink, name="sink")

    @staticmethod
    def is_paused(run):
        return run.stats().sources["source"].paused_reasons == ("backpressure",)


@pytest.mark.parametrize("gate", ["signal", "both"])
def test_backpressure_end_to_end(gate):
    """A held sink pauses the source by the signal; when it continues, so does the source."""
    held = Held(gate)
    with held.flow.start() as run:
        assert held.sink.entered.wait(WAIT_S)
        eventually(lambda: held.is_paused(run), "the source is paused")
        for stage in ("source", "map(same)", "sink"):
            signal = run.signal(stage)
            assert (signal.slow_down_factor, signal.cause) == (0.0, "sink")
            assert signal.reason.startswith("queue ")
        assert run.check_backpressure_before_produce("source")
        assert run.stats().stages["map(same)"].slow_down_factor == 0.0
        assert run.metrics("sink").backpressure_state.state is BackpressureState.SOURCE_PAUSED
        held.sink.gate.set()
        eventually(lambda: run.stats().sources["source"].state != "paused", "it continues")
        run.wait()
        assert run.stats().sources["source"].paused_seconds_total["backpressure"] > 0
    assert held.sink.numbers == list(range(held.rows))


def test_gate_credit_only_informs_of_a_source_that_its_queue_holds():
    held = Held("credit")
    with held.flow.start() as run:
        assert held.sink.entered.wait(WAIT_S)
        eventually(lambda: run.signal("source") is not None, "the signal")
        eventually(lambda: run.stats().sources["source"].held_up_by == "sink", "a full queue")
        assert not held.is_paused(run)
        assert run.check_backpressure_before_produce("source")
        held.sink.gate.set()
        run.wait()
    assert held.sink.numbers == list(range(held.rows))


def test_a_source_plans_for_the_share_of_the_room_that_a_signal_leaves():
    limits, sink = [], Gated()

    class Limited(Numbers):
        def plan(self, start, limit):
            limits.append(limit.rows)
            return super().plan(start, limit)

    rarely = BackpressureConfig(check_interval_s=1_000)
    flow = Pipeline("limited", backpressure=rarely)
    flow.source(Limited(20_000), name="source").to(sink)
    with flow.start() as run:
        assert sink.entered.wait(WAIT_S)
        eventually(lambda: run.stats().sources["source"].held_up_by, "a full queue")
        run.sources["source"].decision = GateDecision(factor=0.1)
        planned = len(limits)
        sink.gate.set()
        run.wait()
    assert max(limits[:planned]) > 200
    assert 1 <= max(limits[planned:]) <= 200


def test_a_pause_by_hand_outlasts_the_signal():
    held = Held("signal")
    with held.flow.start() as run:
        eventually(lambda: held.is_paused(run), "the source is paused")
        run.pause("source", "maintenance")
        held.sink.gate.set()
        reasons = ("maintenance",)
        eventually(lambda: run.stats().sources["source"].paused_reasons == reasons, "released")
        assert run.wait(0) is None
        run.resume("source", "maintenance")
        run.wait()
    assert held.sink.numbers == list(range(held.rows))


def test_rapid_backpressure_toggling():
    """Paused and resumed by the signal many times, beside pauses by hand; nothing is skipped."""
    held = Held("signal", rows=100_000)
    with held.flow.start() as run:
        for _ in range(10):
            eventually(lambda: held.is_paused(run) or run.wait(0), "the source is paused")
            run.pause("source", "by hand")
            held.sink.gate.set()
            run.resume("source", "by hand")
            eventually(lambda: not held.is_paused(run), "the source continues")
            held.sink.gate.clear()
        held.sink.gate.set()
        run.wait()
    assert held.sink.numbers == list(range(held.rows))
