"""How many partitions a stage has, who is assigned to them, and what state that is.

The workers, streams and monitors are those of a group in memory. `tests/python/groups/worker` has
the claims of groups alone, on each backend.
"""

import pytest

from batchqueue import ConfigError
from batchqueue.groups import GroupBalancer, GroupMonitor, MemoryStreams, Worker
from batchqueue.pipeline import PartitionState, StageConfig, StateError
from batchqueue.pipeline.runner.controller import FlowController
from batchqueue.pipeline.runner.stage_flow import StagePartitions
from batchqueue.pipeline.runner.states import StateMachine
from core_support.waits import WAIT_S, eventually
from groups_support.backends import committed, lag
from groups_support.workers import Blocker, Collected, owns, running, send, worker_of
from pipeline_support.flow_support import chain

P = PartitionState


def partitions_of(**settings):
    return StagePartitions("revenue", "totals", StageConfig(**settings))


class Stage:
    """A stage whose partitions are those of a stream in memory."""

    def __init__(self, **settings):
        self.partitions = partitions_of(**settings)
        self.streams = MemoryStreams("orders", partitions=self.partitions.count)
        self.partitions.queue_created()
        self.partitions.workers_spawning()
        self.monitor = GroupMonitor("g", self.streams)

    @property
    def state(self):
        return self.partitions.machine.state

    @property
    def rebalances(self):
        """How often it has run again after its first time."""
        assert self.state is P.RUNNING
        return self.partitions.machine.settled.count - 1

    def observe(self):
        metrics = self.monitor.metrics()
        owners = {number: each.owner for number, each in metrics.partitions.items()}
        self.partitions.observe(metrics.members.keys(), owners)
        return self.state

    def runs(self, *workers):
        """Waits until these workers share the partitions, and the stage has noticed."""
        names = {worker.name for worker in workers}

        def is_shared():
            self.observe()
            metrics = self.monitor.metrics()
            owners = {each.owner for each in metrics.partitions.values()}
            return self.state is P.RUNNING and metrics.members.keys() == names == owners

        eventually(is_shared, f"{names} share the partitions")


class TestPartitionCount:
    def test_count_is_auto_when_none(self):
        assert partitions_of(partition_count=None, max_workers=6).count == 6

    def test_count_explicit_wins(self):
        assert partitions_of(partition_count=3, max_workers=6).count == 3
        assert partitions_of(partition_count=16, max_workers=1).count == 16

    def test_count_1_for_max_workers_1(self):
        partitions = partitions_of(max_workers=1)
        assert (partitions.count, partitions.machine.state) == (1, P.SINGLE_PARTITION)

    def test_count_4_for_max_workers_4(self):
        partitions = partitions_of(max_workers=4)
        assert (partitions.count, partitions.machine.state) == (4, P.MULTI_PARTITION)

    def test_count_8_for_max_workers_8_and_2_running(self):
        stage = Stage(max_workers=8, min_workers=2)
        workers = [worker_of(stage.streams, Collected(), name=name) for name in "ab"]
        with running(*workers):
            stage.runs(*workers)
            for worker in workers:
                owns(worker, 4)


class TestTopic:
    def test_topic_is_created_with_the_count(self):
        stage = Stage(max_workers=4)
        with stage.streams.producer() as producer:
            assert producer.partitions == 4
        assert list(stage.monitor.metrics().partitions) == [0, 1, 2, 3]

    def test_memory_backend_has_all_partitions(self, caplog):
        """It does not warn about them, and each partition has its own records."""
        stage, got = Stage(partition_count=3), Collected()
        send(stage.streams, 9)
        with running(worker_of(stage.streams, got)):
            eventually(lambda: got.count == 9, "all are handled")
            assert not any("partition" in message for message in caplog.messages)
        assert {each: len(records) for each, records in got.records.items()} == {0: 3, 1: 3, 2: 3}

    def test_count_is_kept_in_the_stage(self):
        """Also when workers have come and gone, and in the stream: another number is refused."""
        stage = Stage(max_workers=4)
        with running(worker := worker_of(stage.streams, Collected())):
            stage.runs(worker)
        assert stage.partitions.count == 4
        with pytest.raises(ConfigError, match="has 4 partitions, partitions=5 was given"):
            stage.streams.producer(partitions=5)


class TestConsumerGroup:
    def test_group_id_is_job_and_stage(self):
        stage = Stage(max_workers=2)
        assert stage.partitions.group == "revenue_totals"
        worker = Worker(stage.partitions.group, stage.streams, lease_ms=1_000)
        worker.handler(Collected())
        with running(worker), GroupMonitor("revenue_totals", stage.streams) as monitor:
            owns(worker, 2)
            assert list(monitor.metrics().members) == [worker.name]

    def test_name_that_cannot_be_a_group_is_refused(self):
        with pytest.raises(ConfigError, match="the stage's name is 'all totals' with ' '"):
            _ = StagePartitions("revenue", "all totals", StageConfig()).group

    def test_subscribes_with_group_id(self):
        """Workers of one group share the partitions, those of another one have all of them."""
        stage = Stage(max_workers=4)
        workers = [Worker(name, stage.streams, lease_ms=1_000) for name in ("g", "g", "other")]
        for worker in workers:
            worker.handler(Collected())
        with running(*workers):
            stage.runs(*workers[:2])
            for worker, count in zip(workers, (2, 2, 4), strict=True):
                owns(worker, count)

    def test_manual_assignment_without_group_id(self):
        """A worker without a group is refused; a balancer of yours assigns by hand."""
        stage = Stage(max_workers=4)
        with pytest.raises(ConfigError, match="the group's name is empty"):
            Worker("", stage.streams)

        def plan(weights, last_owner, capacity, *, force):
            return {each: "a" if each == 3 or "b" not in capacity else "b" for each in weights}

        settings = {"balancer": GroupBalancer.custom(plan)}
        workers = [worker_of(stage.streams, Collected(), name=each, **settings) for each in "ab"]
        with running(*workers):
            eventually(lambda: set(workers[0].assigned()) == {3}, "a has what it was given")
            eventually(lambda: set(workers[1].assigned()) == {0, 1, 2}, "b has the others")
            stage.runs(*workers)


class TestRebalance:
    def test_join_rebalances(self):
        stage = Stage(max_workers=4)
        with running(first := worker_of(stage.streams, Collected(), name="a")):
            stage.runs(first)
            assert stage.rebalances == 0
            with running(second := worker_of(stage.streams, Collected(), name="b")):
                stage.runs(first, second)
                assert stage.rebalances >= 1
                owns(first, 2)
                owns(second, 2)
                assert not first.assigned().keys() & second.assigned().keys()

    def test_leave_rebalances(self):
        stage = Stage(max_workers=4)
        first, second = (worker_of(stage.streams, Collected(), name=name) for name in "ab")
        with running(first, second):
            stage.runs(first, second)
            before = stage.rebalances
            second.leave()
            stage.runs(first)
            assert stage.rebalances > before
            owns(first, 4)

    def test_crash_rebalances(self):
        stage = Stage(max_workers=2)
        first, second = (worker_of(stage.streams, Collected(), name=name) for name in "ab")
        with running(first, second):
            stage.runs(first, second)
            before = stage.rebalances
            stage.streams.crash("b")
            stage.runs(first)
            assert stage.rebalances > before

    def test_offsets_are_committed_in_a_rebalance(self):
        """What is in hand when a partition is revoked is committed before it moves."""
        stage, got, blocker = Stage(max_workers=2), Collected(), Blocker()

        def handler(batch):
            got(batch)
            blocker(batch)

        def to_the_last(weights, last_owner, capacity, *, force):
            return dict.fromkeys(weights, max(capacity))

        settings = {"balancer": GroupBalancer.custom(to_the_last)}
        first = worker_of(stage.streams, handler, name="a", **settings)
        second = worker_of(stage.streams, got, name="b", **settings)
        with running(first):
            owns(first, 2)
            send(stage.streams, 5, partition=1)
            assert blocker.entered.wait(WAIT_S)
            with running(second):
                owns(second, 1)
                assert committed(stage.streams, 1) == 0
                blocker.release()
                owns(second, 2)
                assert second.assigned()[1].position >= got.records[1][0].offset
                eventually(lambda: lag(stage.streams) == 0, "the rest is handled by the next owner")
        assert got.values == [str(number) for number in range(5)]


class TestStates:
    def test_states_from_start_to_end(self):
        partitions = partitions_of(max_workers=2, min_workers=2)
        seen = [partitions.machine.state]
        for step in (
            partitions.queue_created,
            partitions.workers_spawning,
            lambda: partitions.observe([], {0: None, 1: None}),
            lambda: partitions.observe(["a"], {0: "a", 1: "a"}),
            lambda: partitions.observe(["a", "b"], {0: "a", 1: "b"}),
            partitions.stop,
            partitions.stopped,
        ):
            step()
            seen.append(partitions.machine.state)
        assert seen == [
            P.MULTI_PARTITION,
            P.QUEUE_CREATED,
            *[P.WORKERS_SPAWNING] * 3,
            P.RUNNING,
            P.STOPPING,
            P.STOPPED,
        ]

    @pytest.mark.parametrize(
        ("members", "owners"),
        [
            ("ab", {0: "a", 1: "a"}),
            ("ab", {0: "a", 1: None}),
            ("a", {0: "a", 1: "b"}),
            ("abc", {0: "a", 1: "a"}),
            ("", {0: None, 1: None}),
        ],
        ids=["joined", "revoked", "gone", "two joined", "none left"],
    )
    def test_rebalancing_until_all_members_share_all_partitions(self, members, owners):
        partitions = partitions_of(max_workers=2)
        partitions.queue_created()
        partitions.workers_spawning()
        partitions.observe("a", {0: "a", 1: "a"})
        for _ in range(2):
            partitions.observe(members, owners)
            assert partitions.machine.state is P.REBALANCING
        partitions.observe("ab", {0: "b", 1: "a"})
        assert (partitions.machine.state, partitions.machine.settled.count) == (P.RUNNING, 2)

    def test_rebalance_between_two_observations_counts(self):
        partitions = partitions_of(max_workers=2)
        partitions.queue_created()
        partitions.workers_spawning()
        partitions.observe("a", {0: "a", 1: "a"})
        partitions.observe("ab", {0: "a", 1: "b"})
        assert (partitions.machine.state, partitions.machine.settled.count) == (P.RUNNING, 2)
        partitions.observe("ab", {0: "a", 1: "b"})
        assert partitions.machine.settled.count == 2

    def test_more_members_than_partitions_do_not_rebalance(self):
        partitions = partitions_of(partition_count=2, max_workers=3)
        partitions.queue_created()
        partitions.workers_spawning()
        for _ in range(2):
            partitions.observe("abc", {0: "a", 1: "c"})
            assert (partitions.machine.state, partitions.machine.settled.count) == (P.RUNNING, 1)

    def test_stage_may_be_stopped_before_it_runs(self):
        partitions = partitions_of()
        partitions.stop()
        partitions.stopped()
        with pytest.raises(StateError, match="queue_created does not follow stopped"):
            partitions.queue_created()

    def test_state_is_in_the_metrics_of_the_stage(self):
        controller = FlowController(chain("orders", "totals"))
        machine = controller.partition_states["totals"]
        assert isinstance(machine, StateMachine)
        StagePartitions("revenue", "totals", StageConfig(max_workers=3), machine)
        assert controller.metrics("totals").partition_state.state is P.MULTI_PARTITION
        assert controller.metrics("orders").partition_state.state is P.INITIALIZING
