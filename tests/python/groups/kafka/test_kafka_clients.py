"""Clients of librdkafka that lose their brokers, or end at a bad moment."""

from concurrent.futures import Future
from contextlib import suppress

import pytest
from confluent_kafka import OFFSET_INVALID, KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, ListOffsetsResultInfo

from batchqueue.groups import KafkaStreams, StreamUnavailableError, Worker
from batchqueue.groups.kafka.server import KafkaAdmin, KafkaServer
from core_support.kafka_broker import running_new_broker
from core_support.scripts import run_script
from core_support.waits import HANG_S, eventually
from groups_support.workers import Collected, running, send

pytestmark = pytest.mark.timeout(2 * HANG_S)

FENCED = "broker.heartbeat.interval.ms=1150"
"""Later than the controller waits for a heartbeat, so that it fences the broker each second."""


@pytest.fixture
def broker():
    with running_new_broker() as broker:
        yield broker


def is_left_out(broker):
    """Returns whether the metadata of a broker leave the broker out."""
    client = AdminClient({"bootstrap.servers": broker.address, "log_level": 0})
    with suppress(KafkaException):
        return not client.list_topics(timeout=1).brokers
    return False


PROTOCOLS = {"consumer": {}, "classic": {"session.timeout.ms": 6_000}}


@pytest.mark.matrix(1, name="brokers left out on Kafka")
@pytest.mark.parametrize("partitions", [1, 2])
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_workers_find_the_only_broker_again_that_its_metadata_left_out(
    broker, protocol, partitions
):
    """librdkafka forgets it, as after a pause that was too long for its controller.

    So a worker that gets no replies makes new clients, and so does one that stands by.
    """
    streams = KafkaStreams(
        "orders",
        bootstrap=broker.address,
        partitions=partitions,
        protocol=protocol,
        config=PROTOCOLS[protocol] | {"topic.metadata.refresh.interval.ms": 20},
    )
    got = Collected()
    workers = [Worker("billing", streams, codec="utf8", name=name) for name in "ab"]
    for each in workers:
        each.handler(got)
    with running(*workers):
        send(streams, 10)
        eventually(lambda: got.count == 10, "the workers are at work")
        broker.restart(FENCED)
        for _ in range(5):
            eventually(lambda: is_left_out(broker), "the broker is left out")
        broker.restart()
        broker.wait_for_groups()
        send(streams, 10, prefix="again ")
        eventually(lambda: len(set(got.values)) == 20, "the workers are back", HANG_S)
        owner = next(each for each in workers if each.assigned())
        assert owner.leave(HANG_S)
        send(streams, 10, prefix="by the other ")
        eventually(lambda: len(set(got.values)) == 30, "the other one takes over", HANG_S)


def test_garbage_of_a_client_is_collected_on_any_thread(new_kafka_broker):
    """librdkafka aborts the process if one of its threads ends the client that it belongs to."""
    code, said, errors = run_script(f"""
        import gc
        from confluent_kafka import TopicCollection
        from batchqueue.groups.kafka.server import KafkaAdmin, KafkaServer

        gc.disable()
        admin = KafkaAdmin(KafkaServer({new_kafka_broker.address!r}, "orders", {{}}))
        cycle = [admin]
        cycle.append(cycle)
        [asked] = admin._client.describe_topics(TopicCollection(["orders"])).values()
        is_over = threading.Event()
        # On a thread of the client.
        asked.add_done_callback(lambda _: (gc.collect(), is_over.set()))
        del admin, cycle
        assert is_over.wait(30)
        say("alive")
    """)
    assert (code, said) == (0, ["alive"]), errors


def failed(name):
    asked = Future()
    asked.set_exception(KafkaException(KafkaError(getattr(KafkaError, name))))
    return asked


def test_client_that_gets_no_replies_is_replaced(monkeypatch):
    """A broker that refuses has replied: such a client stays."""
    monkeypatch.setattr("batchqueue.groups.kafka.server._SILENCE_S", 0.0)
    admin = KafkaAdmin(KafkaServer("127.0.0.1:1", "orders", {}))
    first = admin._client

    def ask(asked):
        with pytest.raises(StreamUnavailableError):
            admin._result(asked, 0)
        return admin._client

    assert ask(failed("LEADER_NOT_AVAILABLE")) is first
    second = ask(failed("_TIMED_OUT"))
    assert second is not first
    assert ask(failed("LEADER_NOT_AVAILABLE")) is second
    assert ask(Future()) is not second


def test_invalid_offset_is_an_error():
    """librdkafka reported one as a success when the connection to a leader was silent.

    A group that began there handled the whole partition again.
    """
    admin = KafkaAdmin(KafkaServer("127.0.0.1:1", "orders", {}))
    found = [Future(), Future()]
    for each, offset in zip(found, (0, OFFSET_INVALID), strict=True):
        each.set_result(ListOffsetsResultInfo(offset, -1, -1))
    error = admin.bounds_of({3: tuple(found)}, 0)[3]
    assert isinstance(error, StreamUnavailableError)
    assert "the brokers returned no offset" in str(error)
