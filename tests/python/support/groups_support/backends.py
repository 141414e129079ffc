"""Streams of each backend for tests whose claims hold on all of them."""

from contextlib import closing
from itertools import count
from uuid import uuid4

import pytest

from batchqueue.groups import KafkaStreams, RedisStreams
from core_support.proxy import Proxy
from groups_support.chaos import set_session
from groups_support.damaged import DamagedStreams

_numbers = count(1)


class MemoryBackend:
    """Streams in memory, which can crash and stall workers themselves."""

    name = "memory"

    def streams(self, partitions):
        return DamagedStreams("orders", partitions)

    def remove_oldest(self, streams, partition, count):
        """Removes records of a partition, as a server does that bounds the length."""
        del streams.script(partition).state.entries[:count]

    def pushed(self, streams, partition, name):
        """Returns what commands `("RPUSH", batch.key(name), ...)` have stored."""
        key = streams.key(partition, name)
        found = streams.commands.get(partition, ())
        return [value for command, to, *values in found if to == key for value in values]

    def damage(self, streams, partition, name):
        """Gives a key of a partition a value of another type."""
        streams.damaged.add(streams.key(partition, name))

    def repair(self, streams, partition, name):
        """Gives it the value of before."""
        streams.damaged.discard(streams.key(partition, name))

    def close(self):
        pass


class RedisBackend:
    """Streams on a Redis server, whose workers are crashed and stalled by their network."""

    name = "redis"

    def __init__(self, server):
        self._server = server
        self._client = server.client(decode_responses=True)
        self._made = []

    def streams(self, partitions):
        # Each with its own name: a worker that a failed test has left joins no other one.
        stream = f"orders-{next(_numbers)}"
        self._made.append(ProxiedStreams(self._server, stream, partitions))
        return self._made[-1]

    def remove_oldest(self, streams, partition, count):
        key = self._key(streams, partition, "s")
        self._client.xtrim(key, self._client.xlen(key) - count, approximate=False)

    def pushed(self, streams, partition, name):
        return self._client.lrange(self._key(streams, partition, name), 0, -1)

    def damage(self, streams, partition, name):
        key = self._key(streams, partition, name)
        with self._client.pipeline() as pipeline:  # nothing comes between the two
            if self._client.exists(key):
                pipeline.rename(key, key + ":kept")
            pipeline.set(key, "of another type")
            pipeline.execute()

    def repair(self, streams, partition, name):
        key = self._key(streams, partition, name)
        with self._client.pipeline() as pipeline:
            pipeline.delete(key)
            if self._client.exists(key + ":kept"):
                pipeline.rename(key + ":kept", key)
            pipeline.execute()

    def close(self):
        for each in self._made:
            each.close()
        self._client.close()

    @staticmethod
    def _key(streams, partition, name):
        return f"bq:{{{streams.stream}/{partition}}}:{name}"


class ProxiedStreams:
    """A stream on Redis. A worker that was given a name has its own proxy."""

    def __init__(self, server, stream, partitions):
        self._port = server.port
        self._direct = self._on(server.port, stream, partitions)
        self._proxies = {}

    def __getattr__(self, name):
        return getattr(self._direct, name)

    def connect(self, group, *, lease_ms, name):
        if ":" in name:  # made of host and process, so no test cuts it off
            return self._direct.connect(group, lease_ms=lease_ms, name=name)
        if name not in self._proxies:
            self._proxies[name] = Proxy(self._port)
        port, direct = self._proxies[name].port, self._direct
        source = self._on(port, direct.stream, direct.partition_count)
        return source.connect(group, lease_ms=lease_ms, name=name)

    def crash(self, name):
        """Cuts a worker off for ever."""
        self._proxies[name].cut()

    def stall(self, name):
        """Lets all calls of a worker time out until `wake`."""
        self._proxies[name].stall()

    def wake(self, name):
        self._proxies[name].wake()

    def close(self):
        for proxy in self._proxies.values():
            proxy.close()

    @staticmethod
    def _on(port, stream, partitions):
        return RedisStreams(f"redis://127.0.0.1:{port}", stream, partitions=partitions)


class KafkaBackend:
    """Topics on a Kafka broker."""

    name = "kafka"

    def __init__(self, broker, protocol):
        self._broker = broker
        self._protocol = protocol

    def streams(self, partitions):
        return KafkaTopic(self._broker.address, partitions, self._protocol)


class KafkaTopic:
    """A topic whose groups have its name in theirs, because all topics share the names of groups.

    The time of a lease has no effect. Unless a session is to end, it outlasts a busy machine.
    """

    def __init__(self, bootstrap, partitions, protocol, *, topic=None, session_ms=30_000):
        self._session_ms = session_ms
        self._direct = KafkaStreams(
            topic or f"orders-{uuid4()}",
            bootstrap=bootstrap,
            partitions=partitions,
            protocol=protocol,
            config={"session.timeout.ms": session_ms} if protocol == "classic" else {},
        )

    def __getattr__(self, name):
        return getattr(self._direct, name)

    def connect(self, group, *, lease_ms, name):
        del lease_ms
        set_session(self._direct, self._session_ms, self._full(group))
        return self._direct.connect(self._full(group), lease_ms=5_000, name=name)

    def open_administration(self, group):
        return self._direct.open_administration(self._full(group))

    def _full(self, group):
        return f"{self.stream}.{group}"


@pytest.fixture(params=["memory", "redis"])
def backend(request):
    """Each backend in turn; that on Redis with a server that holds nothing else."""
    if request.param == MemoryBackend.name:
        yield MemoryBackend()
        return
    if request.param.startswith(KafkaBackend.name):
        broker = request.getfixturevalue("new_kafka_broker")
        yield KafkaBackend(broker, request.param.removeprefix("kafka-"))
        return
    backend = RedisBackend(request.getfixturevalue("redis_server"))
    yield backend
    backend.close()


_in_turn = pytest.mark.matrix(8, name="groups on Kafka like those on Redis")

on_kafka_too = pytest.mark.parametrize(
    "backend",
    [
        *("memory", "redis"),
        pytest.param("kafka-consumer", marks=_in_turn),
        pytest.param("kafka-classic", marks=_in_turn),
    ],
    indirect=True,
)
"""For tests of what holds on Kafka as well, where the broker assigns."""

on_memory = pytest.mark.parametrize("backend", ["memory"], indirect=True)
"""For tests of what no backend takes part in: on Redis they would only take longer."""


def committed(streams, partition, group="g"):
    """Returns how many records of a partition a group has committed."""
    return _asked(streams, group, lambda asked: asked.infos([partition])[0].done)


def lag(streams, group="g"):
    """Returns how many records of a stream a group has not done."""

    def sum_of_lags(asked):
        return sum(info.lag for info in asked.infos(range(asked.partitions())))

    return _asked(streams, group, sum_of_lags)


def dead_letters(streams, partition, group="g"):
    """Returns the dead letters of a partition, from the oldest on."""
    return _asked(streams, group, lambda asked: asked.dead_letters(partition, 1_000))


def _asked(streams, group, question):
    with closing(streams.open_administration(group)) as administration:
        return question(administration)
