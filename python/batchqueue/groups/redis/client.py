"""`Link`: what a thread sends its commands through, without retries.

A link has a single connection, or one to each node of a cluster. When it ends, the call that was
under way raises, and the next call connects again: so its user knows of each end, and drops what it
may have lost (R14). A pool of redis-py would connect again silently.
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
    """What a thread sends its commands through: a connection to a server, or to each node.

    It asks the server whether it is a node of a cluster before its first command. Threads take
    turns.

    Attributes:
        stream: The stream, for errors.
        replicas: How many replicas are to confirm what is written; None for none.
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
            server: Where Redis is.
            stream: The stream, for errors.
            timeout_s: How long connecting may take, and waiting for a reply.
            is_pinned: Whether a slot of a cluster fails once when its connection is another one;
                see `cluster.py`. That of a single server fails in any case.
            replicas: How many replicas are to confirm what is written. Default: None.
            may_idle: Whether a connection that the server has ended meanwhile is made again with
                the next call, and the call does not fail. Default: False.
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
            StreamUnavailableError: As `run`.
        """
        transport = self._transport or self._guarded(self._connected)
        return isinstance(transport, Cluster)

    def run(self, commands: Sequence[Words], *, replicated: bool = False) -> list[Any]:
        """Send commands, and return their replies.

        Args:
            commands: The commands. In a cluster, all keys of one are in one slot.
            replicated: Whether to wait for the replicas of the link.

        Raises:
            StreamUnavailableError: The server cannot be reached; whether they ran is not known.
            redis.ResponseError: The server refused a command. All the others ran.
        """
        return self._checked(self._run(commands, self.replicas if replicated else None))

    def read(self, commands: Sequence[Words]) -> list[list[Found]]:
        """Send XREAD commands, and return what each has found.

        Raises:
            StreamUnavailableError: As `run`.
            redis.ResponseError: As `run`.
            OffsetError: An entry has an id that is not an offset.
        """
        return self._checked(self._run(commands, None, Node.receive_entries))

    def try_read(self, commands: Sequence[Words]) -> list[Any]:
        """Send XREAD commands, and return what each has found, or its error; see `try_call`.

        Raises:
            StreamUnavailableError: As `try_call`.
            redis.ResponseError: As `try_call`.
            OffsetError: As `read`.
        """
        return self._tried(self._run(commands, None, Node.receive_entries))

    def call(self, calls: "Sequence[ScriptCall]", *, replicated: bool = False) -> list[Any]:
        """Run scripts, and return their replies.

        Args:
            calls: The scripts.
            replicated: Whether to wait for the replicas of the link.

        Raises:
            StreamUnavailableError: As `run`.
            redis.ResponseError: As `run`.
        """
        return self._checked(self._called(calls, self.replicas if replicated else None))

    def try_call(self, calls: "Sequence[ScriptCall]", *, replicated: bool = False) -> list[Any]:
        """Run scripts, and return their replies, or errors that concern one of them.

        That is the `ResponseError` of one that is refused; and the `StreamUnavailableError` of one
        whose node of a cluster cannot be reached.

        Raises:
            StreamUnavailableError: A single server cannot be reached, or the link is closed.
            redis.ResponseError: A script was refused for a reason that concerns all of them.
        """
        if not calls:
            return []
        return self._tried(self._called(calls, self.replicas if replicated else None))

    def unavailable(self, reason: str) -> StreamUnavailableError | None:
        """Return the error of a call if a script says that its node takes no commands now.

        Raises:
            StreamUnavailableError: A single server says so.
        """
        from redis.exceptions import ResponseError

        error = ResponseError(reason)
        if not is_unavailable(error):
            return None
        if not isinstance(self._transport, Cluster):
            self._checked([error])
        return StreamUnavailableError(self.stream, f"Redis at {self._place}: {reason}")

    def everywhere(self, words: Words) -> dict[str, Any]:
        """Send a command to each node, and return the replies of those that can be reached.

        Returns:
            The replies by place; for a command that was refused, the `ResponseError`.

        Raises:
            StreamUnavailableError: As `run`.
        """
        return self._guarded(lambda: self._connected().everywhere(words))

    def _called(self, calls: "Sequence[ScriptCall]", replicas: Replicas | None) -> list[Any]:
        from redis.exceptions import NoScriptError

        commands = [_words("EVALSHA", each.script.sha, each) for each in calls]
        replies = self._run(commands, replicas)
        # The server has forgotten its scripts. What it did not know did nothing: only that again.
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
        """Return what takes commands; at first, ask the server what it is."""
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
        else:  # no node of a cluster, or this user may not ask
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
                (self._transport or self._entry).disconnect()  # the next may lead elsewhere
                raise StreamUnavailableError(self.stream, f"Redis at {self._place}: {reply}")
            for word in words_of(reply) & _HINTS.keys():
                reply.add_note(f"Redis at {self._place}, stream {self.stream}: {_HINTS[word]}.")
            raise reply
        return replies


def is_of_one(reply: Any) -> bool:
    """Return whether a reply is an error that concerns its own call only."""
    if isinstance(reply, StreamUnavailableError):  # of a node of a cluster
        return True
    is_error = isinstance(reply, Exception)
    return is_error and not is_unavailable(reply) and words_of(reply).isdisjoint(_OF_ALL)


def _words(command: str, script: str, call: "ScriptCall") -> Words:
    return (command, script, len(call.keys), *call.keys, *call.arguments)


# `Library`: the scripts, each one text with what it shares with others before it.


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
        text: What the server runs.
        sha: By which the server knows it once it has run.
    """

    text: str
    sha: str


class ScriptCall(NamedTuple):
    """A script with what it takes.

    Attributes:
        script: The script.
        keys: All keys that it uses.
        arguments: The rest.
    """

    script: Script
    keys: tuple[str, ...]
    arguments: tuple[bytes | str | int | float, ...]


class Library:
    """The scripts, by the names of their files."""

    def __init__(self, clock: str | None = None) -> None:
        """Read nothing yet.

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
    # The server's own name of a script, not a safeguard.
    return Script(text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())


LIBRARY = Library()
"""The scripts as they are."""


# What Redis servers must be like for groups, and what it had better be.


_log = BackgroundLog("batchqueue")


OLDEST = (6, 2)
"""The first version of Redis with `XTRIM MINID` and `ZRANGE` as the scripts use them."""


def check_server(link: Link) -> None:
    """Check the version of each server, and warn if one may lose what groups store.

    Raises:
        ConfigError: The server is too old.
        StreamUnavailableError: It cannot be reached.
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
    """Return what to warn about, from the fields of `INFO`.

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
