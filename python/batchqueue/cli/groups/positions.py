"""Where `groups reset` lets a group continue, and how many records are done up to there."""

from dataclasses import dataclass

from batchqueue.exceptions import BatchQueueError, ConfigError
from batchqueue.groups.backend import (
    Administration,
    Connection,
    Fetch,
    PartitionInfo,
    Source,
    Unreadable,
)
from batchqueue.groups.record import parse_id, undecoded

_BLOCK = 1_000
"""Records that are read with one call while they are counted."""

_LEASE_MS = 60_000
"""Only for the timeouts of the connection that counts: it joins nothing."""


class TrimmedMeanwhileError(BatchQueueError, RuntimeError):
    """Records were trimmed while they were counted."""


@dataclass(frozen=True)
class Position:
    """Where a group continues in a partition.

    Attributes:
        partition: The partition.
        offset: The last record that counts as done.
        done: The number of records up to there, counted from the beginning of the stream.
        again: Records that the group had done, and gets again.
        skipped: Records that the group had not done, and never gets.
    """

    partition: int
    offset: int
    done: int
    again: int
    skipped: int


def wanted_offset(to: str) -> int | None:
    """Return the offset of `--to`; None for earliest and latest.

    Raises:
        ConfigError: It is neither of these.
    """
    if to in ("earliest", "latest"):
        return None
    if to.isascii() and to.isdigit() and len(to) <= 19:
        return int(to)
    try:
        return parse_id(to)
    except BatchQueueError as error:
        raise ConfigError(
            f"--to is {to!r}; give earliest, latest, an offset, or an id of Redis such as "
            "1760000000000-0"
        ) from error


class Positions:
    """Computes positions. Counting in the middle of a partition reads what comes after."""

    def __init__(self, source: Source, group: str, administration: Administration) -> None:
        self._source = source
        self._group = group
        self._administration = administration

    def of(self, to: str, partitions: list[int]) -> list[Position]:
        """Return the positions that `--to` means.

        Raises:
            ConfigError: It is invalid, or an offset after the last record of all of them.
            TrimmedMeanwhileError: Records were trimmed while they were counted.
        """
        offset = wanted_offset(to)
        infos = dict(zip(partitions, self._administration.infos(partitions), strict=True))
        if offset is None:
            place = _earliest if to == "earliest" else _latest
            return [_position(each, info, *place(info)) for each, info in infos.items()]
        last = max(info.end for info in infos.values())
        if offset > last:
            raise ConfigError(
                f"--to is {offset}, after the last record, which has the offset {last}: later "
                "records would be skipped; give a smaller one, or latest"
            )
        connection = self._source.connect(self._group, lease_ms=_LEASE_MS, name="reset")
        try:
            connection.partitions(None)
            return [
                _position(each, info, *self._middle(connection, each, info, offset))
                for each, info in infos.items()
            ]
        finally:
            connection.close()

    def _middle(
        self, connection: Connection, partition: int, info: PartitionInfo, offset: int
    ) -> tuple[int, int]:
        if offset >= info.end:
            return _latest(info)
        done = _added(info) - _count(connection, partition, offset, info.end)
        # Otherwise the next worker would find a gap where the group is said to continue.
        [now] = self._administration.infos([partition])
        if _trimmed(now) > done:
            raise TrimmedMeanwhileError(
                f"partition {partition}: records after offset {offset} were trimmed while they "
                "were counted; nothing was reset; run it again"
            )
        return offset, done


def _earliest(info: PartitionInfo) -> tuple[int, int]:
    return 0, _trimmed(info)


def _latest(info: PartitionInfo) -> tuple[int, int]:
    return info.end, _added(info)


def _position(partition: int, info: PartitionInfo, offset: int, done: int) -> Position:
    before = max(info.done, _trimmed(info))
    return Position(partition, offset, done, max(0, before - done), max(0, done - before))


def _added(info: PartitionInfo) -> int:
    # A server that does not count what was added has no lags either, so this number is never used.
    return info.length if info.added is None else info.added


def _trimmed(info: PartitionInfo) -> int:
    return max(0, _added(info) - info.length)


def _count(connection: Connection, partition: int, after: int, end: int) -> int:
    """Read the records after an offset up to another one, and return how many there are."""
    total = 0
    while after < end:
        found = connection.read([Fetch(partition, after, _BLOCK)], 0)
        if not found:
            break
        [block] = found
        if isinstance(block, Unreadable):
            raise block.failure.error
        entries = block.entries
        if entries.last <= end:
            total += len(entries)
        else:
            records, _ = entries.records(undecoded)
            total += sum(record.offset <= end for record in records)
        after = entries.last
    return total
