"""`Link`: the connection through which a thread sends its commands, without retries.

A link has a single connection, or one to each node of a cluster. When it ends, the call under way
raises, and the next call connects again. So its user notices each end, and drops what it may have
lost (R14). A pool of redis-py would reconnect silently.
"""

import hashlib
import threading
from collections.abc import Callable, Sequence
from functools import cached_property
from importlib.resources import files
from typing import Any, NamedTuple, TypeVar

from batchqueue.base.background_log import BackgroundLog
from batchqueue.exceptions import ConfigError
from batchqueue.groups.errors import StreamUnavailableError
from batchqueue.groups.redis.cluster import Cluster, SingleServer, SlotMap, Transport
from batchqueue.groups.redis.node import (
    Found,
    Node,
    Receive,
    Replicas,
    Server,
    Words,
    is_lost,
    is_unavailable,
    words_of,
)

T = TypeVar("T")


_OF_ALL = {"NoPermissionError", "MovedError", "AskError"}
"""Errors that concern all partitions."""


_HINTS = {
    "NoPermissionError": "allow the user the keys and commands that RedisStreams lists",
    "MovedError": "this is a node of a cluster: allow the user the command CLUSTER",
    "ClusterCrossSlotError": "this is a node of a cluster: allow the user the command CLUSTER",
    "WRONGTYPE": "a key of the stream, or of commit_with, holds a value of another type: rename it",
}


class Link:
    """The connection through which a thread sends its commands, to a server or to each node.

    Before its first command, the link asks the server whether it is a node of a cluster. Threads
    take turns.

    Attributes:
        stream: The stream, for errors.
        replicas: The number of replicas that have to confirm writes; None for none.
    """

    def __init__(
        self,
        server: Server,
        stream: str,
        timeout_s: float,
        *,
        is_pinned: bool = False,
        replicas: Replicas | None = None,
        may_idle: bool = False,
    ) -> None:
        """Connect with the first command.

        Args:
            server: The address of Redis.
            stream: The stream, for errors.
            timeout_s: The limit for connecting, and for waiting for a reply.
            is_pinned: Whether a slot of a cluster fails once when its connection has changed; see
                `cluster.py`. The slot of a single server fails in any case.
            replicas: The number of replicas that have to confirm writes. Default: None.
            may_idle: Whether the next call reconnects, instead of failing, if the server has closed
                an idle connection. Default: False.
        """
        self.stream = stream
        self._place = server.place
        self._connector = server.connector(timeout_s)
        self._entry = self._connector.node()
        self._transport: Transport | None = None
        self._is_pinned = is_pinned
        self.replicas = replicas
        self._may_idle = may_idle
        self._is_closed = False
        self._lock = threading.Lock()

    @property
    def is_cluster(self) -> bool:
        """Whether the server is a node of a cluster.

        Raises:
            StreamUnavailableError: As for `run`.
        """
        transport = self._transport or self._guarded(self._connected)
        return isinstance(transport, Cluster)

    def run(self, commands: Sequence[Words], *, replicated: bool = False) -> list[Any]:
        """Send commands, and return their replies.

        Args:
            commands: The commands. In a cluster, all keys of a command are in one slot.
            replicated: Whether to wait for the replicas of the link.

        Raises:
            StreamUnavailableError: The server cannot be reached; whether the commands ran is
                unknown.
            redis.ResponseError: The server refused a command. All the others ran.
        """
        return self._checked(self._run(commands, self.replicas if replicated else None))

    def read(self, commands: Sequence[Words]) -> list[list[Found]]:
        """Send XREAD commands, and return the entries that each found.

        Raises:
            StreamUnavailableError: As for `run`.
            redis.ResponseError: As for `run`.
            OffsetError: An entry has an id that is not an offset.
        """
        return self._checked(self._run(commands, None, Node.receive_entries))

    def try_read(self, commands: Sequence[Words]) -> list[Any]:
        """Send XREAD commands, and return the entries or the error of each; see `try_call`.

        Raises:
            StreamUnavailableError: As for `try_call`.
            redis.ResponseError: As for `try_call`.
            OffsetError: As for `read`.
        """
        return self._tried(self._run(commands, None, Node.receive_entries))

    def call(self, calls: "Sequence[ScriptCall]", *, replicated: bool = False) -> list[Any]:
        """Run scripts, and return their replies.

        Args:
            calls: The scripts.
            replicated: Whether to wait for the replicas of the link.

        Raises:
            StreamUnavailableError: As for `run`.
            redis.ResponseError: As for `run`.
        """
        return self._checked(self._called(calls, self.replicas if replicated else None))

    def try_call(self, calls: "Sequence[ScriptCall]", *, replicated: bool = False) -> list[Any]:
        """Run scripts, and return their replies, or the errors that concern a single script.

        Such an error is the `ResponseError` of a refused script, or the `StreamUnavailableError` of
        a script whose cluster node cannot be reached.

        Raises:
            StreamUnavailableError: A single server cannot be reached, or the link is closed.
            redis.ResponseError: A script was refused for a reason that concerns all of them.
        """
        if not calls:
            return []
        return self._tried(self._called(calls, self.replicas if replicated else None))

    def unavailable(self, reason: str) -> StreamUnavailableError | None:
        """Return the error of a call whose script reports that its node takes no commands now.

        Raises:
            StreamUnavailableError: A single server reports this.
        """
        from redis.exceptions import ResponseError

        error = ResponseError(reason)
        if not is_unavailable(error):
            return None
        if not isinstance(self._transport, Cluster):
            self._checked([error])
        return StreamUnavailableError(self.stream, f"Redis at {self._place}: {reason}")

    def everywhere(self, words: Words) -> dict[str, Any]:
        """Send a command to each node, and return the replies of the nodes that can be reached.

        Returns:
            The replies by address; for a refused command, the `ResponseError`.

        Raises:
            StreamUnavailableError: As for `run`.
        """
        return self._guarded(lambda: self._connected().everywhere(words))

    def _called(self, calls: "Sequence[ScriptCall]", replicas: Replicas | None) -> list[Any]:
        from redis.exceptions import NoScriptError

        commands = [_words("EVALSHA", each.script.sha, each) for each in calls]
        replies = self._run(commands, replicas)
        # The server has forgotten these scripts, so they did nothing: only they are sent again.
        again = [at for at, reply in enumerate(replies) if isinstance(reply, NoScriptError)]
        if again:
            words = [_words("EVAL", calls[at].script.text, calls[at]) for at in again]
            for at, reply in zip(again, self._run(words, replicas), strict=True):
                replies[at] = reply
        return replies

    def close(self) -> None:
        """End the connection. Another thread that waits for a reply gets an error."""
        self._is_closed = True
        if self._lock.acquire(blocking=False):
            (self._transport or self._entry).disconnect()
            self._lock.release()
        else:
            (self._transport or self._entry).interrupt()  # the other thread disconnects

    def _run(
        self,
        commands: Sequence[Words],
        replicas: Replicas | None,
        receive: Receive = Node.receive,
    ) -> list[Any]:
        return self._guarded(lambda: self._connected().exchange(commands, replicas, receive))

    def _guarded(self, work: Callable[[], T]) -> T:
        from redis.exceptions import RedisError

        with self._lock:
            if self._is_closed:
                raise StreamUnavailableError(self.stream, "the connection is closed")
            try:
                return work()
            except (RedisError, OSError) as error:
                raise self._unavailable(error) from error
            finally:
                if self._is_closed:
                    (self._transport or self._entry).disconnect()

    def _connected(self) -> Transport:
        """Return the transport for commands; the first call asks the server what it is."""
        if self._transport is not None:
            if self._may_idle:
                self._transport.refresh()
            return self._transport
        [reply] = self._entry.ask([("CLUSTER", "SLOTS")])
        if isinstance(reply, list):
            slots = SlotMap(reply, self._entry.address)
            self._entry.disconnect()
            self._transport = Cluster(
                self.stream,
                self._entry,
                self._connector.node_at,
                slots,
                is_pinned=self._is_pinned,
            )
            if self._is_closed:
                self._transport.interrupt()
        else:  # not a node of a cluster, or this user may not ask
            self._transport = SingleServer(self._place, self._entry)
        return self._transport

    def _unavailable(self, error: Exception) -> Exception:
        from redis.exceptions import AuthenticationError, AuthorizationError

        if self._is_closed:
            return StreamUnavailableError(self.stream, "the connection is closed")
        if isinstance(error, (AuthenticationError, AuthorizationError)):
            error.add_note(f"Redis at {self._place} refused the login: check user and password.")
            return error
        if not is_lost(error):
            return error
        return StreamUnavailableError(self.stream, f"Redis at {self._place}: {error}")

    def _tried(self, replies: list[Any]) -> list[Any]:
        self._checked([each for each in replies if not is_of_one(each)])
        return replies

    def _checked(self, replies: list[Any]) -> list[Any]:
        for reply in replies:
            if not isinstance(reply, Exception):
                continue
            if is_unavailable(reply):
                (self._transport or self._entry).disconnect()  # the next one may lead elsewhere
                raise StreamUnavailableError(self.stream, f"Redis at {self._place}: {reply}")
            for word in words_of(reply) & _HINTS.keys():
                reply.add_note(f"Redis at {self._place}, stream {self.stream}: {_HINTS[word]}.")
            raise reply
        return replies


def is_of_one(reply: Any) -> bool:
    """Return whether a reply is an error that concerns only its own call."""
    if isinstance(reply, StreamUnavailableError):  # from a node of a cluster
        return True
    is_error = isinstance(reply, Exception)
    return is_error and not is_unavailable(reply) and words_of(reply).isdisjoint(_OF_ALL)


def _words(command: str, script: str, call: "ScriptCall") -> Words:
    return (command, script, len(call.keys), *call.keys, *call.arguments)


# `Library`: the scripts, each as one text that begins with the parts it shares with others.


_CONTROL = [
    "time",
    "join",
    "beat",
    "plan",
    "sync",
    "release",
    "resize",
    "leaving",
    "leave",
    "members",
]


_PARTITION = [
    "open",
    "commit",
    "set_aside",
    "position",
    "reset",
    "forget",
    "send_back",
    "trim",
    "add",
]


_STREAM = ["partitions", "enlarge"]


class Script(NamedTuple):
    """A script.

    Attributes:
        text: The text that the server runs.
        sha: The digest by which the server knows it after its first run.
    """

    text: str
    sha: str


class ScriptCall(NamedTuple):
    """A script with its keys and arguments.

    Attributes:
        script: The script.
        keys: All keys that it uses.
        arguments: Its other arguments.
    """

    script: Script
    keys: tuple[str, ...]
    arguments: tuple[bytes | str | int | float, ...]


class Library:
    """The scripts, by file name."""

    def __init__(self, clock: str | None = None) -> None:
        """Prepare to read the scripts.

        Args:
            clock: The Lua function `clock_us`. Default: None, the time of the server.
        """
        self._clock = clock

    def __getitem__(self, name: str) -> Script:
        """Return a script."""
        return self._scripts[name]

    @cached_property
    def _scripts(self) -> dict[str, Script]:
        clock = _text("clock") if self._clock is None else self._clock
        control = [clock, _text("common"), _text("control")]
        partition = [clock, _text("common"), _text("partition")]
        parts = {name: [*control, _text(name)] for name in _CONTROL}
        parts |= {name: [*partition, _text(name)] for name in _PARTITION}
        parts |= {name: [_text(name)] for name in _STREAM}
        return {name: _script("\n".join(texts)) for name, texts in parts.items()}


def _text(name: str) -> str:
    return (files("batchqueue.groups.redis") / "scripts" / f"{name}.lua").read_text("utf8")


def _script(text: str) -> Script:
    # The server's own name for a script, not a safeguard.
    return Script(text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())


LIBRARY = Library()
"""The scripts, unmodified."""


# The requirements for Redis servers of groups, and recommendations.


_log = BackgroundLog("batchqueue")


OLDEST = (6, 2)
"""The first version of Redis whose `XTRIM MINID` and `ZRANGE` work as the scripts use them."""


def check_server(link: Link) -> None:
    """Check the version of each server, and warn if one may lose what groups store.

    Raises:
        ConfigError: The server is too old.
        StreamUnavailableError: The server cannot be reached.
    """
    from redis.exceptions import ResponseError

    found: dict[str, list[str]] = {}
    for place, reply in link.everywhere(("INFO",)).items():
        if isinstance(reply, ResponseError):
            return  # this user may not ask
        for warning in warnings_of(_fields(reply)):
            found.setdefault(warning, []).append(place)
    for warning, places in found.items():
        where = f" (at {', '.join(places)})" if link.is_cluster else ""
        _log.warning("%s%s", warning, where)


def warnings_of(info: dict[str, str]) -> list[str]:
    """Return the warnings that follow from the fields of `INFO`.

    Raises:
        ConfigError: The server is too old.
    """
    version = info.get("redis_version", "")
    numbers = version.split(".")[:2]
    if all(map(str.isdigit, numbers)) and tuple(map(int, numbers)) < OLDEST:
        raise ConfigError(f"Redis is version {version}; groups need 6.2 or later: upgrade it")
    found = []
    policy = info.get("maxmemory_policy", "")
    if policy.startswith("allkeys-") and info.get("maxmemory") != "0":
        found.append(f"Redis evicts keys ({policy}): set noeviction, or groups lose offsets")
    if info.get("aof_enabled") == "0":
        found.append(
            "Redis writes no append-only file: set appendonly yes, or a crash loses records and "
            "offsets"
        )
    return found


def _fields(text: bytes) -> dict[str, str]:
    lines = (line.partition(":") for line in text.decode("utf8", "replace").splitlines())
    return {name: value for name, colon, value in lines if colon}
