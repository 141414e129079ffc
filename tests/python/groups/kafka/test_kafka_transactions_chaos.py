"""Worker processes that are killed and stopped while they send. The topic has each record once."""

import signal
import time

import pytest

from core_support.waits import HANG_S, eventually
from groups_support.chaos import KafkaTransactionsGroup, once_there

pytestmark = [pytest.mark.timeout(2 * HANG_S), pytest.mark.matrix(4, name="Kafka transactions")]


@pytest.fixture
def make_group(tmp_path, new_kafka_broker):
    made = []

    def make(**settings):
        made.append(KafkaTransactionsGroup(new_kafka_broker, tmp_path, **settings))
        return made[-1]

    yield make
    for group in made:
        group.close()


def at_work(group):
    """Starts workers a and b, and waits until both are at work."""
    group.start("a", "b")
    group.send(8_000)
    eventually(once_there(lambda: group.count() > 500), "both are at work")
    return group


@pytest.fixture
def busy(make_group):
    return at_work(make_group(handler_s=0.2))


def test_killed_worker(busy):
    busy.processes.pop("a").kill()
    busy.send(1_000)
    busy.settles()
    busy.check()


@pytest.mark.parametrize("call", ["offsets", "commit"])
def test_worker_that_is_killed_in_a_transaction(busy, call):
    killed = busy.processes.pop("a")
    killed.order(f"{call} {signal.SIGKILL:d}")
    eventually(lambda: killed.process.poll() is not None, "it is in a transaction")
    busy.send(1_000)
    busy.settles()
    busy.check()


@pytest.mark.parametrize("transaction_ms", [3_000, 60_000])
@pytest.mark.parametrize("call", ["offsets", "commit"])
def test_worker_that_is_stopped_in_a_transaction_until_its_session_is_over(
    make_group, call, transaction_ms
):
    """Its transaction has timed out as well; or it is open, and waits for the worker."""
    busy = at_work(make_group(handler_s=0.2, transaction_ms=transaction_ms))
    stopped = busy.processes.pop("a")
    stopped.order(f"{call} {signal.SIGSTOP:d}")
    busy.settles()  # b owns everything
    busy.send(1_000)
    stopped.signal(signal.SIGCONT)
    busy.processes["a"] = stopped
    busy.settles()
    busy.check()


def test_broker_that_is_killed_and_comes_back(busy, new_kafka_broker):
    new_kafka_broker.restart()
    new_kafka_broker.wait_for_groups()
    busy.send(1_000)
    busy.check()


def test_broker_that_hangs_for_longer_than_the_session(busy, new_kafka_broker):
    new_kafka_broker.signal(signal.SIGSTOP)
    time.sleep(8)
    new_kafka_broker.signal(signal.SIGCONT)
    new_kafka_broker.wait_for_groups()
    busy.send(1_000)
    busy.check()


def test_joins_and_leaves_in_a_storm(make_group):
    group = make_group(handler_s=0.05, partitions=8)
    group.start("a")
    for number in range(4):
        group.send(1_000)
        group.start(f"b{number}", f"c{number}")
        group.processes.pop(f"c{number}").kill()
        group.end(f"b{number}")
    group.check()
