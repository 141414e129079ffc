"""`MemoryStreams`: a stream and its groups in the memory of one process."""

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from batchqueue.exceptions import ConfigError
from batchqueue.groups.backend import (
    CommitRequest,
    Decode,
    Fetch,
    Fetched,
    NewRecord,
    Opening,
    SetAside,
)
from batchqueue.groups.control import BEATS_PER_LEASE, Control
from batchqueue.groups.count import check_name, partition_count
from batchqueue.groups.errors import StreamUnavailableError
from batchqueue.groups.memory.clock import Clock, SystemClock
from batchqueue.groups.memory.faults import Faults
from batchqueue.groups.memory.group import GroupScripts
from batchqueue.groups.memory.partition import PartitionScripts
from batchqueue.groups.memory.perform import perform
from batchqueue.groups.messages import Call, Commit, Entry, Fenced, Opened, Reply
from batchqueue.groups.offsets import SEQUENCE_BITS
from batchqueue.groups.producer import Key, Producer
from batchqueue.groups.record import Record
from batchqueue.groups.start import Start


class MemoryStreams:
    """A stream in the memory of this process: for tests, and for programs of a single process.

    Give the same object to all workers and producers of the stream. It has everything that a stream
    on Redis has, except that it ends with the process, and that the commands of `commit_with` are
    kept instead of run.

    Attributes:
        stream: The name of the stream.
        partition_count: Its partitions.
        commands: What `Batch.commit_with` was given in committed batches, by partition.

    Example:
        >>> from batchqueue.groups import MemoryStreams, Worker
        >>> orders = MemoryStreams("orders", partitions=4)
        >>> with orders.producer(codec="json", key=lambda order: order["id"]) as producer:
        ...     producer.send_many([{"id": 1, "cents": 250}, {"id": 2, "cents": 999}])
        2
        >>> worker = Worker("billing", orders, codec="json")
        >>> cents = []
        >>> @worker.handler
        ... def store(batch):
        ...     cents.extend(order["cents"] for order in batch.values)
        >>> worker.run(until_idle=0.1).handled
        2
        >>> sorted(cents)
        [250, 999]
    """

    def __init__(self, stream: str, *, partitions: int = 1, clock: Clock | None = None) -> None:
        """Begin without records.

        Args:
            stream: The name.
            partitions: The partitions, 1 to 16,384. Default: 1.
            clock: A `ManualClock`, for tests. Default: None, the time of the operating system.

        Raises:
            ConfigError: The name or the number of partitions is invalid.
        """
        self.stream = check_name("the stream", stream)
        self.partition_count = partition_count(partitions)
        self._clock = clock or SystemClock()
        self._scripts = [PartitionScripts(self._clock.now_us) for _ in range(partitions)]
        self._groups: dict[str, GroupScripts] = {}
        self._arrived = threading.Condition()
        self._faults = Faults(stream)

    @property
    def commands(self) -> dict[int, list[Sequence[bytes | str | int]]]:
        """What `Batch.commit_with` was given in committed batches, by partition."""
        scripts = enumerate(self._scripts)
        return {number: list(each.state.effects) for number, each in scripts if each.state.effects}

    def dead_letters(self, group: str) -> dict[int, list[Entry]]:
        """Return the dead letters of a group, by partition; partitions without any are left out."""
        scripts = enumerate(self._scripts)
        found = ((number, each.state.dead.get(group, [])) for number, each in scripts)
        return {number: list(letters) for number, letters in found if letters}

    def producer(
        self,
        *,
        codec: Any = "bytes",
        key: Key | None = None,
        max_len: int | None = None,
        partitions: int | None = None,
    ) -> Producer:
        """Return a producer of the stream; see `Producer`."""
        return Producer(self, codec=codec, key=key, max_len=max_len, partitions=partitions)

    def crash(self, name: str) -> None:
        """Cut a worker off for ever: for the group it is a process that was killed."""
        self._faults.crash(name)

    def stall(self, name: str) -> None:
        """Let all calls of a worker time out until `wake`, as if its network had been cut."""
        self._faults.stall(name)

    def wake(self, name: str) -> None:
        """End the stall of a worker."""
        self._faults.wake(name)

    def connect(self, group: str, *, lease_ms: int, name: str) -> "MemoryConnection":
        """Connect a worker; it does this by itself."""
        with self._arrived:
            scripts = self._groups.setdefault(group, GroupScripts(self._clock.now_us))
        return MemoryConnection(self, group, scripts, name, lease_ms / BEATS_PER_LEASE / 1_000)

    def open_writer(self) -> "MemoryWriter":
        """Connect a producer; it does this by itself."""
        return MemoryWriter(self)

    def partitions(self, given: int | None) -> int:
        """Return the number of partitions; raise ConfigError if another one is given."""
        if given not in (None, self.partition_count):
            raise ConfigError(
                f'stream "{self.stream}" has {self.partition_count} partitions, '
                f"partitions={given} was given: leave it out, or use another stream"
            )
        return self.partition_count

    def read(
        self, fetches: Sequence[Fetch], wait_ms: int, is_over: Callable[[], bool]
    ) -> list[Fetched]:
        """Read records of partitions, and wait for one while there is none."""
        end = time.monotonic() + wait_ms / 1_000
        with self._arrived:
            while True:
                found = [each for each in map(self._fetch, fetches) if each is not None]
                left = end - time.monotonic()
                if found or left <= 0 or is_over():
                    return found
                self._arrived.wait(left)

    def _fetch(self, fetch: Fetch) -> Fetched | None:
        entries = self._scripts[fetch.partition].read(fetch.after, fetch.limit)
        if not entries:
            return None
        size = sum(map(_size, entries))
        return Fetched(fetch.partition, entries, entries[0].offset, entries[-1].offset, size)

    def add(self, record: NewRecord, max_len: int | None) -> int | None:
        """Add a record, and return its offset; None if the partition is full."""
        script = self._scripts[record.partition]
        offset = script.add(record.value, record.key, record.headers, max_len=max_len)
        if offset is not None:
            self.notify()
        return offset

    def notify(self) -> None:
        """Wake the threads that wait for records."""
        with self._arrived:
            self._arrived.notify_all()

    def script(self, partition: int) -> PartitionScripts:
        """Return the scripts of a partition."""
        return self._scripts[partition]

    def now_us(self) -> int:
        """Return the time of the stream's clock."""
        return self._clock.now_us()

    @property
    def longest_wait_s(self) -> float:
        """The longest that a thread may wait before it looks at the clock again, in seconds."""
        return self._clock.longest_wait_s

    def check(self, name: str, timeout_s: float) -> None:
        """Raise StreamUnavailableError if a worker has crashed, or is stalled for so long."""
        self._faults.check(name, timeout_s)


class MemoryConnection:
    """A worker's connection to a stream in memory; see `backend.Connection`."""

    def __init__(
        self,
        streams: MemoryStreams,
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
        """The longest that a thread may wait before it looks at the clock again, in seconds."""
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

    def open(self, openings: Sequence[Opening], start: Start) -> list[Opened | Fenced]:
        """Open partitions."""
        self._check()
        return [
            self._streams.script(partition).open(self._group, token, session, start)
            for partition, token, session in openings
        ]

    def commit(self, commits: Sequence[CommitRequest]) -> list[Commit | Fenced]:
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

    def set_aside(self, requests: Sequence[SetAside]) -> list[int | Fenced]:
        """Store dead letters."""
        self._check()
        return [
            self._streams.script(each.partition).set_aside(
                self._group, each.token, each.session, each.letters
            )
            for each in requests
        ]

    def read(self, fetches: Sequence[Fetch], wait_ms: int) -> list[Fetched]:
        """Read records of partitions."""
        self._check()
        found = self._streams.read(fetches, wait_ms, lambda: self._closed)
        self._check()
        return found

    def record(self, item: Entry, decode: Decode) -> Record[Any]:
        """Return the record of an entry."""
        offset, value, key, headers = item
        return Record(decode(value, offset), key, offset, offset >> SEQUENCE_BITS, headers)

    def entry(self, item: Entry) -> Entry:
        """Return the entry itself."""
        return item

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

    def __init__(self, streams: MemoryStreams) -> None:
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


def _size(entry: Entry) -> int:
    _, value, key, headers = entry
    size = len(value) + (0 if key is None else len(key))
    return size + sum(len(name) + len(data) for name, data in headers) if headers else size
