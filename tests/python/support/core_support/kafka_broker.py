"""Kafka brokers on loopback, of the jars that `scripts/kafka.py` has brought."""

import os
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyspark
import pytest

from batchqueue.spark import find_java_home
from core_support.proxy import Proxy

ROOT = Path(__file__).parents[4]
_TARGET = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
JARS, NEW_JARS = _TARGET / "kafka" / "jars", _TARGET / "kafka-4" / "jars"
_OF_SPARK = (
    "org.apache.spark_*",
    "org.apache.kafka_kafka-clients-*",
    "org.apache.commons_commons-pool2-*",
)
_OF_BROKER = ("scala-library-*", "slf4j-api-*", "log4j-*", "snakeyaml-*")
_PATIENCE_S = 120

_PROPERTIES = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller},\
SECURED://127.0.0.1:{secured},PROXIED://127.0.0.1:{behind}
advertised.listeners=PLAINTEXT://127.0.0.1:{port},SECURED://127.0.0.1:{secured},\
PROXIED://127.0.0.1:{proxy}
controller.listener.names=CONTROLLER
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SECURED:SASL_PLAINTEXT,\
PROXIED:PLAINTEXT
listener.name.secured.sasl.enabled.mechanisms=PLAIN
listener.name.secured.plain.sasl.jaas.config=\
org.apache.kafka.common.security.plain.PlainLoginModule required user_{user}="{password}";
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
super.users=User:ANONYMOUS
log.dirs={folder}/log
num.partitions=3
offsets.topic.replication.factor=1
"""

GROUPS = """\
offsets.topic.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=1
transaction.abort.timed.out.transaction.cleanup.interval.ms=200
auto.create.topics.enable=false
group.initial.rebalance.delay.ms=0
group.min.session.timeout.ms=1000
group.consumer.min.session.timeout.ms=1000
group.consumer.session.timeout.ms={session_ms}
group.consumer.min.heartbeat.interval.ms=100
group.consumer.heartbeat.interval.ms=500
broker.session.timeout.ms=1000
broker.heartbeat.interval.ms=200
"""
"""Short sessions, and transactions that end soon after their timeout; and a broker that was killed
starts again without waiting for its own session."""

STEADY = "broker.session.timeout.ms=60000\n"
"""A broker that does not get enough of the cores to send its heartbeats remains the leader."""


USER, PASSWORD = "alice", "wonderland"
"""The user of the secured listener, who has no rights. Users of the other one have all."""


class KafkaBroker:
    """A broker of one node, which keeps its data in a folder.

    Attributes:
        proxy: The network of clients that connect to `proxied_address`.
    """

    def __init__(
        self, folder: Path, jars_of: Path = JARS, properties: str = "", heap: str = "256m"
    ) -> None:
        self.port, controller, self._secured, behind = _free_ports(4)
        self.proxy = Proxy(behind)
        self._folder = folder
        self._properties = folder / "server.properties"
        self._text = (
            _PROPERTIES.format(
                port=self.port,
                controller=controller,
                secured=self._secured,
                behind=behind,
                proxy=self.proxy.port,
                user=USER,
                password=PASSWORD,
                folder=folder,
            )
            + properties
        )
        self._properties.write_text(self._text)
        provided = Path(pyspark.__file__).parent / "jars"
        jars = [
            *jars_of.glob("*.jar"),
            *(jar for name in _OF_BROKER for jar in provided.glob(name)),
        ]
        self._java = [
            str(find_java_home() / "bin" / "java"),
            *(f"-Xmx{heap}", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"),
            *("-cp", ":".join(map(str, jars))),
        ]

    @property
    def address(self) -> str:
        """Host and port, for `kafka.bootstrap.servers`."""
        return f"127.0.0.1:{self.port}"

    @property
    def secured_address(self) -> str:
        """Host and port for users who log in with SASL."""
        return f"127.0.0.1:{self._secured}"

    @property
    def proxied_address(self) -> str:
        """Host and port for clients whose network is `proxy`."""
        return f"127.0.0.1:{self.proxy.port}"

    @property
    def submit_arguments(self) -> str:
        """Value of `PYSPARK_SUBMIT_ARGS` for a Spark that reads Kafka."""
        jars = ",".join(str(jar) for name in _OF_SPARK for jar in sorted(JARS.glob(name)))
        return f"--jars {jars} pyspark-shell"

    def start(self) -> None:
        """Format its folder, start it, and wait until it takes connections."""
        storage = ["kafka.tools.StorageTool", "format", "-t", "MkU3OEVBNTcwNTJENDM2Qk", "-c"]
        log = self._folder / "broker.log"
        with log.open("w") as output:
            subprocess.run(
                [*self._java, *storage, self._properties], check=True, stdout=output, stderr=output
            )
        self._run()

    def wait_for_groups(self) -> None:
        """Wait until it has made the topic of the groups' offsets."""
        from confluent_kafka import Consumer, KafkaException, TopicPartition

        settings = {"bootstrap.servers": self.address, "group.id": "none", "log_level": 2}
        consumer = Consumer(settings)
        deadline = time.monotonic() + _PATIENCE_S
        while time.monotonic() < deadline:
            try:
                consumer.committed([TopicPartition("none", 0)], 5)
                consumer.close()
                return
            except KafkaException:  # it is still loading
                time.sleep(0.1)
        raise AssertionError("the broker has no coordinator of groups")

    def signal(self, number: int) -> None:
        """Send it a signal."""
        self._process.send_signal(number)

    def restart(self, properties: str = "") -> None:
        """Kill it, and start it again with its data; the properties hold until the next restart."""
        self.stop()
        self._properties.write_text(self._text + properties)
        self._run()

    def _run(self) -> None:
        log = self._folder / "broker.log"
        with log.open("a") as output:
            self._process = subprocess.Popen(
                [*self._java, "kafka.Kafka", self._properties], stdout=output, stderr=output
            )
        deadline = time.monotonic() + _PATIENCE_S
        while self._process.poll() is None and time.monotonic() < deadline:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            time.sleep(0.1)
        self.stop()
        raise AssertionError(f"the broker did not start:\n{log.read_text()[-4_000:]}")

    def stop(self) -> None:
        """End it."""
        self._process.kill()
        self._process.wait()


@pytest.fixture(scope="session")
def kafka_broker() -> Iterator[KafkaBroker]:
    _need(JARS)
    with tempfile.TemporaryDirectory(prefix="batchqueue-kafka-") as folder:
        broker = KafkaBroker(Path(folder))
        broker.start()
        yield broker
        broker.stop()
        broker.proxy.close()


@pytest.fixture(scope="session")
def new_kafka_broker() -> Iterator[KafkaBroker]:
    """A broker of a version whose new protocol for groups is complete, with short sessions."""
    with running_new_broker() as broker:
        yield broker


@pytest.fixture(scope="session")
def steady_kafka_broker() -> Iterator[KafkaBroker]:
    """The same, for tests that use all cores: it is not given up if it is late."""
    with running_new_broker(STEADY) as broker:
        yield broker


@contextmanager
def running_new_broker(properties: str = "", **settings: Any) -> Iterator[KafkaBroker]:
    """Runs a broker with further properties."""
    _need(NEW_JARS)
    with tempfile.TemporaryDirectory(prefix="batchqueue-kafka-") as folder:
        groups = GROUPS.format(session_ms=6_000)
        broker = KafkaBroker(Path(folder), NEW_JARS, groups + properties, **settings)
        broker.start()
        try:
            broker.wait_for_groups()
            yield broker
        finally:
            broker.stop()
            broker.proxy.close()


def _need(jars: Path) -> None:
    if not any(jars.glob("org.apache.kafka_kafka_*.jar")):
        missing = "needs the Kafka broker that `make kafka` brings"
        (pytest.fail if os.environ.get("CI") else pytest.skip)(missing)


def _free_ports(number: int) -> list[int]:
    sockets = [socket.socket() for _ in range(number)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports
