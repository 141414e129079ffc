"""`MemoryConnection`, `MemoryWriter`: how workers and producers use a stream in memory."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from batchqueue.groups.backend import (
    CommitRequest,
    Fetch,
    Fetched,
    NewRecord,
    Opening,
    PartitionInfo,
    SetAside,
    Unreadable,
)
from batchqueue.groups.control import Control
from batchqueue.groups.errors import StreamUnavailableError
from batchqueue.groups.memory.group import GroupScripts
from batchqueue.groups.messages import Call, Commit, Failed, Fenced, Opened, Reply
from batchqueue.groups.perform import perform
from batchqueue.groups.start import Start

if TYPE_CHECKING:
    from batchqueue.groups.memory.streams import MemoryStreams


class MemoryConnection:
    """A worker's connection to a stream in memory; see `backend.Connection`."""

    def __init__(
        self,
        streams: "MemoryStreams",
        group: str,
        scripts: GroupScripts,
        name: str,
        timeout_s: float,
    ) -> None:
        self._streams = streams
        self._timeout_s = timeout_s
        self._group = group
        self._scripts = scripts
        self._name = name
        self._closed = False

    @property
    def longest_wait_s(self) -> float:
        """The longest that a thread may wait before it reads the clock again, in seconds."""
        return self._streams.longest_wait_s

    def now_ms(self) -> float:
        """Return the time of the stream's clock."""
        return self._streams.now_us() / 1_000

    def partitions(self, given: int | None) -> int:
        """Return the partitions of the stream."""
        return self._streams.partitions(given)

    def perform(self, control: Control, call: Call) -> Reply:
        """Run the script of a call."""
        self._check()
        reply = perform(self._scripts, control, call)
        self._check()
        return reply

    def wait(self, version: int, timeout_s: float) -> int:
        """Wait for a change of the group."""
        self._check()
        version = self._scripts.wait(version, timeout_s, lambda: self._closed)
        self._check()
        return version

    def open(self, openings: Sequence[Opening], start: Start) -> list[Opened | Fenced | Failed]:
        """Open partitions."""
        self._check()
        return [
            self._streams.script(partition).open(self._group, token, session, start)
            for partition, token, session in openings
        ]

    def commit(self, commits: Sequence[CommitRequest]) -> list[Commit | Fenced | Failed]:
        """Commit partitions."""
        self._check()
        return [
            self._streams.script(each.partition).commit(
                self._group,
                each.token,
                each.session,
                each.offset,
                each.done,
                commands=each.commands,
            )
            for each in commits
        ]

    def set_aside(self, requests: Sequence[SetAside]) -> list[int | Fenced | Failed]:
        """Store dead letters."""
        self._check()
        return [
            self._streams.script(each.partition).set_aside(
                self._group, each.token, each.session, each.letters
            )
            for each in requests
        ]

    def infos(self, partitions: Sequence[int]) -> list[PartitionInfo | Failed]:
        """Return where partitions are."""
        self._check()
        return [self._streams.script(each).info(self._group) for each in partitions]

    def read(self, fetches: Sequence[Fetch], wait_ms: int) -> list[Fetched | Unreadable]:
        """Read records of partitions."""
        self._check()
        found = self._streams.read(fetches, wait_ms, lambda: self._closed)
        self._check()
        return list(found)

    def close(self) -> None:
        """Let the calls that wait return."""
        self._closed = True
        self._streams.notify()
        self._scripts.notify()

    def _check(self) -> None:
        if self._closed:
            raise StreamUnavailableError(self._streams.stream, "the connection is closed")
        self._streams.check(self._name, self._timeout_s)


class MemoryWriter:
    """A producer's connection to a stream in memory; see `backend.Writer`."""

    def __init__(self, streams: "MemoryStreams") -> None:
        self._streams = streams

    def partitions(self, given: int | None) -> int:
        """Return the partitions of the stream."""
        return self._streams.partitions(given)

    def add(self, records: Sequence[NewRecord], max_len: int | None) -> list[int | None]:
        """Add records."""
        full: set[int] = set()
        offsets: list[int | None] = []
        for record in records:
            offset = None
            if record.partition not in full:
                offset = self._streams.add(record, max_len)
            if offset is None:
                full.add(record.partition)
            offsets.append(offset)
        return offsets

    def close(self) -> None:
        """Do nothing: there is no connection."""
