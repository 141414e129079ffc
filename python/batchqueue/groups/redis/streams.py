"""`RedisStreams`: a stream on Redis, and its groups."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

from batchqueue._words import a_type
from batchqueue.exceptions import ConfigError
from batchqueue.groups.count import check_name, partition_count
from batchqueue.groups.producer import Key, Producer
from batchqueue.groups.redis.administration import RedisAdministration
from batchqueue.groups.redis.connection import RedisConnection
from batchqueue.groups.redis.server import Server
from batchqueue.groups.redis.writer import RedisWriter

if TYPE_CHECKING:
    from redis import Redis, RedisCluster


class RedisStreams:
    """A stream on Redis 6.2 or later, with one Redis stream per partition. Needs the extra `redis`.

    Redis is a single server, with or without replicas, or a Redis Cluster.

    It is a value: it holds no connection, and cannot be changed. It can be pickled, together with
    the URL and the options, so with the password in them. To keep secrets out of pickles, give a
    function that reads them where it is called.

    A user of the server needs the keys `bq:*`, and the commands `TIME`, `INFO`, `EVAL`, `EVALSHA`,
    `EXISTS`, `DEL`, `GET`, `SET`, `HGET`, `HSET`, `HSETNX`, `HMGET`, `HGETALL`, `HDEL`, `HINCRBY`,
    `SADD`, `SREM`, `SMEMBERS`, `ZADD`, `ZREM`, `ZCARD`, `ZSCORE`, `ZRANGE`, `ZRANGEBYSCORE`,
    `XADD`, `XDEL`, `XLEN`, `XRANGE`, `XREVRANGE`, `XREAD`, `XTRIM` and `XINFO`, on a cluster
    `CLUSTER` and `ASKING`, with `wait_replicas` `WAIT`, besides those of `Batch.commit_with`.

    Set `maxmemory-policy noeviction` and `appendonly yes` on the server, or it may lose offsets.

    Attributes:
        stream: The name of the stream.
        partition_count: The partitions of a new stream, which an existing one must have; None for
            any.
        wait_replicas: How many replicas are to confirm what is written.

    Example:
        >>> from batchqueue.groups import RedisStreams
        >>> RedisStreams("redis://:secret@localhost", "orders", partitions=64)
        RedisStreams(localhost:6379/0, stream='orders', partitions=64)
    """

    __slots__ = ("_server", "partition_count", "stream", "wait_replicas")

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
        """Describe the stream. This connects to nothing.

        Args:
            url: `redis://`, `rediss://` or `unix://`, as redis-py takes it. Or a function without
                arguments that returns a `redis.Redis`, for instance of a sentinel, or a
                `redis.RedisCluster`; it must be possible to pickle it if the stream is to reach
                other processes. For a cluster, any of its nodes: it names the others.
            stream: The name.
            partitions: The partitions of a new stream, 1 to 16,384, which an existing one must
                have. Default: None, 1 for a new stream, and any number for an existing one.
            wait_replicas: How many replicas are to confirm commits, dead letters and records of
                producers. The server waits for them for a tenth of the lease, and 500 ms at most;
                producers for 500 ms. What too few have confirmed is stored all the same: it is
                logged once a minute. Default: 0, none.
            **redis_options: Further arguments of `redis.Redis`, for instance `username` or
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
        if not _is_count(wait_replicas):
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
            MissingPackageError: redis-py is not installed.
        """
        return Producer(self, codec=codec, key=key, max_len=max_len, partitions=partitions)

    def connect(self, group: str, *, lease_ms: int, name: str) -> RedisConnection:
        """Connect a worker; it does this on its own."""
        check_name("the worker", name)
        group = check_name("the group", group)
        return RedisConnection(
            self._server,
            self.stream,
            group,
            lease_ms=lease_ms,
            wait_replicas=self.wait_replicas,
        )

    def open_writer(self) -> RedisWriter:
        """Connect a producer; it does this on its own."""
        return RedisWriter(self._server, self.stream, wait_replicas=self.wait_replicas)

    def open_administration(self, group: str) -> RedisAdministration:
        """Connect a monitor; it does this on its own."""
        return RedisAdministration(self._server, self.stream, check_name("the group", group))

    def __repr__(self) -> str:
        """Say where the stream is, without secrets."""
        given = "" if self.partition_count is None else f", partitions={self.partition_count}"
        return f"RedisStreams({self._server.place}, stream={self.stream!r}{given})"

    def __eq__(self, other: object) -> bool:
        """Return whether both are the same stream, with the same options."""
        return isinstance(other, RedisStreams) and self._state == other._state

    def __hash__(self) -> int:
        """Return a hash; options do not count."""
        return hash((self._server.address, self.stream, self.partition_count))

    def __setattr__(self, name: str, value: object) -> NoReturn:
        """Refuse it.

        Raises:
            AttributeError: Always.
        """
        raise AttributeError(f"RedisStreams cannot be changed: {name}")

    def __reduce__(self) -> tuple[Any, ...]:
        return _streams, self._state

    @property
    def _state(self) -> tuple[Any, ...]:
        server = self._server
        settings = (self.partition_count, self.wait_replicas)
        return server.address, self.stream, *settings, dict(server.options)


def _streams(
    url: "str | Callable[[], Redis | RedisCluster]",
    stream: str,
    partitions: int | None,
    wait_replicas: int,
    options: dict[str, Any],
) -> RedisStreams:
    return RedisStreams(url, stream, partitions=partitions, wait_replicas=wait_replicas, **options)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
