"""`RedisAdministration`: what monitors and commands do with a group on Redis."""

from collections.abc import Sequence

from batchqueue.groups.backend import GroupInfo, PartitionInfo
from batchqueue.groups.count import partition_count
from batchqueue.groups.errors import StreamUnavailableError
from batchqueue.groups.messages import Entry, Event, Refusal
from batchqueue.groups.redis.client import Link
from batchqueue.groups.redis.count import enlarged_partitions, known_partitions
from batchqueue.groups.redis.group import RedisGroup
from batchqueue.groups.redis.keys import PartitionKeys, readers_key
from batchqueue.groups.redis.partition import PartitionCalls, info_of, letter_of, refused
from batchqueue.groups.redis.server import Server

_TIMEOUT_S = 10.0
"""How long connecting may take, and waiting for a reply."""


class RedisAdministration:
    """See `backend.Administration`."""

    def __init__(self, server: Server, stream: str, group: str) -> None:
        """Connect with the first call."""
        self._stream = stream
        self._name = group
        self._link = Link(server, stream, _TIMEOUT_S)
        self._group = RedisGroup(self._link, stream, group)
        self._calls = PartitionCalls(stream, group)

    def partitions(self) -> int:
        """Return the partitions of the stream; 0 if it has none yet."""
        self._link.refresh()
        return known_partitions(self._link, self._stream)

    def group(self) -> GroupInfo:
        """Return who is there, and who owns what."""
        self._link.refresh()
        return self._group.info()

    def infos(self, partitions: Sequence[int]) -> list[PartitionInfo]:
        """Return where partitions are.

        Raises:
            CallRefusedError: A key of a partition holds a value of another type.
        """
        self._link.refresh()
        replies = self._link.try_call([self._calls.info(each) for each in partitions])
        for partition, reply in zip(partitions, replies, strict=True):
            if isinstance(reply, StreamUnavailableError):
                raise reply
            if isinstance(reply, Exception):
                call = "to say where the partition is"
                raise refused(self._stream, partition, call, reply).error from reply
        return [info_of(reply) for reply in replies]

    def history(self, after: int) -> list[Event]:
        """Return the last events."""
        self._link.refresh()
        return self._group.history(after)

    def drain(self, session: str) -> bool:
        """Let a member leave."""
        self._link.refresh()
        return self._group.leaving(session) is not Refusal.UNKNOWN

    def trim(self) -> int:
        """Remove the records that all groups have done."""
        partitions, groups = self.partitions(), self._readers()
        calls = [self._calls.trim(each, groups) for each in range(partitions)]
        return sum(self._link.call(calls))

    def resize(self, partitions: int) -> int:
        """Raise the number of partitions of the stream and of its groups."""
        partition_count(partitions)
        self._link.refresh()
        count = enlarged_partitions(self._link, self._stream, partitions)
        for group in self._readers():
            RedisGroup(self._link, self._stream, group).resize(count)
        return count

    def reset(self, partition: int, offset: int, done: int) -> None:
        """Let the group continue after an offset."""
        self._link.refresh()
        self._link.call([self._calls.reset(partition, offset, done)])

    def delete(self) -> None:
        """Forget the group."""
        partitions = self.partitions()
        self._link.run([("SREM", readers_key(self._stream), self._name)])
        self._group.delete()
        self._link.call([self._calls.forget(each) for each in range(partitions)])

    def dead_letters(self, partition: int, limit: int) -> list[Entry]:
        """Return the oldest dead letters of a partition."""
        self._link.refresh()
        key = PartitionKeys(self._stream, partition).dead(self._name)
        [items] = self._link.run([("XRANGE", key, "-", "+", "COUNT", limit)])
        return [letter_of(item) for item in items]

    def send_back(self, partition: int, letters: Sequence[Entry]) -> int:
        """Add dead letters as new records."""
        self._link.refresh()
        [count] = self._link.call([self._calls.send_back(partition, letters)])
        return int(count)

    def close(self) -> None:
        """Close the connection."""
        self._link.close()

    def _readers(self) -> list[str]:
        [names] = self._link.run([("SMEMBERS", readers_key(self._stream))])
        return sorted(name.decode() for name in names)
