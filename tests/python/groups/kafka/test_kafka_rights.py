"""What a user may do: each missing right is named, and the rights that the docs list are enough."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress

import pytest

from batchqueue import RetryPolicy
from batchqueue.cli import main
from batchqueue.groups import (
    GroupMonitor,
    KafkaRefusedError,
    KafkaStreams,
    OnFailure,
    StreamUnavailableError,
    Worker,
)
from batchqueue.groups.backend import Redriven
from core_support.kafka_broker import PASSWORD
from core_support.kafka_rights import (
    DEAD,
    GROUP,
    OF_REDRIVE,
    OUT,
    REDRIVES,
    TOPIC,
    TRANSACTIONS,
    Rights,
)
from core_support.waits import WAIT_S, eventually
from groups_support.workers import Collected, owns, running, send

pytestmark = pytest.mark.matrix(3, name="rights on Kafka")

OF_WORKERS = (
    (TOPIC, "READ"),
    (TOPIC, "DESCRIBE"),
    (GROUP, "READ"),
    (GROUP, "DESCRIBE"),
    (GROUP, "DESCRIBE_CONFIGS"),
)
OF_TRANSACTIONS = (
    (OUT, "WRITE"),
    (OUT, "DESCRIBE"),
    (TRANSACTIONS, "WRITE"),
    (TRANSACTIONS, "DESCRIBE"),
)
OF_LETTERS = ((DEAD, "WRITE"), (DEAD, "DESCRIBE"), (DEAD, "CREATE"))
TO_REDRIVE = (
    (TOPIC, "WRITE"),
    (TOPIC, "DESCRIBE"),
    (DEAD, "READ"),
    (DEAD, "WRITE"),
    (DEAD, "DESCRIBE"),
    (OF_REDRIVE, "READ"),
    (REDRIVES, "WRITE"),
)


@pytest.fixture
def rights(new_kafka_broker):
    return Rights(new_kafka_broker)


def worker_of(streams, handler, **settings):
    worker = Worker(streams.stream, streams, codec="utf8", **settings)
    worker.handler(handler)
    return worker


@pytest.mark.parametrize("protocol", ["consumer", "classic"])
def test_rights_of_the_docs_are_enough(rights, protocol):
    def handler(batch):
        if "1" in batch.values:
            raise ValueError("bad cents")

    send(rights.open, 4, partition=0)
    rights.give(*OF_WORKERS, *OF_LETTERS)
    retry = RetryPolicy(attempts=1)
    worker = worker_of(
        rights.streams(protocol), handler, retry=retry, on_failure=OnFailure.DEAD_LETTER
    )
    summary = worker.run(until_idle=0.2)
    assert (summary.handled, summary.dead) == (3, 1)
    with GroupMonitor(rights.name, rights.streams(protocol)) as monitor:
        assert monitor.metrics().lag == 0


@pytest.mark.parametrize("protocol", ["consumer", "classic"])
def test_rights_of_the_docs_are_enough_to_stand_by(rights, protocol):
    """Without partitions, a worker asks the brokers for something else than a commit."""
    send(rights.open, 1)
    rights.give(*OF_WORKERS)
    with closing(rights.streams(protocol).connect(rights.name, lease_ms=5_000, name="b")) as it:
        it._consumer.start()
        it._check_brokers()


@pytest.mark.parametrize("protocol", ["consumer", "classic"])
@pytest.mark.parametrize(
    ("missing", "named"),
    [
        (((TOPIC, "READ"), (TOPIC, "DESCRIBE")), "DESCRIBE on the topic"),
        (((GROUP, "READ"), (GROUP, "DESCRIBE")), "READ on the group"),
        (((GROUP, "READ"),), "READ on the group"),
    ],
    ids=["topic", "group", "group read"],
)
def test_missing_right_ends_the_worker_and_is_named(rights, protocol, missing, named):
    send(rights.open, 1)
    rights.give(*(each for each in OF_WORKERS if each not in missing))
    with pytest.raises(KafkaRefusedError, match=named):
        worker_of(rights.streams(protocol), Collected()).run()


@pytest.mark.parametrize("protocol", ["consumer", "classic"])
def test_partitions_wait_for_the_right_to_read_the_topic(rights, protocol, caplog):
    send(rights.open, 2)
    rights.give(*(each for each in OF_WORKERS if each != (TOPIC, "READ")))
    got = Collected()
    with running(worker_of(rights.streams(protocol), got)):
        eventually(lambda: "READ on the topic" in caplog.text, "the log names the right")
        rights.give((TOPIC, "READ"))
        eventually(lambda: got.count == 2, "they are read")


@pytest.mark.parametrize("protocol", ["consumer", "classic"])
def test_right_that_is_taken_away_ends_the_worker(rights, protocol):
    send(rights.open, 1)
    rights.give(*OF_WORKERS)
    worker = worker_of(rights.streams(protocol), Collected())
    with ThreadPoolExecutor(1) as pool:
        run = pool.submit(worker.run)
        try:
            owns(worker, 2)
            rights.take((GROUP, "READ"), (GROUP, "DESCRIBE"))
            with pytest.raises(KafkaRefusedError, match="READ on the group"):
                run.result(WAIT_S)
        finally:
            with suppress(KafkaRefusedError):
                worker.leave(0)


def test_without_the_settings_of_the_group_auto_takes_the_classic_protocol(rights, caplog):
    send(rights.open, 2)
    rights.give(*(each for each in OF_WORKERS if each != (GROUP, "DESCRIBE_CONFIGS")))
    got = Collected()
    with caplog.at_level("INFO", "batchqueue"):
        worker_of(rights.streams(), got).run(until_idle=0.2)
        eventually(lambda: "DESCRIBE_CONFIGS on the group" in caplog.text, "the log says why")
    assert sorted(got.values) == ["0", "1"]


def test_dead_letter_that_must_not_be_written_waits(rights, caplog):
    def handler(batch):
        raise ValueError("bad cents")

    send(rights.open, 1, partition=0)
    rights.give(*OF_WORKERS)
    retry = RetryPolicy(attempts=1, backoff_ms=1, max_backoff_ms=50)
    worker = worker_of(rights.streams(), handler, retry=retry, on_failure=OnFailure.DEAD_LETTER)
    with running(worker):
        eventually(lambda: "on the topic" in caplog.text, "the log names the right")
        assert worker.metrics().dead == 0
        rights.give(*OF_LETTERS)
        eventually(lambda: worker.metrics().dead == 1, "it is set aside")


@pytest.fixture
def forward(rights, new_kafka_broker):
    """Returns a handler that sends records to another topic."""
    out = f"{rights.name}.out"
    KafkaStreams(out, bootstrap=new_kafka_broker.address, partitions=1).producer().close()
    send(rights.open, 3, partition=0)

    def handler(batch):
        for value in batch.values:
            batch.send(out, value)

    return handler


def test_rights_of_transactions_are_enough(rights, forward):
    rights.give(*OF_WORKERS, *OF_TRANSACTIONS)
    worker_of(rights.streams(exactly_once=True), forward).run(until_idle=0.5)
    with GroupMonitor(rights.name, rights.streams()) as monitor:
        assert monitor.metrics().lag == 0


def test_missing_right_on_transactions_stops_the_worker(rights, forward):
    rights.give(*OF_WORKERS, *OF_TRANSACTIONS[:2])
    with pytest.raises(KafkaRefusedError, match="WRITE on the transactional id"):
        worker_of(rights.streams(exactly_once=True), forward).run(max_seconds=WAIT_S)


def test_records_that_must_not_be_written_wait(rights, forward, caplog):
    rights.give(*OF_WORKERS, *OF_TRANSACTIONS[1:])
    retry = RetryPolicy(attempts=1, backoff_ms=1, max_backoff_ms=50)
    worker = worker_of(rights.streams(exactly_once=True), forward, retry=retry)
    with running(worker), GroupMonitor(rights.name, rights.open) as monitor:
        eventually(lambda: "WRITE on the topic" in caplog.text, "the log names the right")
        assert monitor.metrics().lag == 3
        rights.give(*OF_TRANSACTIONS[:1])
        eventually(lambda: monitor.metrics().lag == 0, "they are stored")


def test_producer_names_its_right(rights):
    send(rights.open, 1)
    rights.give((TOPIC, "DESCRIBE"))
    with (
        rights.streams().producer(codec="utf8") as producer,
        pytest.raises(KafkaRefusedError, match="WRITE on the topic"),
    ):
        producer.send("x")
    rights.give((TOPIC, "WRITE"))
    with rights.streams().producer(codec="utf8") as producer:
        producer.send("x", partition=0)


def test_monitor_only_describes(rights):
    send(rights.open, 3, partition=0)
    rights.give((TOPIC, "DESCRIBE"), (GROUP, "DESCRIBE"))
    with GroupMonitor(rights.name, rights.streams()) as monitor:
        metrics = monitor.metrics()
        assert (metrics.lag, metrics.members) == (3, {})
        with pytest.raises(KafkaRefusedError, match="DELETE on the group"):
            monitor.delete()


def test_commands_log_in_with_the_settings_of_a_file(rights, tmp_path, capsys, monkeypatch):
    send(rights.open, 3, partition=0)
    rights.give((TOPIC, "DESCRIBE"), (GROUP, "DESCRIBE"))
    config = rights.streams()._server.config
    path = tmp_path / "client.properties"
    where = ("--source", f"kafka://{rights.streams()._server.bootstrap}", "--stream", rights.name)

    def lag(password):
        settings = {**config, "sasl.password": password}
        path.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        command = ["groups", "lag", *where, "--group", rights.name, "--command-config", str(path)]
        return main(command), *capsys.readouterr()

    code, out, _ = lag(PASSWORD)
    assert (code, out.split()[-1]) == (0, "3")
    monkeypatch.setattr("batchqueue.groups.kafka.streams.CALL_S", 2.0)
    monkeypatch.setattr("batchqueue.groups.kafka.server.CALL_S", 2.0)
    code, out, err = lag("looking-glass")
    assert (code, "Authentication failed" in err) == (1, True)
    assert "looking-glass" not in out + err


@pytest.fixture
def letter(rights):
    """A dead letter of the group, while the user has the rights of redrives."""

    def handler(batch):
        raise ValueError("bad cents")

    send(rights.open, 1, partition=0)
    retry = RetryPolicy(attempts=1)
    worker = worker_of(rights.open, handler, retry=retry, on_failure=OnFailure.DEAD_LETTER)
    assert worker.run(until_idle=0.2).dead == 1
    rights.give(*TO_REDRIVE)


def redriven(rights):
    found = Redriven()
    with closing(rights.streams().open_administration(rights.name)) as administration:
        administration.redrive(None, None, found)
    return found


def test_rights_of_the_docs_are_enough_to_redrive(rights, letter):
    assert redriven(rights) == Redriven(1)


@pytest.mark.parametrize(
    ("missing", "named"),
    [
        ((TOPIC, "WRITE"), r"WRITE on the topic$"),
        ((DEAD, "READ"), r"dead.*READ on the topic$"),
        ((DEAD, "WRITE"), r"WRITE on the topic$"),
        ((OF_REDRIVE, "READ"), r"READ on the group orders-.*\.redrive$"),
        ((REDRIVES, "WRITE"), r"WRITE on the transactional id orders-.*\.redrive$"),
    ],
    ids=["topic", "read dead", "write dead", "group", "transactional id"],
)
def test_missing_right_ends_a_redrive_and_is_named(rights, letter, missing, named):
    rights.take(missing)
    with pytest.raises(KafkaRefusedError, match=named):
        redriven(rights)
    rights.give(missing)
    assert redriven(rights) == Redriven(1)


def test_topic_that_must_not_be_created_is_named(rights):
    rights.give((TOPIC, "DESCRIBE"))
    with pytest.raises(KafkaRefusedError, match="CREATE on the topic"):
        rights.streams(partitions=2).producer()


def test_wrong_password_is_named_and_not_logged(rights, monkeypatch, caplog):
    monkeypatch.setattr("batchqueue.groups.kafka.server.CALL_S", 2.0)
    with pytest.raises(StreamUnavailableError, match="Authentication failed") as raised:
        worker_of(rights.streams(password="looking-glass"), Collected()).run()
    assert "looking-glass" not in f"{raised.value}{caplog.text}"


def test_producer_without_the_right_to_write_is_refused_and_writes_once_it_has_it(rights):
    send(rights.open, 1)
    rights.give((TOPIC, "DESCRIBE"))
    with rights.streams().producer(codec="utf8") as producer:
        for _ in range(2):
            with pytest.raises(KafkaRefusedError, match="give this user WRITE on the topic"):
                producer.send("a")
        rights.give((TOPIC, "WRITE"))

        def is_sent():
            with suppress(KafkaRefusedError):  # of the client, which has not asked again yet
                return producer.send("a") is not None

        eventually(is_sent, "it is sent")
