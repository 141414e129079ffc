"""`RedisStreams`: a stream on Redis, and its groups."""

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NoReturn

from batchqueue.base.checks import is_whole
from batchqueue.base.words import a_type
from batchqueue.exceptions import ConfigError
from batchqueue.groups.backend import GroupInfo, NewRecord, PartitionInfo, Redriven, redrive
from batchqueue.groups.errors import StreamUnavailableError
from batchqueue.groups.messages import Entry, Event, Refusal
from batchqueue.groups.producer import Key, Producer
from batchqueue.groups.record import check_name, parse_id, partition_count
from batchqueue.groups.redis.client import LIBRARY, Link, ScriptCall, check_server
from batchqueue.groups.redis.connection import RedisConnection, fixed_partitions
from batchqueue.groups.redis.node import LONGEST_WAIT_MS, Server, replicas_of
from batchqueue.groups.redis.scripts import (
    PartitionCalls,
    PartitionKeys,
    RedisGroup,
    fields_of,
    info_of,
    letter_of,
    readers_key,
    refused,
    stream_key,
)

if TYPE_CHECKING:
    from redis import Redis, RedisCluster


@dataclass(init=False, repr=False, unsafe_hash=True)
class RedisStreams:
    """A stream on Redis 6.2 or later, with one Redis stream per partition. Needs the extra `redis`.

    Redis is a single server, with or without replicas, or a Redis Cluster.

    It is a value: it holds no connection, and cannot be changed. It can be pickled, including the
    URL and the options, and thus any password in them. To keep secrets out of pickles, pass a
    function that reads them where it is called.

    A user of the server needs the keys `bq:*`, and the commands `TIME`, `INFO`, `EVAL`, `EVALSHA`,
    `EXISTS`, `DEL`, `GET`, `SET`, `HGET`, `HSET`, `HSETNX`, `HMGET`, `HGETALL`, `HDEL`, `HINCRBY`,
    `SADD`, `SREM`, `SMEMBERS`, `ZADD`, `ZREM`, `ZCARD`, `ZSCORE`, `ZRANGE`, `ZRANGEBYSCORE`,
    `XADD`, `XDEL`, `XLEN`, `XRANGE`, `XREVRANGE`, `XREAD`, `XTRIM` and `XINFO`, on a cluster
    `CLUSTER` and `ASKING`, with `wait_replicas` `WAIT`, besides those of `Batch.commit_with`.

    Set `maxmemory-policy noeviction` and `appendonly yes` on the server, or it may lose offsets.

    Attributes:
        stream: The name of the stream.
        partition_count: The number of partitions of a new stream, which an existing one must match;
            None for any.
        wait_replicas: The number of replicas that have to confirm writes.

    Example:
        >>> from batchqueue.groups import RedisStreams
        >>> RedisStreams("redis://:secret@localhost", "orders", partitions=64)
        RedisStreams(localhost:6379/0, stream='orders', partitions=64)
    """

    _server: Server
    stream: str
    partition_count: int | None
    wait_replicas: int

    def __init__(
        self,
        url: "str | Callable[[], Redis | RedisCluster]",
        stream: str,
        *,
        partitions: int | None = None,
        wait_replicas: int = 0,
        **redis_options: Any,
    ) -> None:
        """Describe the stream, without connecting.

        Args:
            url: `redis://`, `rediss://` or `unix://`, as redis-py takes it. Or a function without
                arguments that returns a `redis.Redis`, for instance of a sentinel, or a
                `redis.RedisCluster`; it must be picklable if the stream is to be sent to
                other processes. For a cluster, any of its nodes: it names the others.
            stream: The name.
            partitions: The number of partitions of a new stream, 1 to 16,384, which an existing one
                must match. Default: None, 1 for a new stream, and any number for an existing one.
            wait_replicas: The number of replicas that have to confirm commits, dead letters and
                records of producers. The server waits for them for a tenth of the lease, at most
                500 ms; for producers 500 ms. Writes that too few replicas have confirmed are kept,
                and logged once a minute. Default: 0.
            **redis_options: Additional arguments of `redis.Redis`, for instance `username` or
                `ssl_ca_certs`; not with a function. Timeouts and retries follow from the lease.

        Raises:
            ConfigError: An argument is invalid.
        """
        if not (isinstance(url, str) or callable(url)):
            raise ConfigError(
                f"RedisStreams: url is {a_type(url)}; give a URL, or a function that "
                "returns a redis.Redis"
            )
        if callable(url) and redis_options:
            names = ", ".join(redis_options)
            raise ConfigError(f"RedisStreams: {names} with a function; let it pass them on")
        if not is_whole(wait_replicas, 0):
            raise ConfigError(
                f"RedisStreams: wait_replicas is {wait_replicas!r}; give an int from 0 on"
            )
        count = None if partitions is None else partition_count(partitions)
        setting = object.__setattr__
        setting(self, "_server", Server(url, dict(redis_options)))
        setting(self, "stream", check_name("the stream", stream))
        setting(self, "partition_count", count)
        setting(self, "wait_replicas", wait_replicas)

    def producer(
        self,
        *,
        codec: Any = "bytes",
        key: Key | None = None,
        max_len: int | None = None,
        partitions: int | None = None,
    ) -> Producer:
        """Return a producer of the stream; see `Producer`.

        Raises:
            StreamUnavailableError: The server cannot be reached.
            MissingPackageError: redis-py is not installed, or too old.
        """
        return Producer(self, codec=codec, key=key, max_len=max_len, partitions=partitions)

    def connect(self, group: str, *, lease_ms: int, name: str) -> RedisConnection:
        """Connect a worker. The worker calls this when it starts."""
        check_name("the worker", name)
        group = check_name("the group", group)
        return RedisConnection(
            self._server,
            self.stream,
            group,
            lease_ms=lease_ms,
            wait_replicas=self.wait_replicas,
        )

    def open_writer(self) -> "RedisWriter":
        """Connect a producer. The producer calls this when it is created."""
        return RedisWriter(self._server, self.stream, wait_replicas=self.wait_replicas)

    def open_administration(self, group: str) -> "RedisAdministration":
        """Connect a monitor. The monitor calls this when it is created."""
        return RedisAdministration(self._server, self.stream, check_name("the group", group))

    def __repr__(self) -> str:
        """Return where the stream is, without secrets."""
        given = "" if self.partition_count is None else f", partitions={self.partition_count}"
        return f"RedisStreams({self._server.place}, stream={self.stream!r}{given})"

    def __setattr__(self, name: str, value: object) -> NoReturn:
        """Refuse to change the stream.

        Raises:
            AttributeError: Always.
        """
        raise AttributeError(f"RedisStreams cannot be changed: {name}")


_TIMEOUT_S = 10.0
"""The limit for connecting, and for waiting for a reply."""


class RedisWriter:
    """A producer's connection to a stream on Redis; see `backend.Writer`."""

    chooses_partition = False

    def __init__(self, server: Server, stream: str, *, wait_replicas: int = 0) -> None:
        """Prepare to connect with the first call.

        Args:
            server: The address of Redis.
            stream: The stream.
            wait_replicas: The number of replicas that have to confirm records. Default: 0.
        """
        self._stream = stream
        replicas = replicas_of(stream, wait_replicas, 10 * LONGEST_WAIT_MS)
        self._link = Link(server, stream, _TIMEOUT_S, replicas=replicas, may_idle=True)
        self._calls = PartitionCalls(stream, "")
        self._lock = threading.Lock()

    def partitions(self, given: int | None) -> int:
        """Return the number of partitions of the stream, after checking the server."""
        with self._lock:
            check_server(self._link)
            return fixed_partitions(self._link, self._stream, given)

    def add(self, records: Sequence[NewRecord], max_len: int | None) -> list[int | None]:
        """Add records."""
        with self._lock:
            if max_len is None:
                ids = self._link.run([self._words(each) for each in records], replicated=True)
                return [parse_id(each) for each in ids]
            return self._add_bounded(records, max_len)

    def close(self) -> None:
        """Close the connection."""
        self._link.close()

    def _words(self, record: NewRecord) -> list[bytes | str]:
        partition, value, key, headers = record
        stream = PartitionKeys(self._stream, partition).records
        return ["XADD", stream, "*", *fields_of(value, key, headers)]

    def _add_bounded(self, records: Sequence[NewRecord], max_len: int) -> list[int | None]:
        # One script per partition, which ends with the first record that does not fit. A script
        # that the server had forgotten can therefore be sent again without changing the order.
        places: dict[int, list[int]] = {}
        for place, record in enumerate(records):
            places.setdefault(record.partition, []).append(place)
        calls = [
            self._calls.add(partition, max_len, [records[place] for place in chosen])
            for partition, chosen in places.items()
        ]
        offsets: list[int | None] = [None] * len(records)
        replies = self._link.call(calls, replicated=True)
        for chosen, ids in zip(places.values(), replies, strict=True):
            for place, each in zip(chosen, ids, strict=False):
                offsets[place] = parse_id(each)
        return offsets


class RedisAdministration:
    """A command's or monitor's access to a group on Redis; see `backend.Administration`."""

    lacks: Mapping[str, str] = MappingProxyType({})
    counts_by_offset = False

    def __init__(self, server: Server, stream: str, group: str) -> None:
        """Prepare to connect with the first call."""
        self._stream = stream
        self._name = group
        self._link = Link(server, stream, _TIMEOUT_S, may_idle=True)
        self._group = RedisGroup(self._link, stream, group)
        self._calls = PartitionCalls(stream, group)

    def partitions(self) -> int:
        """Return the number of partitions of the stream; 0 if it has none yet."""
        [count] = self._link.run([("HGET", stream_key(self._stream), "p")])
        return int(count or 0)

    def group(self) -> GroupInfo:
        """Return the members of the group, and the owners of its partitions."""
        return self._group.info()

    def infos(self, partitions: Sequence[int]) -> list[PartitionInfo]:
        """Return the positions in the partitions.

        Raises:
            CallRefusedError: A key of a partition holds a value of the wrong type.
        """
        replies = self._link.try_call([self._calls.info(each) for each in partitions])
        for partition, reply in zip(partitions, replies, strict=True):
            if isinstance(reply, StreamUnavailableError):
                raise reply
            if isinstance(reply, Exception):
                call = "to say where the partition is"
                raise refused(self._stream, partition, call, reply).error from reply
        return [info_of(reply) for reply in replies]

    def history(self, after: int) -> list[Event]:
        """Return the last events."""
        return self._group.history(after)

    def drain(self, session: str) -> bool:
        """Let a member leave."""
        return self._group.leaving(session) is not Refusal.UNKNOWN

    def trim(self) -> int:
        """Remove the records that all groups have done."""
        partitions, groups = self.partitions(), self._readers()
        calls = [self._calls.trim(each, groups) for each in range(partitions)]
        return sum(self._link.call(calls))

    def resize(self, partitions: int) -> int:
        """Raise the number of partitions of the stream and of its groups."""
        partition_count(partitions)
        call = ScriptCall(LIBRARY["enlarge"], (stream_key(self._stream),), (partitions,))
        [count] = self._link.call([call])
        for group in self._readers():
            RedisGroup(self._link, self._stream, group).resize(count)
        return int(count)

    def reset(self, partition: int, offset: int, done: int) -> None:
        """Let the group continue after an offset."""
        self._link.call([self._calls.reset(partition, offset, done)])

    def delete(self) -> None:
        """Forget the group."""
        partitions = self.partitions()
        self._link.run([("SREM", readers_key(self._stream), self._name)])
        self._group.delete()
        self._link.call([self._calls.forget(each) for each in range(partitions)])

    def redrive(self, partition: int | None, limit: int | None, redriven: Redriven) -> None:
        """Send dead letters back as new records."""
        redrive(self, partition, limit, redriven)

    def dead_letters(self, partition: int, limit: int) -> list[Entry]:
        """Return the oldest dead letters of a partition."""
        key = PartitionKeys(self._stream, partition).dead(self._name)
        [items] = self._link.run([("XRANGE", key, "-", "+", "COUNT", limit)])
        return [letter_of(item) for item in items]

    def send_back(self, partition: int, letters: Sequence[Entry]) -> int:
        """Add dead letters as new records."""
        [count] = self._link.call([self._calls.send_back(partition, letters)])
        return int(count)

    def close(self) -> None:
        """Close the connection."""
        self._link.close()

    def _readers(self) -> list[str]:
        [names] = self._link.run([("SMEMBERS", readers_key(self._stream))])
        return sorted(name.decode() for name in names)
