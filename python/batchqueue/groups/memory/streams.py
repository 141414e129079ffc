"""`MemoryStreams`: a stream and its groups in the memory of one process."""

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from batchqueue._words import counted
from batchqueue.exceptions import ConfigError
from batchqueue.groups.backend import Fetch, Fetched, NewRecord
from batchqueue.groups.control import BEATS_PER_LEASE
from batchqueue.groups.count import check_name, partition_count
from batchqueue.groups.memory.administration import MemoryAdministration
from batchqueue.groups.memory.clock import Clock, SystemClock
from batchqueue.groups.memory.connection import MemoryConnection, MemoryWriter
from batchqueue.groups.memory.entries import MemoryEntries
from batchqueue.groups.memory.faults import Faults
from batchqueue.groups.memory.group import GroupScripts
from batchqueue.groups.memory.partition import PartitionScripts
from batchqueue.groups.messages import Entry
from batchqueue.groups.producer import Key, Producer


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

    def connect(self, group: str, *, lease_ms: int, name: str) -> MemoryConnection:
        """Connect a worker, which calls this when it starts."""
        timeout_s = lease_ms / BEATS_PER_LEASE / 1_000
        return MemoryConnection(self, group, self._group(group), name, timeout_s)

    def open_writer(self) -> MemoryWriter:
        """Connect a producer, which calls this when it is made."""
        return MemoryWriter(self)

    def open_administration(self, group: str) -> MemoryAdministration:
        """Connect a monitor, which calls this when it is made."""
        return MemoryAdministration(self, group, self._group(group))

    def partitions(self, given: int | None) -> int:
        """Return the number of partitions; raise ConfigError if another one is given."""
        if given not in (None, self.partition_count):
            raise ConfigError(
                f'stream "{self.stream}" has '
                f"{counted(self.partition_count, 'partition')}, partitions={given} was given: "
                "leave it out, or use another stream"
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

    def __repr__(self) -> str:
        """Say which stream it is."""
        return f"MemoryStreams({self.stream!r}, partitions={self.partition_count})"

    def _fetch(self, fetch: Fetch) -> Fetched | None:
        entries = self._scripts[fetch.partition].read(fetch.after, fetch.limit)
        if not entries:
            return None
        size = sum(map(_size, entries))
        return Fetched(fetch.partition, MemoryEntries(entries), size)

    def add(self, record: NewRecord, max_len: int | None) -> int | None:
        """Add a record, and return its offset; None if the partition is full."""
        script = self._scripts[record.partition]
        offset = script.add(record.value, record.key, record.headers, max_len=max_len)
        if offset is not None:
            self.notify()
        return offset

    def _readers(self) -> list[str]:
        """The groups that have had members."""
        with self._arrived:
            return [name for name, group in self._groups.items() if group.state.partitions]

    def _group(self, name: str) -> GroupScripts:
        with self._arrived:
            if name not in self._groups:
                self._groups[name] = GroupScripts(self._clock.now_us)
            return self._groups[name]

    def notify(self) -> None:
        """Wake the threads that wait for records."""
        with self._arrived:
            self._arrived.notify_all()

    def resize(self, partitions: int) -> int:
        """Raise the number of partitions, and return the number from now on."""
        partition_count(partitions)
        with self._arrived:
            while len(self._scripts) < partitions:
                self._scripts.append(PartitionScripts(self._clock.now_us))
            self.partition_count = len(self._scripts)
            groups = list(self._groups.values())
        for group in groups:
            group.resize(partitions)
        return self.partition_count

    def trim(self) -> int:
        """Remove the records that all groups have done, and return how many."""
        return sum(script.trim(self._readers()) for script in self._scripts)

    def forget(self, group: str) -> None:
        """Remove a group."""
        with self._arrived:
            self._groups.pop(group, None)
        for script in self._scripts:
            script.forget(group)

    def script(self, partition: int) -> PartitionScripts:
        """Return the scripts of a partition."""
        return self._scripts[partition]

    def now_us(self) -> int:
        """Return the time of the stream's clock."""
        return self._clock.now_us()

    @property
    def longest_wait_s(self) -> float:
        """The longest that a thread may wait before it reads the clock again, in seconds."""
        return self._clock.longest_wait_s

    def check(self, name: str, timeout_s: float) -> None:
        """Raise StreamUnavailableError if a worker has crashed, or is stalled for so long."""
        self._faults.check(name, timeout_s)


def _size(entry: Entry) -> int:
    _, value, key, headers = entry
    size = len(value) + (0 if key is None else len(key))
    return size + sum(len(name) + len(data) for name, data in headers) if headers else size
