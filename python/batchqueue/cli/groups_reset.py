"""`groups reset` and `groups redrive`: what a group gets again."""

import argparse
import sys
from dataclasses import dataclass

from batchqueue.base.words import counted
from batchqueue.cli.command import FAILED, OK, Command, whole_number
from batchqueue.cli.groups_options import (
    Target,
    add_partition,
    add_target,
    members_of,
    partitions_of,
    target_of,
)
from batchqueue.exceptions import BatchQueueError, ConfigError
from batchqueue.groups.backend import (
    Administration,
    Connection,
    Fetch,
    Fetched,
    PartitionInfo,
    Redriven,
    StreamSource,
    Unreadable,
    lacking,
)
from batchqueue.groups.record import parse_id

# `groups reset`: lets a group continue elsewhere.


def add_reset_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.description = (
        "Let a group without members continue elsewhere. With an offset, the records after it are "
        "read to count them, which takes a while if there are many. Dead letters stay. An offset "
        "of Redis begins with a time, so that the same one suits all partitions."
    )
    add_target(parser)
    add_partition(parser)
    parser.add_argument(
        "--to",
        required=True,
        metavar="earliest|latest|OFFSET",
        help="before the oldest record that is left, after the newest, or after an offset: a "
        "number, or an id of Redis",
    )
    parser.add_argument("--yes", action="store_true", help="do not ask")


def run_reset(arguments: argparse.Namespace) -> int:
    """Reset it."""
    wanted_offset(arguments.to)
    target = target_of(arguments)
    with target.administration() as administration:
        partitions = list(partitions_of(arguments, administration))
        _check_empty(target, administration)
        positions = Positions(target.source, target.group, administration)
        places = positions.of(arguments.to, partitions)
        print(
            f"{target}, {counted(len(places), 'partition')}, to {arguments.to}: {_effect(places)}"
        )
        if not (arguments.yes or _is_confirmed()):
            print("nothing was reset", file=sys.stderr)
            return FAILED
        # If a worker has joined since, its commits are refused, and it opens the partition again.
        _check_empty(target, administration)
        for place in places:
            administration.reset(place.partition, place.offset, place.done)
    print("reset")
    return OK


def _check_empty(target: Target, administration: Administration) -> None:
    names = sorted(each.member.name for each in members_of(administration).values())
    if names:
        how = administration.lacks.get("drain", "let them leave: `batchqueue groups drain`")
        raise ConfigError(f"{target} has members: {', '.join(names)}; {how}")


def _effect(places: "list[Position]") -> str:
    again = sum(place.again for place in places)
    skipped = sum(place.skipped for place in places)
    effects = []
    if again:
        effects.append(f"{counted(again, 'record')} will be handled again")
    if skipped:
        effects.append(f"{counted(skipped, 'record')} will be skipped")
    return ", ".join(effects) or "no record is skipped or handled again"


def _is_confirmed() -> bool:
    try:
        return input("Reset? [y/N] ").strip().lower() in ("y", "yes")
    except EOFError:
        print("\nno answer; --yes resets without a question", file=sys.stderr)
        return False


RESET = Command(
    name="reset",
    help="let a group without members continue elsewhere",
    add_arguments=add_reset_arguments,
    run=run_reset,
)


# The positions of `groups reset`, and the number of records done up to each.


_SEARCHED_ENTRIES = 1_000
"""Records per read while counting them."""


_LEASE_MS = 60_000
"""Used only for the timeouts of the connection that counts; it does not join."""


class TrimmedMeanwhileError(BatchQueueError, RuntimeError):
    """Records were trimmed while they were counted."""


@dataclass(frozen=True)
class Position:
    """The position from which a group continues in a partition.

    Attributes:
        partition: The partition.
        offset: The last record that counts as done.
        done: The number of records up to `offset`, counted from the beginning of the stream.
        again: The number of records that the group had done and gets again.
        skipped: The number of records that the group had not done and never gets.
    """

    partition: int
    offset: int
    done: int
    again: int
    skipped: int


def wanted_offset(to: str) -> int | None:
    """Return the offset of `--to`; None for earliest and latest.

    Raises:
        ConfigError: The text is not a valid position.
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
    """Computes positions. Counting in the middle of a partition reads the records after it."""

    def __init__(self, source: StreamSource, group: str, administration: Administration) -> None:
        self._source = source
        self._group = group
        self._administration = administration

    def of(self, to: str, partitions: list[int]) -> list[Position]:
        """Return the positions that `--to` specifies.

        Raises:
            ConfigError: It is invalid, or is an offset after the last record of every partition.
            TrimmedMeanwhileError: Records were trimmed while they were counted.
        """
        offset = wanted_offset(to)
        infos = dict(zip(partitions, self._administration.infos(partitions), strict=True))
        if offset is None:
            place = self._earliest if to == "earliest" else _latest
            return [_position(each, info, *place(info)) for each, info in infos.items()]
        last = max(info.end for info in infos.values())
        if offset > last:
            raise ConfigError(
                f"--to is {offset}, after the last record, which has the offset {last}: later "
                "records would be skipped; give a smaller one, or latest"
            )
        if self._administration.counts_by_offset:
            return [
                _position(each, info, *_by_offset(info, offset)) for each, info in infos.items()
            ]
        connection = self._source.connect(self._group, lease_ms=_LEASE_MS, name="reset")
        try:
            connection.partitions(None)
            return [
                _position(each, info, *self._middle(connection, each, info, offset))
                for each, info in infos.items()
            ]
        finally:
            connection.close()

    def _earliest(self, info: PartitionInfo) -> tuple[int, int]:
        trimmed = _trimmed(info)
        return trimmed - 1 if self._administration.counts_by_offset else 0, trimmed

    def _middle(
        self, connection: Connection, partition: int, info: PartitionInfo, offset: int
    ) -> tuple[int, int]:
        if offset >= info.end:
            return _latest(info)
        done = _added(info) - _count(connection, partition, offset, info.end)
        # Otherwise the next worker would find a gap where the group is set to continue.
        [now] = self._administration.infos([partition])
        if _trimmed(now) > done:
            raise TrimmedMeanwhileError(
                f"partition {partition}: records after offset {offset} were trimmed while they "
                "were counted; nothing was reset; run it again"
            )
        return offset, done


def _by_offset(info: PartitionInfo, offset: int) -> tuple[int, int]:
    within = max(_trimmed(info) - 1, min(offset, info.end))
    return within, within + 1


def _latest(info: PartitionInfo) -> tuple[int, int]:
    return info.end, _added(info)


def _position(partition: int, info: PartitionInfo, offset: int, done: int) -> Position:
    before = max(info.done, _trimmed(info))
    return Position(partition, offset, done, max(0, before - done), max(0, done - before))


def _added(info: PartitionInfo) -> int:
    # A server that does not count added records has no lags either, so this number is never used.
    return info.length if info.added is None else info.added


def _trimmed(info: PartitionInfo) -> int:
    return max(0, _added(info) - info.length)


def _count(connection: Connection, partition: int, after: int, end: int) -> int:
    """Count the records after an offset up to another one by reading them."""
    total = 0
    while after < end:
        found = connection.read([Fetch(partition, after, _SEARCHED_ENTRIES)], 0)
        if not found:
            break
        [block] = found
        if isinstance(block, Unreadable):
            raise block.failure.error
        assert isinstance(block, Fetched)
        entries = block.entries
        if entries.last <= end:
            total += len(entries)
        else:
            records = entries.records([None] * len(entries))
            total += sum(record.offset <= end for record in records)
        after = entries.last
    return total


# `groups redrive`: sends dead letters back.


def add_redrive_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.description = (
        "Send dead letters back to their partitions as new records, the oldest first, without the "
        "headers dead-*. Those that fail again while it runs stay in the dead letters."
    )
    add_target(parser)
    add_partition(parser)
    parser.add_argument(
        "--limit", type=whole_number(1), metavar="N", help="at most N of them (default: all)"
    )


def run_redrive(arguments: argparse.Namespace) -> int:
    """Send them back."""
    target, redriven = target_of(arguments), Redriven()
    with target.administration() as administration:
        if "redrive" in administration.lacks:
            raise lacking(administration, "redrive")
        partitions_of(arguments, administration)  # raises for one that does not exist
        try:
            administration.redrive(arguments.partition, arguments.limit, redriven)
        finally:
            print(f"{counted(redriven.sent, 'dead letter')} of {target} sent back")
    for note in redriven.notes:
        print(note, file=sys.stderr)
    return FAILED if redriven.left else OK


REDRIVE = Command(
    name="redrive",
    help="send dead letters back as new records",
    add_arguments=add_redrive_arguments,
    run=run_redrive,
)
