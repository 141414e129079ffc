"""Worker processes that a test kills, stops and cuts off, and what their sink holds in the end."""

import json
import os
import pickle
import signal
import sqlite3
import subprocess
import sys
from collections import defaultdict
from contextlib import closing, suppress
from pathlib import Path
from uuid import uuid4

from batchqueue.groups import GroupMonitor, KafkaStreams, RedisStreams, StreamUnavailableError
from batchqueue.outputs import SqliteStore
from core_support.waits import WAIT_S, eventually
from groups_support import chaos_worker
from groups_support.committed import check_commits
from groups_support.metrics import tallied

PROGRAM = Path(chaos_worker.__file__)
LEASE_MS = 1_000


class Process:
    """A worker process."""

    def __init__(self, name, settings, log):
        self.name = name
        self._log = log
        path = os.pathsep.join([str(PROGRAM.parents[1]), os.environ.get("PYTHONPATH", "")])
        with log.open("w") as errors:
            self.process = subprocess.Popen(
                [sys.executable, PROGRAM, json.dumps({**settings, "name": name})],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env={**os.environ, "PYTHONPATH": path},
            )

    def signal(self, number):
        self.process.send_signal(number)

    def order(self, line):
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def end(self):
        """Waits for the end that a signal has begun, and returns its summary."""
        out, _ = self.process.communicate(timeout=2 * WAIT_S)
        assert self.process.returncode == 0, self.errors
        return json.loads(out)

    def kill(self):
        self.process.kill()
        self.process.communicate()

    @property
    def errors(self):
        return self._log.read_text()


class Group:
    """The workers of a group, with a producer and the sink."""

    sink = "fence"

    def __init__(self, url, folder, *, partitions=4, handler_s=0.0, worker_url=None):
        source, workers = (
            RedisStreams(each, "orders", partitions=partitions) for each in (url, worker_url or url)
        )
        self._prepare("g", source, workers, folder, {"lease_ms": LEASE_MS}, partitions, handler_s)

    def _prepare(self, group, source, workers, folder, lease, partitions, handler_s):
        self.source = source
        self.partitions = partitions
        self.database = folder / "sink.db"
        self.sent = 0
        self.processes = {}
        self._folder = folder
        self._settings = {
            "group": group,
            "source": pickle.dumps(workers).hex(),
            "database": str(self.database),
            "lease": lease,
            "handler_s": handler_s,
            "sink": self.sink,
            "topic": f"{source.stream}.out",
        }
        self.make_database()
        self.producer = self.source.producer(codec="utf8", key=lambda value: value)
        self.monitor = GroupMonitor(group, self.source)

    def make_database(self):
        chaos_worker.make_database(self.database)

    def start(self, *names):
        """Starts workers, and waits until they and all others own partitions."""
        self.launch(*names)
        self.settles()

    def launch(self, *names, **settings):
        """Starts workers, with other settings than the group has."""
        for name in names:
            log = self._folder / f"{name}-{len(self.processes)}.log"
            self.processes[name] = Process(name, {**self._settings, **settings}, log)

    def send(self, count):
        self.producer.send_many(str(self.sent + number) for number in range(count))
        self.sent += count

    def owners(self):
        return {number: each.owner for number, each in self.monitor.metrics().partitions.items()}

    def blocked(self):
        """Returns the partitions whose handlers fail, and which wait."""
        partitions = self.monitor.metrics().partitions
        return {number for number, each in partitions.items() if each.is_blocked}

    def settles(self):
        """Waits until the living workers own all partitions, and none is without any."""
        names = set(self.processes)
        most = min(len(names), self.partitions)

        def is_settled():
            owners = set(self.owners().values())
            is_there = self.monitor.metrics().members.keys() == names
            return is_there and owners <= names and len(owners) == most

        eventually(once_there(is_settled), f"{sorted(names)} share the partitions")

    def stored(self):
        with closing(sqlite3.connect(self.database, timeout=60)) as db:
            query = "SELECT partition, offset, value, worker, at FROM stored ORDER BY rowid"
            return db.execute(query).fetchall()

    def count(self):
        return len(self.stored())

    def is_done(self):
        """Waits until everything that was sent is stored and committed."""
        is_stored = once_there(lambda: self.count() >= self.sent)
        eventually(is_stored, "all records are stored")
        is_committed = once_there(lambda: self.monitor.metrics().lag == 0)
        eventually(is_committed, "all records are committed")

    def check(self):
        """Waits until everything is done, and checks what is stored."""
        self.is_done()
        self.check_stored()

    def check_stored(self):
        """Nothing lost, nothing doubled, and the order of each partition."""
        rows = self.stored()
        values = sorted(int(value) for _, _, value, _, _ in rows)
        assert values == list(range(self.sent))
        for number in range(self.partitions):
            offsets = [offset for partition, offset, _, _, _ in rows if partition == number]
            assert offsets == sorted(set(offsets))

    def end(self, name):
        """Lets a worker leave, and returns its summary."""
        process = self.processes.pop(name)
        process.signal(signal.SIGTERM)
        return process.end()

    def end_all(self):
        """Lets all leave together, and returns their summaries."""
        ending, self.processes = self.processes, {}
        for process in ending.values():
            process.signal(signal.SIGTERM)
        return [process.end() for process in ending.values()]

    def close(self):
        """Kills the workers, and prints their logs, which pytest shows after a failure."""
        for process in self.processes.values():
            process.kill()
        for log in sorted(self._folder.glob("*.log")):
            print(f"{log.name}:\n{log.read_text()[-4_000:]}")
        with suppress(Exception):
            self.producer.close()
            self.monitor.close()


def once_there(condition):
    """Returns a condition that is false while the server of the group is away."""

    def is_true():
        try:
            return condition()
        except StreamUnavailableError:
            return False

    return is_true


def set_session(streams, milliseconds, group=None):
    """Sets the session of a group for the new protocol; by default that of the topic's name."""
    from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource

    admin = AdminClient({"bootstrap.servers": streams._server.bootstrap})
    entry = ConfigEntry(
        "consumer.session.timeout.ms",
        str(milliseconds),
        incremental_operation=AlterConfigOpType.SET,
    )
    group = group or streams.stream
    changed = ConfigResource(ConfigResource.Type.GROUP, group, incremental_configs=[entry])
    [asked] = admin.incremental_alter_configs([changed]).values()
    asked.result()


class KafkaGroup(Group):
    """A group on a topic, whose sessions are as the broker has them.

    It is named by its topic: on Kafka, groups of all topics have one set of names.
    """

    transaction_ms = None

    def __init__(
        self,
        broker,
        folder,
        *,
        protocol,
        session_ms=6_000,
        revoke_wait=30,
        partitions=4,
        handler_s=0.0,
    ):
        config = {"transaction.timeout.ms": self.transaction_ms} if self.transaction_ms else {}
        if protocol == "classic":
            config["session.timeout.ms"] = session_ms
        topic = f"orders-{uuid4()}"
        source, self._proxied = (
            KafkaStreams(
                topic,
                bootstrap=address,
                partitions=partitions,
                protocol=protocol,
                revoke_wait=revoke_wait,
                exactly_once=self.transaction_ms is not None,
                config=config,
            )
            for address in (broker.address, broker.proxied_address)
        )
        if protocol != "classic":
            set_session(source, session_ms)
        self._prepare(source.stream, source, source, folder, {}, partitions, handler_s)

    def start_behind_proxy(self, *names):
        """Starts workers whose network is the proxy of the broker, as `start` does."""
        self.launch(*names, source=pickle.dumps(self._proxied).hex())
        self.settles()

    def check(self):
        """The same, and no commit has taken an offset or a token back."""
        super().check()
        count = check_commits(self.source._server.bootstrap, self.source.stream)
        assert count >= self.partitions


class KafkaTransactionsGroup(KafkaGroup):
    """A group whose sink is another topic, which has what its transactions store."""

    sink = "topic"

    def __init__(self, broker, folder, *, transaction_ms=3_000, **settings):
        self.transaction_ms = transaction_ms
        super().__init__(broker, folder, protocol="consumer", **settings)

    def make_database(self):
        self.out = KafkaStreams(
            self._settings["topic"], bootstrap=self.source._server.bootstrap, partitions=2
        )
        self.out.producer().close()

    def stored(self):
        found = []
        for run in read_committed(self.out).values():
            for each in run:
                offset, value = each.value().decode().split()
                found.append((int(each.key()), int(offset), value, None, None))
        return found

    def count(self):
        """Returns how many offsets the topic has, with those of markers."""
        with closing(self.out.open_administration("none")) as administration:
            infos = administration.infos(range(administration.partitions()))
        return sum(info.added for info in infos)


def read_committed(streams):
    """Returns what consumers of committed records see of a topic, by partition."""
    from confluent_kafka import Consumer, KafkaError, TopicPartition

    found = defaultdict(list)
    settings = {
        "bootstrap.servers": streams._server.bootstrap,
        "group.id": "none",
        "isolation.level": "read_committed",
        "enable.partition.eof": True,
        "auto.offset.reset": "earliest",
    }
    with closing(Consumer(settings)) as consumer:
        topic = streams.stream
        rest = set(consumer.list_topics(topic, WAIT_S).topics[topic].partitions)
        consumer.assign([TopicPartition(topic, each, 0) for each in rest])
        while rest:
            message = consumer.poll(WAIT_S)
            assert message is not None, "the partitions end"
            if message.error() is None:
                found[message.partition()].append(message)
            elif message.error().code() == KafkaError._PARTITION_EOF:
                rest.discard(message.partition())
    return found


class MetricsGroup(Group):
    """A group whose sink is a store of metrics."""

    sink = "metrics"

    def make_database(self):
        self.store = SqliteStore(self.database)
        self.store.prepare()

    def stored(self):
        """Returns how often each value was counted."""
        return tallied(self.store)

    def count(self):
        return sum(self.stored().values())

    def check_stored(self):
        """Each record counted once."""
        assert self.stored() == {str(number): 1 for number in range(self.sent)}


class KafkaMetricsGroup(MetricsGroup, KafkaGroup):
    """A group on a topic whose sink is a store of metrics."""
