"""How many partitions a stream gets, who is assigned to them, and what a rebalance commits."""

import pytest

from batchqueue import ConfigError
from batchqueue.groups import GroupBalancer, GroupMonitor, Worker, group_id, partition_count
from core_support.waits import WAIT_S, eventually
from groups_support.backends import committed, lag, on_kafka_too
from groups_support.workers import Blocker, Collected, owns, running, send, worker_of


class TestPartitionCount:
    def test_count_is_auto_when_none(self):
        assert partition_count(None, max_workers=6) == 6

    def test_count_explicit_wins(self):
        assert partition_count(3, max_workers=6) == 3

    def test_count_1_for_max_workers_1(self):
        assert partition_count(max_workers=1) == 1

    def test_count_4_for_max_workers_4(self):
        assert partition_count(max_workers=4) == 4

    @on_kafka_too
    def test_count_8_for_max_workers_8_and_2_running(self, backend):
        streams, got = backend.streams(partition_count(max_workers=8)), Collected()
        workers = [worker_of(streams, got) for _ in range(2)]
        with running(*workers):
            for worker in workers:
                owns(worker, 4)


@on_kafka_too
class TestTopic:
    def test_topic_is_created_with_the_count(self, backend):
        streams = backend.streams(partition_count(max_workers=4))
        with streams.producer() as producer:
            assert producer.partitions == 4
        with GroupMonitor("g", streams) as monitor:
            assert list(monitor.metrics().partitions) == [0, 1, 2, 3]

    def test_all_backends_have_all_partitions(self, backend):
        """Also that in memory: each of several partitions has its own records and owner."""
        streams, got = backend.streams(3), Collected()
        send(streams, 9)
        with running(worker_of(streams, got)):
            eventually(lambda: got.count == 9, "all are handled")
        assert {each: len(records) for each, records in got.records.items()} == dict.fromkeys(
            range(3), 3
        )

    def test_count_is_kept_in_the_stage(self, backend):
        """A later user of the stream may leave the number out, and cannot give another one."""
        streams = backend.streams(4)
        with streams.producer() as producer:
            assert producer.partitions == 4
        with pytest.raises(ConfigError, match="has 4 partitions, partitions=5 was given"):
            streams.producer(partitions=5)


class TestConsumerGroup:
    @on_kafka_too
    def test_group_id_is_job_and_stage(self, backend):
        streams, group = backend.streams(2), group_id("billing", "store")
        worker = Worker(group, streams, lease_ms=1_000)
        worker.handler(Collected())
        with running(worker), GroupMonitor("billing_store", streams) as monitor:
            owns(worker, 2)
            assert list(monitor.metrics().members) == [worker.name]

    @on_kafka_too
    def test_subscribes_with_group_id(self, backend):
        """Workers of one group share the partitions, those of another one have all of them."""
        streams = backend.streams(4)
        names = ["g", "g", "other"]
        workers = [Worker(name, streams, lease_ms=1_000) for name in names]
        for worker in workers:
            worker.handler(Collected())
        with running(*workers):
            for worker, count in zip(workers, (2, 2, 4), strict=True):
                owns(worker, count)

    def test_manual_assignment_without_group_id(self, backend):
        """A worker without a group is refused; a balancer of yours assigns by hand."""
        streams = backend.streams(4)
        with pytest.raises(ConfigError, match="the group's name is empty"):
            Worker("", streams)

        def plan(weights, last_owner, capacity, *, force):
            return {each: "a" if each == 3 or "b" not in capacity else "b" for each in weights}

        settings = {"balancer": GroupBalancer.custom(plan)}
        first = worker_of(streams, Collected(), name="a", **settings)
        second = worker_of(streams, Collected(), name="b", **settings)
        with running(first, second):
            eventually(lambda: set(first.assigned()) == {3}, "a has what it was given")
            eventually(lambda: set(second.assigned()) == {0, 1, 2}, "b has the others")


class TestRebalance:
    @on_kafka_too
    def test_join_rebalances(self, backend):
        streams = backend.streams(4)
        with running(first := worker_of(streams, Collected(), name="a")):
            owns(first, 4)
            with running(second := worker_of(streams, Collected(), name="b")):
                owns(first, 2)
                owns(second, 2)
                assert not first.assigned().keys() & second.assigned().keys()

    @on_kafka_too
    def test_leave_rebalances(self, backend):
        streams = backend.streams(4)
        first, second = (worker_of(streams, Collected(), name=name) for name in "ab")
        with running(first, second):
            owns(first, 2)
            owns(second, 2)
            second.leave()
            owns(first, 4)

    def test_offsets_are_committed_in_a_rebalance(self, backend):
        """What is in hand when a partition is revoked is committed before it moves."""
        streams, got, blocker = backend.streams(2), Collected(), Blocker()

        def handler(batch):
            got(batch)
            blocker(batch)

        first = worker_of(streams, handler, name="a", balancer=GroupBalancer.custom(to_the_last))
        second = worker_of(streams, got, name="b", balancer=GroupBalancer.custom(to_the_last))
        with running(first):
            owns(first, 2)
            send(streams, 5, partition=1)
            assert blocker.entered.wait(WAIT_S)
            with running(second):
                owns(second, 1)
                assert committed(streams, 1) == 0
                blocker.release()
                owns(second, 2)
                assert second.assigned()[1].position >= got.records[1][0].offset
                eventually(lambda: lag(streams) == 0, "the rest is handled by the next owner")
        assert got.values == [str(number) for number in range(5)]


@on_kafka_too
class TestStress:
    def test_multi_partition_parallel_consumption(self, backend):
        streams, got = backend.streams(4), Collected()
        workers = [worker_of(streams, keeping(got), name=f"w{number}") for number in range(4)]
        with running(*workers):
            for worker in workers:
                owns(worker, 1)
            send(streams, 40)
            eventually(lambda: got.count == 40, "all are handled")
            eventually(lambda: lag(streams) == 0, "and committed")
            assert [worker.metrics().handled for worker in workers] == [10] * 4
        assert got.is_in_order()

    def test_high_concurrency_16_by_16(self, backend):
        """All 16 handlers are inside together, so no partition waits for another one."""
        streams, got, inside = backend.streams(16), Collected(), Blocker()

        def handler(batch):
            keeping(got)(batch)
            inside(batch.partition)

        workers = [worker_of(streams, handler, lease_ms=10_000) for _ in range(16)]
        with running(*workers):
            for worker in workers:
                owns(worker, 1)
            send(streams, 160)
            eventually(lambda: len(inside.inside) == 16, "all partitions are handled together")
            inside.release()
            eventually(lambda: got.count == 160, "all are handled")
            eventually(lambda: lag(streams) == 0, "and committed")
        assert got.is_in_order()


def to_the_last(weights, last_owner, capacity, *, force):
    return dict.fromkeys(weights, max(capacity))


def keeping(got):
    """Returns a handler for several workers: one partition is never in two calls."""

    def handler(batch):
        got.records[batch.partition] += batch.records

    return handler
