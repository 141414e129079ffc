"""Worker processes on a real broker: killed, stopped, left alone. Each record is stored once."""

import signal
import time

import pytest

from core_support.waits import HANG_S, eventually
from groups_support.chaos import KafkaGroup, KafkaMetricsGroup

pytestmark = [pytest.mark.timeout(2 * HANG_S), pytest.mark.matrix(8, name="Kafka processes")]


@pytest.fixture(params=["consumer", "classic"])
def make_group(tmp_path, new_kafka_broker, request):
    made = []

    def make(kind=KafkaGroup, **settings):
        made.append(kind(new_kafka_broker, tmp_path, protocol=request.param, **settings))
        return made[-1]

    yield make
    for group in made:
        group.close()


def test_calm_joins_and_leaves_store_each_record_once(make_group):
    group = make_group(session_ms=30_000)
    group.start("a")
    group.send(2_000)
    group.start("b")
    group.send(2_000)
    left = group.end("a")
    group.settles()
    group.send(2_000)
    group.is_done()
    summaries = [left, *group.end_all()]
    group.check()
    for summary in summaries:
        assert summary["fetched"] == summary["handled"] + summary["dropped"]
        assert (summary["lost"], summary["unfinished"]) == (0, {})
    assert sum(summary["handled"] for summary in summaries) == group.sent


@pytest.mark.parametrize("kind", [KafkaGroup, KafkaMetricsGroup])
def test_killed_worker(make_group, kind):
    group = make_group(kind, handler_s=0.2)
    group.start("a", "b")
    group.send(8_000)
    eventually(lambda: group.count() > 500, "both are at work")
    group.processes.pop("a").kill()
    group.send(1_000)
    group.settles()
    group.check()


def test_stopped_worker_wakes_when_its_session_is_over(make_group):
    group = make_group(handler_s=0.2)
    group.start("a", "b")
    group.send(8_000)
    eventually(lambda: group.count() > 500, "both are at work")
    stopped = group.processes.pop("a")
    stopped.signal(signal.SIGSTOP)
    group.settles()  # b owns everything
    group.send(1_000)
    stopped.signal(signal.SIGCONT)
    group.processes["a"] = stopped
    group.settles()
    group.check()


def test_sigterm_in_a_handler_finishes_it(make_group):
    group = make_group(handler_s=0.5, partitions=2)
    group.start("a")
    group.send(10)
    eventually(lambda: group.count() > 0, "it is inside")
    summary = group.end("a")
    assert summary["unfinished"] == {}
    assert group.count() == summary["handled"]


def test_broker_that_is_killed_and_comes_back(make_group, new_kafka_broker):
    group = make_group(handler_s=0.2)
    group.start("a", "b")
    group.send(8_000)
    eventually(lambda: group.count() > 500, "both are at work")
    new_kafka_broker.restart()
    new_kafka_broker.wait_for_groups()
    group.send(1_000)
    group.check()


def test_broker_that_hangs_for_longer_than_the_session(make_group, new_kafka_broker):
    group = make_group(handler_s=0.2)
    group.start("a", "b")
    group.send(8_000)
    eventually(lambda: group.count() > 500, "both are at work")
    new_kafka_broker.signal(signal.SIGSTOP)
    time.sleep(8)
    new_kafka_broker.signal(signal.SIGCONT)
    new_kafka_broker.wait_for_groups()
    group.send(1_000)
    group.check()


def test_joins_and_leaves_in_a_storm(make_group):
    group = make_group(handler_s=0.05, partitions=8)
    group.start("a")
    for number in range(4):
        group.send(1_000)
        group.start(f"b{number}", f"c{number}")
        group.processes.pop(f"c{number}").kill()
        group.end(f"b{number}")
    group.check()
