"""`Node`: a redis-py connection to one server, without retries; and the meaning of its errors."""

import itertools
import re
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from socket import SHUT_RDWR
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from batchqueue._core import ReplyReader
from batchqueue.base.background_log import BackgroundLog
from batchqueue.base.checks import install_command, require
from batchqueue.exceptions import ConfigError, MissingPackageError
from batchqueue.groups.record import Entries, parse_id

if TYPE_CHECKING:
    from redis import Redis, RedisCluster


Words = Sequence[bytes | str | int | float]
"""A command."""

Found = tuple[bytes, Entries, int]
"""A stream that has entries: its key, the entries, and their size in bytes."""

Address = tuple[str, int]
"""Host and port."""

LONGEST_CONNECT_S = 1.0
"""The limit for connecting to a cluster node, because commands for other nodes wait meanwhile."""

_RECEIVED_BYTES = 1 << 18
"""The number of bytes received from a socket at a time."""

_UNAVAILABLE = {"ReadOnlyError", "MasterDownError", "ClusterDownError", "TryAgainError"}
_UNAVAILABLE |= {"OutOfMemoryError", "UNBLOCKED", "MISCONF", "NOREPLICAS", "BUSY"}
_UNAVAILABLE |= {"READONLY", "OOM", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN"}  # in a script
"""Errors of a server that takes no commands now, but will later."""

_IN_SCRIPT = re.compile(r"@user_script: ?\d+: -?([A-Z]{3,}) ")

_epochs = itertools.count(1)


class Node:
    """A connection. It connects when `connect` is called, and stays as it is until it ends."""

    def __init__(self, pool: Any, connection: Any) -> None:
        """Prepare the connection, without connecting.

        Args:
            pool: A pool of redis-py. A sentinel connection gets its address from it, but does not
                keep it alive.
            connection: A connection of redis-py.
        """
        self._pool = pool
        self._connection = connection
        self._connection.register_connect_callback(self._has_connected)
        self.epoch = 0
        """Changes each time it connects; unique among all connections."""

    @property
    def address(self) -> Address:
        """Host and port."""
        # A local socket has neither.
        host = getattr(self._connection, "host", "localhost")
        return host, int(getattr(self._connection, "port", 0))

    def connect(self) -> None:
        """Connect, unless connected; only sending would not ask a sentinel."""
        self._connection.connect()

    def send(self, commands: Sequence[Words]) -> None:
        """Send commands."""
        self._connection.send_packed_command(self._connection.pack_commands(commands))

    def receive(self, count: int) -> list[Any]:
        """Return replies; for a refused command, its `ResponseError`."""
        return [self._read() for _ in range(count)]

    def receive_entries(self, count: int) -> list[Any]:
        """Return replies to XREAD, each a list of `Found`, or its `ResponseError`.

        Raises:
            OffsetError: An entry has an id that is not an offset.
        """
        from redis.exceptions import ConnectionError as Lost
        from redis.exceptions import InvalidResponse

        reader, connection = ReplyReader(count), self._connection
        try:
            while True:
                received = connection._sock.recv(_RECEIVED_BYTES)
                if not received:
                    raise OSError("the server has closed the connection")
                if reader.feed(received):
                    break
        except OverflowError as error:
            parse_id(str(error))  # raises
            raise
        except ValueError as error:
            raise InvalidResponse(str(error)) from None
        replies: list[Any] = reader.take()
        for at, reply in enumerate(replies):
            if isinstance(reply, str):
                replies[at] = refusal = connection._parser.parse_error(reply)
                if isinstance(refusal, Lost):  # such as an error that the server is still loading
                    raise refusal
        return replies

    def ask(self, commands: Sequence[Words], receive: "Receive | None" = None) -> list[Any]:
        """Connect, send commands, and return their replies, by default those of `receive`."""
        try:
            self.connect()
            self.send(commands)
            return (receive or Node.receive)(self, len(commands))
        except BaseException:
            self.disconnect()  # unread replies may be left
            raise

    def refresh(self) -> None:
        """Disconnect if the server has ended the connection."""
        from redis.exceptions import RedisError

        try:
            if self._connection.can_read(0):
                self.disconnect()
        except (RedisError, OSError):
            self.disconnect()

    def disconnect(self) -> None:
        """End the connection."""
        self._connection.disconnect()

    def interrupt(self) -> None:
        """Make another thread that waits for a reply get an error; that thread then disconnects.

        redis-py must not disconnect in the middle of a reply.
        """
        if (socket := self._connection._sock) is not None:
            with suppress(OSError):
                socket.shutdown(SHUT_RDWR)

    def _has_connected(self, connection: Any) -> None:
        self.epoch = next(_epochs)

    def _read(self) -> Any:
        from redis.exceptions import ConnectionError as Lost
        from redis.exceptions import ResponseError

        try:
            return self._connection.read_response()
        except Lost:  # also if the server is still loading
            raise
        except ResponseError as error:
            return error


Receive = Callable[[Node, int], list[Any]]
"""A way to receive replies: `Node.receive` or `Node.receive_entries`."""


@dataclass(frozen=True)
class Connector:
    """Creates connections to a server, and to the other nodes of its cluster.

    Attributes:
        pool: A pool of redis-py.
        settings: The settings of its connections.
    """

    pool: Any
    settings: Mapping[str, Any]

    def node(self) -> Node:
        """Return a connection to the server.

        Raises:
            ConfigError: An option is invalid.
        """
        return self._node(self.settings)

    def node_at(self, address: Address) -> Node:
        """Return a connection to another node, with the same user, password and options.

        Raises:
            ConfigError: The server was given in a way that does not allow reaching other nodes.
        """
        if "host" not in self.settings:
            raise ConfigError(
                "RedisStreams: Redis is a node of a cluster, and was reached by a socket of this "
                "machine or by a sentinel; give host and port of a node"
            )
        connect_s = min(LONGEST_CONNECT_S, self.settings["socket_timeout"])
        host, port = address
        there = {"host": host, "port": port, "socket_connect_timeout": connect_s}
        return self._node({**self.settings, **there})

    def _node(self, settings: Mapping[str, Any]) -> Node:
        try:
            return Node(self.pool, self.pool.connection_class(**settings))
        except TypeError as error:
            raise ConfigError(f"RedisStreams: {error}; give options of redis.Redis") from None


def check_redis_py() -> None:
    """Check that redis-py is installed and new enough.

    Raises:
        MissingPackageError: It is missing or too old.
    """
    require("redis", "RedisStreams", "redis")
    from redis import __version__
    from redis.connection import Connection

    if not hasattr(Connection, "deregister_connect_callback"):  # 5.0.2 brought it
        raise MissingPackageError(
            f"RedisStreams needs redis-py 5.0.2 or later (here is redis-py {__version__}): "
            f"{install_command('redis')}"
        )


def is_lost(error: Exception) -> bool:
    """Return whether a server could not be reached, or did not answer in time.

    Otherwise the server refused the login or a command, or a command cannot be sent.
    """
    from redis.exceptions import (
        AuthenticationError,
        AuthorizationError,
        DataError,
        ResponseError,
    )

    refused = (AuthenticationError, AuthorizationError, DataError, ResponseError)
    return not isinstance(error, refused)


def words_of(error: Exception) -> set[str]:
    """Return the keywords that identify an error.

    redis-py turns some into classes, and strips the keyword. Redis 6.2 puts the keyword of a
    script's error after its line.
    """
    text = str(error)
    return {type(error).__name__, text.partition(" ")[0], *_IN_SCRIPT.findall(text)}


def is_unavailable(error: Exception) -> bool:
    """Return whether an error says that the server takes no commands now, but will later."""
    return not words_of(error).isdisjoint(_UNAVAILABLE)


@dataclass(frozen=True)
class Server:
    """The address of Redis, and how to connect.

    Attributes:
        address: A URL, or a function that returns a `redis.Redis` or a `redis.RedisCluster`.
        options: Additional arguments of redis-py's connections.
    """

    address: "str | Callable[[], Redis | RedisCluster]" = field(repr=False)
    options: Mapping[str, Any] = field(default_factory=dict, repr=False, hash=False)

    @property
    def place(self) -> str:
        """Host, port and database, or the function, for messages, without secrets."""
        if callable(self.address):
            return getattr(self.address, "__qualname__", type(self.address).__qualname__)
        parts = urlsplit(self.address)
        database = parts.path.strip("/") or "0"
        if parts.scheme == "unix":
            return parts.path
        try:
            port = parts.port or 6379
        except ValueError:
            port = 6379
        return f"{parts.hostname or 'localhost'}:{port}/{database}"

    def connector(self, timeout_s: float) -> Connector:
        """Return the connector.

        Args:
            timeout_s: The limit for connecting, and for waiting for a reply.

        Raises:
            MissingPackageError: redis-py is not installed, or too old.
            ConfigError: The URL is invalid, or the function returned something else.
        """
        check_redis_py()
        from redis.backoff import NoBackoff
        from redis.connection import UnixDomainSocketConnection
        from redis.retry import Retry

        pool = self._pool()
        settings = {
            name: value
            for name, value in pool.connection_kwargs.items()
            # Maintenance notifications of hosted servers need protocol 3.
            if "maint_notifications" not in name and not name.startswith("orig_")
        }
        settings |= {
            "retry": Retry(NoBackoff(), 0),
            "retry_on_timeout": False,
            "retry_on_error": [],
            "health_check_interval": 0,
            "protocol": 2,  # replies as plain lists: twice as fast as those of redis-py
            "decode_responses": False,
            "socket_timeout": timeout_s,
        }
        if not issubclass(pool.connection_class, UnixDomainSocketConnection):
            settings["socket_connect_timeout"] = timeout_s
        return Connector(pool, settings)

    def _pool(self) -> Any:
        from redis import ConnectionPool, RedisCluster

        if not callable(self.address):
            try:
                return ConnectionPool.from_url(self.address, **self.options)
            except ValueError as error:
                raise ConfigError(f"RedisStreams: the URL is invalid: {error}") from None
        client = self.address()
        if isinstance(client, RedisCluster):
            node: Any = client.nodes_manager.default_node
            client = client.get_redis_connection(node)
        pool = getattr(client, "connection_pool", None)
        if pool is None:
            raise ConfigError(
                f"RedisStreams: {self.place} returned {type(client).__name__}; return a "
                "redis.Redis, or a redis.RedisCluster"
            )
        return pool


_log = BackgroundLog("batchqueue")

LONGEST_WAIT_MS = 500
"""The longest that a server waits for replicas. Later writes of the same thread wait behind it."""

_REPEATED_LOG_S = 60.0


class Replicas:
    """The wait for replicas after each write on a connection.

    A write stands whether replicas confirm it or not, because it cannot be taken back. A shortfall
    is therefore counted, and logged once a minute.
    """

    def __init__(self, stream: str, count: int, timeout_ms: int) -> None:
        """Start with zero counts.

        Args:
            stream: The stream, for the log.
            count: The number of replicas that have to confirm.
            timeout_ms: How long the server waits for them, in milliseconds.
        """
        self._stream = stream
        self._count = count
        self._timeout_ms = timeout_ms
        self._log_at = 0.0
        self.missed = 0
        """Writes that too few replicas confirmed; writes sent together count once."""

    @property
    def words(self) -> Words:
        """The command that waits. It follows the writes, on the same connection."""
        return ("WAIT", self._count, self._timeout_ms)

    def note(self, reply: Any) -> None:
        """Handle the reply: the number of replicas that confirmed.

        Raises:
            redis.ResponseError: The server refused to wait.
        """
        if isinstance(reply, Exception):
            reply.add_note("RedisStreams: wait_replicas needs the command WAIT; allow it.")
            raise reply
        if reply >= self._count:
            return
        self.missed += 1
        if time.monotonic() >= self._log_at:
            self._log_at = time.monotonic() + _REPEATED_LOG_S
            _log.warning(
                "stream %s: %d of %d replicas confirmed a write within %d ms: it is stored, and a "
                "failover now may lose it (%d so far)",
                *(self._stream, reply, self._count, self._timeout_ms, self.missed),
            )


def replicas_of(stream: str, count: int, lease_ms: float) -> Replicas | None:
    """Return the wait for this many replicas, up to a tenth of a lease; None for no replicas."""
    if count == 0:
        return None
    return Replicas(stream, count, max(1, min(LONGEST_WAIT_MS, int(lease_ms / 10))))
