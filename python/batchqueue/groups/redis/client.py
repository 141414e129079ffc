"""`Server` and `Link`: connections of redis-py, one for each thread, without retries.

A link has a single connection. When it ends, the call that was under way raises, and the next call
connects again: so its user knows of each end, and drops what it may have lost (R14). A pool of
redis-py would connect again silently.
"""

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from socket import SHUT_RDWR
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from batchqueue._core import ReplyReader
from batchqueue._requirements import require
from batchqueue.exceptions import ConfigError
from batchqueue.groups.backend import Entries
from batchqueue.groups.errors import StreamUnavailableError
from batchqueue.groups.offsets import parse_id
from batchqueue.groups.redis.library import ScriptCall

if TYPE_CHECKING:
    from redis import Redis

Words = Sequence[bytes | str | int | float]

Found = tuple[bytes, Entries, int]
"""A stream that has entries: its key, the entries, and their bytes."""

_RECEIVED_BYTES = 1 << 18
"""What is taken from a socket in one piece."""

_UNAVAILABLE = {"ReadOnlyError", "MasterDownError", "ClusterDownError", "TryAgainError"}
_UNAVAILABLE |= {"OutOfMemoryError", "UNBLOCKED", "MISCONF", "NOREPLICAS", "BUSY"}
_UNAVAILABLE |= {"READONLY", "OOM", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN"}  # in a script
"""Errors of a server that takes no commands now, and will later."""

_OF_ALL = {"NoPermissionError", "MovedError", "AskError"}
"""Errors that concern all partitions."""

_HINTS = {
    "NoPermissionError": "allow the user the keys and commands that RedisStreams lists",
    "MovedError": "this is a node of a cluster, which groups do not support: use a single server",
    "WRONGTYPE": "a key of the stream, or of commit_with, holds a value of another type: rename it",
}


@dataclass(frozen=True)
class Server:
    """Where Redis is, and how to connect.

    Attributes:
        address: A URL, or a function that returns a `redis.Redis`.
        options: Further arguments of redis-py's connections.
    """

    address: "str | Callable[[], Redis]" = field(repr=False)
    options: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @property
    def place(self) -> str:
        """Host, port and database, or the function: for messages, without secrets."""
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

    def connection(self, timeout_s: float) -> tuple[Any, Any]:
        """Return a pool of redis-py, and a connection that it does not know.

        The connection is not connected yet. One of a sentinel asks the pool for the address, and
        does not keep it alive.

        Args:
            timeout_s: How long connecting may take, and waiting for a reply.

        Raises:
            MissingPackageError: redis-py is not installed.
            ConfigError: The URL or an option is invalid.
        """
        require("redis", "RedisStreams", "redis")
        from redis.backoff import NoBackoff
        from redis.connection import UnixDomainSocketConnection
        from redis.retry import Retry

        pool = self._pool()
        settings = {
            name: value
            for name, value in pool.connection_kwargs.items()
            # Notifications of hosted servers before maintenance need protocol 3.
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
        try:
            return pool, pool.connection_class(**settings)
        except TypeError as error:
            raise ConfigError(f"RedisStreams: {error}; give options of redis.Redis") from None

    def _pool(self) -> Any:
        from redis import ConnectionPool

        if not callable(self.address):
            try:
                return ConnectionPool.from_url(self.address, **self.options)
            except ValueError as error:
                raise ConfigError(f"RedisStreams: the URL is invalid: {error}") from None
        client = self.address()
        pool = getattr(client, "connection_pool", None)
        if pool is None:
            raise ConfigError(
                f"RedisStreams: {self.place} returned {type(client).__name__}; return a redis.Redis"
            )
        return pool


class Link:
    """A connection. Threads take turns.

    Attributes:
        stream: The stream, for errors.
    """

    def __init__(self, server: Server, stream: str, timeout_s: float) -> None:
        """Connect with the first command.

        Args:
            server: Where Redis is.
            stream: The stream, for errors.
            timeout_s: How long connecting may take, and waiting for a reply.
        """
        self.stream = stream
        self._place = server.place
        self._pool, self._connection = server.connection(timeout_s)
        self._is_closed = False
        self._lock = threading.Lock()

    def run(self, commands: Sequence[Words]) -> list[Any]:
        """Send commands, and return their replies.

        Raises:
            StreamUnavailableError: The server cannot be reached; whether they ran is not known.
            redis.ResponseError: The server refused a command. All the others ran.
        """
        return self._checked(self._run(commands, self._replies))

    def read(self, commands: Sequence[Words]) -> list[list[Found]]:
        """Send XREAD commands, and return what each has found.

        Raises:
            StreamUnavailableError: As `run`.
            redis.ResponseError: As `run`.
            OffsetError: An entry has an id that is not an offset.
        """
        return self._checked(self._run(commands, self._entries))

    def call(self, calls: Sequence[ScriptCall]) -> list[Any]:
        """Run scripts, and return their replies.

        Raises:
            StreamUnavailableError: As `run`.
            redis.ResponseError: As `run`.
        """
        return self._checked(self._called(calls))

    def try_call(self, calls: Sequence[ScriptCall]) -> list[Any]:
        """Run scripts, and return their replies; for one that is refused, the `ResponseError`.

        Raises:
            StreamUnavailableError: As `run`.
            redis.ResponseError: A script was refused for a reason that concerns all of them.
        """
        return self._tried(self._called(calls) if calls else [])

    def try_run(self, commands: Sequence[Words]) -> list[Any]:
        """Send commands, and return their replies; for one that is refused, the `ResponseError`.

        Raises:
            StreamUnavailableError: As `run`.
            redis.ResponseError: As `try_call`.
        """
        return self._tried(self._run(commands, self._replies))

    def try_read(self, commands: Sequence[Words]) -> list[Any]:
        """Send XREAD commands; as `read`, and for one that is refused, the `ResponseError`.

        Raises:
            StreamUnavailableError: As `run`.
            redis.ResponseError: As `try_call`.
        """
        return self._tried(self._run(commands, self._entries))

    def check_available(self, reasons: Iterable[str]) -> None:
        """Raise StreamUnavailableError if errors of a script say that no commands are taken now."""
        from redis.exceptions import ResponseError

        self._tried([ResponseError(each) for each in reasons])

    def _tried(self, replies: list[Any]) -> list[Any]:
        self._checked([each for each in replies if not is_of_one(each)])
        return replies

    def _called(self, calls: Sequence[ScriptCall]) -> list[Any]:
        from redis.exceptions import NoScriptError

        commands = [_words("EVALSHA", each.script.sha, each) for each in calls]
        replies = self._run(commands, self._replies)
        # The server has forgotten its scripts. What it did not know did nothing: only that again.
        again = [at for at, reply in enumerate(replies) if isinstance(reply, NoScriptError)]
        if again:
            commands = [_words("EVAL", calls[at].script.text, calls[at]) for at in again]
            for at, reply in zip(again, self._run(commands, self._replies), strict=True):
                replies[at] = reply
        return replies

    def refresh(self) -> None:
        """Connect again, with the next command, if the server has ended the connection."""
        from redis.exceptions import RedisError

        try:
            if self._connection.can_read(0):
                self._connection.disconnect()
        except (RedisError, OSError):
            self._connection.disconnect()

    def close(self) -> None:
        """End the connection. Another thread that waits for a reply gets an error."""
        self._is_closed = True
        if self._lock.acquire(blocking=False):
            self._connection.disconnect()
            self._lock.release()
        elif (socket := self._connection._sock) is not None:
            # The other thread disconnects: redis-py must not do that in the middle of a reply.
            with suppress(OSError):
                socket.shutdown(SHUT_RDWR)

    def _run(self, commands: Sequence[Words], receive: Callable[[int], list[Any]]) -> list[Any]:
        """Send commands, and return their replies and errors, as `receive` takes them."""
        from redis.exceptions import RedisError

        connection = self._connection
        with self._lock:
            if self._is_closed:
                raise StreamUnavailableError(self.stream, "the connection is closed")
            try:
                connection.connect()  # unless it is; sending would not ask a sentinel
                connection.send_packed_command(connection.pack_commands(commands))
                return receive(len(commands))
            except (RedisError, OSError) as error:
                connection.disconnect()
                raise self._unavailable(error) from error
            except BaseException:
                connection.disconnect()  # replies may be left in it
                raise
            finally:
                if self._is_closed:
                    connection.disconnect()

    def _replies(self, count: int) -> list[Any]:
        return [self._reply() for _ in range(count)]

    def _reply(self) -> Any:
        from redis.exceptions import ConnectionError as Lost
        from redis.exceptions import ResponseError

        try:
            return self._connection.read_response()
        except Lost:  # also one that says that the server is loading
            raise
        except ResponseError as error:
            return error

    def _entries(self, count: int) -> list[Any]:
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
            parse_id(str(error))  # which raises
            raise
        except ValueError as error:
            raise InvalidResponse(str(error)) from None
        replies: list[Any] = reader.take()
        for at, reply in enumerate(replies):
            if isinstance(reply, str):
                replies[at] = refusal = connection._parser.parse_error(reply)
                if isinstance(refusal, Lost):  # such as one that says that the server is loading
                    raise refusal
        return replies

    def _unavailable(self, error: BaseException) -> BaseException:
        from redis.exceptions import AuthenticationError, AuthorizationError, DataError

        if self._is_closed:
            return StreamUnavailableError(self.stream, "the connection is closed")
        if isinstance(error, (AuthenticationError, AuthorizationError)):
            error.add_note(f"Redis at {self._place} refused the login: check user and password.")
            return error
        if isinstance(error, DataError):
            return error
        return StreamUnavailableError(self.stream, f"Redis at {self._place}: {error}")

    def _checked(self, replies: list[Any]) -> list[Any]:
        for reply in replies:
            if not isinstance(reply, Exception):
                continue
            words = _words_of(reply)
            if words & _UNAVAILABLE:
                self._connection.disconnect()  # the next one may lead to another server
                raise StreamUnavailableError(self.stream, f"Redis at {self._place}: {reply}")
            for word in words & _HINTS.keys():
                reply.add_note(f"Redis at {self._place}, stream {self.stream}: {_HINTS[word]}.")
            raise reply
        return replies


def is_of_one(reply: Any) -> bool:
    """Return whether a reply is an error that concerns its own call only."""
    return isinstance(reply, Exception) and not _words_of(reply) & (_UNAVAILABLE | _OF_ALL)


def _words_of(error: Exception) -> set[str]:
    # redis-py makes classes of some words, and takes the word off.
    return {type(error).__name__, str(error).partition(" ")[0]}


def _words(command: str, script: str, call: ScriptCall) -> Words:
    return (command, script, len(call.keys), *call.keys, *call.arguments)
