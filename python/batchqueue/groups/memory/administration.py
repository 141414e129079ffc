"""`MemoryAdministration`: what monitors and commands do with a group in memory."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from batchqueue.groups.backend import GroupInfo, PartitionInfo
from batchqueue.groups.memory.group import GroupScripts
from batchqueue.groups.messages import Entry, Event, Refusal

if TYPE_CHECKING:
    from batchqueue.groups.memory.streams import MemoryStreams


class MemoryAdministration:
    """See `backend.Administration`."""

    def __init__(self, streams: "MemoryStreams", group: str, scripts: GroupScripts) -> None:
        self._streams = streams
        self._group = group
        self._scripts = scripts

    def partitions(self) -> int:
        """Return the partitions of the stream."""
        return self._streams.partition_count

    def group(self) -> GroupInfo:
        """Return who is there, and who owns what."""
        return self._scripts.info()

    def infos(self, partitions: Sequence[int]) -> list[PartitionInfo]:
        """Return where partitions are."""
        return [self._streams.script(each).info(self._group) for each in partitions]

    def history(self, after: int) -> list[Event]:
        """Return the last events."""
        return self._scripts.history(after)

    def drain(self, session: str) -> bool:
        """Let a member leave."""
        return self._scripts.leaving(session) is not Refusal.UNKNOWN

    def trim(self) -> int:
        """Remove the records that all groups have done."""
        return self._streams.trim()

    def resize(self, partitions: int) -> int:
        """Raise the number of partitions."""
        return self._streams.resize(partitions)

    def reset(self, partition: int, offset: int, done: int) -> None:
        """Let the group continue after an offset."""
        self._streams.script(partition).reset(self._group, offset, done)

    def delete(self) -> None:
        """Forget the group."""
        self._streams.forget(self._group)

    def dead_letters(self, partition: int, limit: int) -> list[Entry]:
        """Return the oldest dead letters of a partition."""
        return self._streams.script(partition).letters(self._group, limit)

    def send_back(self, partition: int, letters: Sequence[Entry]) -> int:
        """Add dead letters as new records."""
        sent = self._streams.script(partition).send_back(self._group, letters)
        self._streams.notify()
        return sent

    def close(self) -> None:
        """Do nothing: there is no connection."""
