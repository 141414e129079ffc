"""`RedisConnection`: a worker's connections to a stream on Redis, one per thread."""

import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from batchqueue.base.background_log import BackgroundLog
from batchqueue.exceptions import ConfigError
from batchqueue.groups.backend import (
    Behind,
    CommitRequest,
    Fetch,
    Fetched,
    Opening,
    PartitionInfo,
    SetAside,
    Unreadable,
)
from batchqueue.groups.control import BEATS_PER_LEASE, Control, perform
from batchqueue.groups.errors import StreamUnavailableError
from batchqueue.groups.messages import Call, Commit, Failed, Fenced, Opened, Reply
from batchqueue.groups.record import Start, check_partitions, format_id
from batchqueue.groups.redis.client import LIBRARY, Link, ScriptCall, check_server, is_of_one
from batchqueue.groups.redis.node import Found, Server, replicas_of
from batchqueue.groups.redis.scripts import (
    PartitionCalls,
    PartitionKeys,
    RedisGroup,
    committed,
    history_key,
    info_of,
    is_of_command,
    opened,
    readers_key,
    reason_of,
    refused,
    refused_command,
    stream_key,
    was_set_aside,
)

_log = BackgroundLog("batchqueue")


_LONGEST_BLOCK_S = 0.5
"""How long the server may delay a reply. A connection that waits longer is considered dead."""

_START_S = 5.0
"""The same limit while a worker starts: it has no lease yet that could end."""

_REPLY_BYTES = 32 << 20
"""The target size of the reply to a read, if records are as large as earlier ones."""

_SHORTEST_PAUSE_S, _LONGEST_PAUSE_S = 0.002, 0.05
"""The pauses between polls of a cluster. They grow while nothing comes."""

T = TypeVar("T")

_clock = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class RedisConnection:
    """A worker's connection to a stream on Redis; see `backend.Connection`."""

    runs_commands = True
    stores_records = False
    longest_wait_s = float("inf")

    def __init__(
        self, server: Server, stream: str, group: str, *, lease_ms: int, wait_replicas: int = 0
    ) -> None:
        """Prepare to connect with the first call of each thread.

        Args:
            server: The address of Redis.
            stream: The stream.
            group: The group.
            lease_ms: Control calls take at most a quarter of it, all others at most all of it;
                calls before there is a lease may take longer.
            wait_replicas: The number of replicas that have to confirm commits and dead letters.
                Default: 0.
        """
        self.lease_ms = lease_ms
        self._server = server
        self._stream = stream
        self._name = group
        lease_s = lease_ms / 1_000
        self._control = Link(server, stream, lease_s / BEATS_PER_LEASE)
        self._listener = Link(server, stream, lease_s + _LONGEST_BLOCK_S)
        replicas = replicas_of(stream, wait_replicas, lease_ms)
        self._committer = Link(server, stream, lease_s, is_pinned=True, replicas=replicas)
        self._reader = Link(server, stream, lease_s + _LONGEST_BLOCK_S, is_pinned=True)
        self._group = RedisGroup(self._control, stream, group)
        self._calls = PartitionCalls(stream, group)
        self._history = history_key(stream, group)
        self._record_bytes = 65_536.0  # until the first records are read
        self._keys: dict[int, str] = {}
        self._partitions: dict[bytes, int] = {}
        self._pause_s = _SHORTEST_PAUSE_S
        self._unreached_log_at = 0.0
        self._is_closed = False

    def now_ms(self) -> float:
        """Return the time of this machine since it was started, including suspends."""
        return time.clock_gettime_ns(_clock) / 1_000_000

    def partitions(self, given: int | None) -> int:
        """Return the number of partitions of the stream, after checking the server."""
        if self._is_closed:
            raise StreamUnavailableError(self._stream, "the connection is closed")
        link = Link(self._server, self._stream, _START_S)
        try:
            check_server(link)
            count = fixed_partitions(link, self._stream, given)
            # Before the group opens a partition, so that nothing it has not read is trimmed from
            # here on.
            link.run([("SADD", readers_key(self._stream), self._name)])
        finally:
            link.close()
        return count

    def perform(self, control: Control, call: Call) -> Reply:
        """Run the script of a call."""
        return perform(self._group, control, call)

    def wait(self, version: int, timeout_s: float) -> int:
        """Wait for a change of the group."""
        # The ids of events are versions. The last id is read first: after a failover it may be
        # below the known version, and then no event follows that version.
        [last] = self._listener.run([("XREVRANGE", self._history, "+", "-", "COUNT", 1)])
        if last and _version(last[0]) != version:
            return _version(last[0])
        end = time.monotonic() + timeout_s
        while (block_ms := _block_ms(end - time.monotonic())) > 0:
            words = ("XREAD", "BLOCK", block_ms, "STREAMS", self._history, f"{version}-0")
            [found] = self._listener.run([words])
            if found:
                [(_, events)] = found
                return _version(events[-1])
        return version

    def open(self, openings: Sequence[Opening], start: Start) -> list[Opened | Fenced | Failed]:
        """Open partitions."""
        found = self._committer.try_call([self._calls.open(each, start) for each in openings])
        replies = [
            self._reply(each.partition, "to open the partition", opened, reply)
            for each, reply in zip(openings, found, strict=True)
        ]
        if Fenced(0) in replies:
            time.sleep(_PAUSE_S)  # before they are granted and opened again
        return replies

    def commit(self, commits: Sequence[CommitRequest]) -> list[Commit | Fenced | Failed]:
        """Commit partitions."""
        prepared = [self._prepared(each) for each in commits]
        sent = [each for each in prepared if isinstance(each, ScriptCall)]
        found = self._committer.try_call(sent, replicated=True)
        replies = map(self._judged, found)
        return [
            each if isinstance(each, Failed) else self._committed(request, next(replies))
            for request, each in zip(commits, prepared, strict=True)
        ]

    def set_aside(self, requests: Sequence[SetAside]) -> list[int | Fenced | Failed]:
        """Store dead letters."""
        calls = [self._calls.set_aside(each) for each in requests]
        replies = self._committer.try_call(calls, replicated=True)
        return [
            self._reply(each.partition, "to store a dead letter", was_set_aside, reply)
            for each, reply in zip(requests, replies, strict=True)
        ]

    def infos(self, partitions: Sequence[int]) -> list[PartitionInfo | Failed]:
        """Return the positions in the partitions."""
        replies = self._listener.try_call([self._calls.info(each) for each in partitions])
        call = "to say where the partition is"
        return [
            Failed(reply)
            if isinstance(reply, StreamUnavailableError)
            else self._parsed(partition, call, info_of, reply)
            for partition, reply in zip(partitions, replies, strict=True)
        ]

    def read(self, fetches: Sequence[Fetch], wait_ms: int) -> list[Fetched | Behind | Unreadable]:
        """Read records of partitions."""
        from redis.exceptions import ResponseError

        if not fetches:
            return []
        if self._reader.is_cluster:
            return self._poll(fetches, wait_ms)
        try:
            return list(self._read_together(fetches, wait_ms))
        except ResponseError as error:
            if not is_of_one(error):
                raise
        return self._read_apart(fetches)

    def close(self) -> None:
        """Close the connections."""
        self._is_closed = True
        for link in (self._control, self._listener, self._committer, self._reader):
            link.close()

    def _read_together(self, fetches: Sequence[Fetch], wait_ms: int) -> list[Fetched]:
        """Read records with one command for all partitions that have the same limit."""
        by_limit: dict[int, list[Fetch]] = {}
        most = self._most_records(fetches)
        for fetch in fetches:
            by_limit.setdefault(min(fetch.limit, most), []).append(fetch)
        end = time.monotonic() + wait_ms / 1_000
        if len(by_limit) > 1:  # a command has one limit, and one that waits holds up the others
            words = [self._read_words(limit, each) for limit, each in by_limit.items()]
            found = [each for reply in self._reader.read(words) for each in reply]
            if found:
                return self._fetched(found)
        while True:
            block_ms = _block_ms(end - time.monotonic())
            [found] = self._reader.read([self._read_words(min(by_limit), fetches, block_ms)])
            if found or block_ms == 0:
                return self._fetched(found)

    def _poll(self, fetches: Sequence[Fetch], wait_ms: int) -> list[Fetched | Behind | Unreadable]:
        """Poll a cluster: a command reads one slot, and must not hold up others by waiting."""
        end = time.monotonic() + wait_ms / 1_000
        while True:
            found = self._read_apart(fetches)
            if found:
                self._pause_s = _SHORTEST_PAUSE_S
                return found
            time.sleep(max(0.0, min(self._pause_s, end - time.monotonic())))
            self._pause_s = min(2 * self._pause_s, _LONGEST_PAUSE_S)
            if time.monotonic() >= end:
                return []  # the next call begins with a poll

    def _read_apart(self, fetches: Sequence[Fetch]) -> list[Fetched | Behind | Unreadable]:
        """Read records with a separate command for each partition, so that each fails alone."""
        most = self._most_records(fetches)
        words = [self._read_words(min(each.limit, most), [each]) for each in fetches]
        replies = self._reader.try_read(words)
        check_reached(self._stream, fetches, replies)
        found: list[Fetched | Behind | Unreadable] = []
        for fetch, reply in zip(fetches, replies, strict=True):
            if isinstance(reply, Exception):
                failure = refused(self._stream, fetch.partition, "to read the partition", reply)
                found.append(Unreadable(fetch.partition, failure))
            else:
                found += self._fetched(reply)
        return found

    def _most_records(self, fetches: Sequence[Fetch]) -> int:
        """Return the most records of each partition in a reply."""
        return max(1, int(_REPLY_BYTES / self._record_bytes) // len(fetches))

    def _read_words(
        self, limit: int, fetches: Sequence[Fetch], block_ms: int = 0
    ) -> list[str | int]:
        blocking = ("BLOCK", block_ms) if block_ms else ()
        keys = [self._key(each.partition) for each in fetches]
        ids = [format_id(each.after) for each in fetches]
        return ["XREAD", "COUNT", limit, *blocking, "STREAMS", *keys, *ids]

    def _fetched(self, found: Sequence[Found]) -> list[Fetched]:
        fetched = [Fetched(self._partitions[key], entries, size) for key, entries, size in found]
        count = sum(len(each.entries) for each in fetched)
        if count:
            # Averaged with the known size, so that a few large records count soon.
            size = sum(each.size for each in fetched) / count
            self._record_bytes = max(64.0, (self._record_bytes + size) / 2)
        return fetched

    def _key(self, partition: int) -> str:
        """Return the key of a partition's records; cached, because each read names all of them."""
        key = self._keys.get(partition)
        if key is None:
            key = self._keys[partition] = PartitionKeys(self._stream, partition).records
            self._partitions[key.encode()] = partition
        return key

    def _prepared(self, request: CommitRequest) -> ScriptCall | Failed:
        try:
            return self._calls.commit(request)
        except ConfigError as error:
            return Failed(error)

    def _judged(self, reply: Any) -> Any:
        """Return the reply to a commit, or an error if the server takes no commands now."""
        if is_of_command(reply):
            return self._committer.unavailable(reason_of(reply)) or reply
        return reply

    def _committed(self, request: CommitRequest, reply: Any) -> Commit | Fenced | Failed:
        if is_of_command(reply):
            return refused_command(self._stream, request, reply)
        return self._reply(request.partition, "to commit", committed, reply)

    def _reply(
        self, partition: int, call: str, parse: Callable[[Any], T], reply: Any
    ) -> T | Fenced | Failed:
        if isinstance(reply, StreamUnavailableError):
            return self._begins_anew(reply)
        return self._parsed(partition, call, parse, reply)

    def _begins_anew(self, error: StreamUnavailableError) -> Fenced:
        """Return the reply for a partition whose cluster node cannot be reached (R14)."""
        now = time.monotonic()
        if now >= self._unreached_log_at:
            self._unreached_log_at = now + _REPEATED_LOG_S
            _log.warning("%s: its partitions begin anew, the others continue", error)
        return Fenced(0)

    def _parsed(
        self, partition: int, call: str, parse: Callable[[Any], T], reply: Any
    ) -> T | Failed:
        if isinstance(reply, Exception):
            return refused(self._stream, partition, call, reply)
        return parse(reply)


def _version(event: Any) -> int:
    return int(event[0].partition(b"-")[0])


def _block_ms(seconds: float) -> int:
    return max(0, min(int(seconds * 1_000), int(_LONGEST_BLOCK_S * 1_000)))


# Partitions whose cluster node cannot be reached, while others continue.


_REPEATED_LOG_S = 60.0

_PAUSE_S = 0.05
"""The time between two attempts to open a partition."""


def check_reached(stream: str, fetches: Sequence[Fetch], replies: Sequence[Any]) -> None:
    """Raise an error that names the partitions whose node could not be reached.

    Raises:
        StreamUnavailableError: There are such partitions.
    """
    failed = {
        fetch.partition: reply
        for fetch, reply in zip(fetches, replies, strict=True)
        if isinstance(reply, StreamUnavailableError)
    }
    if failed:
        reason = next(iter(failed.values())).reason
        raise StreamUnavailableError(stream, reason, tuple(failed))


# The number of partitions of a stream on Redis, which its first user decides.


def fixed_partitions(link: Link, stream: str, given: int | None) -> int:
    """Return the number of partitions of a stream, which is created if missing.

    Args:
        link: The connection.
        stream: The stream.
        given: The number for a new stream, which an existing one must match. None: 1 for a new
            stream, any number for an existing one.

    Raises:
        ConfigError: The stream has another number of partitions.
    """
    arguments = ("" if given is None else given,)
    call = ScriptCall(LIBRARY["partitions"], (stream_key(stream),), arguments)
    [(count, created)] = link.call([call])
    if created:
        _log.info("Created topic %s with %d partition(s)", stream, count)
    check_partitions(stream, count, given)
    return int(count)
