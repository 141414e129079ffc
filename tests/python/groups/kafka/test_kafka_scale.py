"""Many workers that join together, two groups on one topic, and a thousand partitions."""

import pytest

from batchqueue.groups import KafkaStreams
from core_support.kafka_broker import STEADY, running_new_broker
from core_support.waits import HANG_S
from groups_support.chaos import set_session
from groups_support.crowd import Crowd

pytestmark = [pytest.mark.timeout(4 * HANG_S), pytest.mark.matrix(24, name="many workers on Kafka")]


class OtherGroup(Crowd):
    """Another group on the topic of a group."""

    def __init__(self, broker, folder, *, protocol, beside, session_ms):
        del protocol  # that of the topic's other group
        name = f"{beside.source.stream}.other"
        set_session(KafkaStreams(name, bootstrap=broker.address), session_ms)
        self._prepare(name, beside.source, beside.source, folder, {}, beside.partitions, 0.0)


@pytest.fixture(params=["consumer", "classic"])
def make_group(tmp_path, steady_kafka_broker, request):
    made = []

    def make(kind=Crowd, **settings):
        folder = tmp_path / str(len(made))
        folder.mkdir()
        made.append(kind(steady_kafka_broker, folder, protocol=request.param, **settings))
        return made[-1]

    yield make
    for group in made:
        group.close()


def test_sixteen_workers_join_together_and_half_of_them_leave(make_group):
    group = make_group(partitions=16, session_ms=30_000)
    group.send(4_000)
    names = [f"w{number}" for number in range(16)]
    group.launch(*names)
    group.send(4_000)
    summaries = group.end_together(names[::2])
    group.settles()
    group.send(4_000)
    group.check()
    summaries += group.end_all()
    for summary in summaries:
        assert (summary["lost"], summary["unfinished"]) == (0, {})
    assert sum(summary["handled"] for summary in summaries) == group.sent


def test_killed_worker_of_one_group_is_not_noticed_by_another(make_group):
    first = make_group(session_ms=30_000, handler_s=0.05)
    second = make_group(OtherGroup, beside=first, session_ms=30_000)
    first.launch("a", "b")
    second.launch("c", "d")
    first.send(2_000)
    second.sent = first.sent
    second.is_done()
    owned = second.owned()
    first.processes.pop("a").kill()
    first.send(2_000)
    second.sent = first.sent
    second.is_done()
    first.settles()
    first.check()
    second.check()
    assert second.owned() == owned


class ManyPartitions(Crowd):
    """A group on a topic with so many partitions that all takes minutes."""

    limit_s = 600

    def __init__(self, broker, folder, **settings):
        super().__init__(broker, folder, **settings)
        self.producer.close()
        patient = {"delivery.timeout.ms": 1_000 * self.limit_s}
        writer = KafkaStreams(self.source.stream, bootstrap=broker.address, config=patient)
        self.producer = writer.producer(codec="utf8", key=lambda value: value)


@pytest.mark.slow
@pytest.mark.matrix(1, name="slow on Kafka")
@pytest.mark.timeout(1_800)
def test_ten_workers_share_a_thousand_partitions(tmp_path):
    with running_new_broker(STEADY, heap="1g") as broker:
        group = ManyPartitions(
            broker, tmp_path, partitions=1_000, protocol="consumer", session_ms=45_000
        )
        try:
            group.launch(*(f"w{number}" for number in range(10)))
            group.send(3_000)
            group.is_done()
            group.processes.pop("w0").kill()
            group.send(3_000)
            group.check()
            for summary in group.end_all():
                assert (summary["lost"], summary["unfinished"]) == (0, {})
        finally:
            group.close()
