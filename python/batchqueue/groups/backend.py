"""What workers and producers need from a backend; Redis, Kafka and memory each implement it.

A `StreamSource` names a stream. It is a value: it holds no connection, and can be pickled if its
settings can. A worker connects to it once. Each thread of a worker calls its own methods of the
`Connection`, so each may block without holding up the others. A method that cannot reach the server
raises `StreamUnavailableError`; whether the script ran is then unknown.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from batchqueue.base.words import counted
from batchqueue.exceptions import ConfigError
from batchqueue.groups.control import Control
from batchqueue.groups.messages import (
    Call,
    Command,
    Commit,
    Entry,
    Event,
    Failed,
    Fenced,
    Member,
    Opened,
    Reply,
    SentRecord,
    without_origin,
)
from batchqueue.groups.record import Entries, Start
from batchqueue.groups.skew import partition_lag


class Opening(NamedTuple):
    """A partition to open under the token of its grant."""

    partition: int
    token: int
    session: str


@dataclass(frozen=True, slots=True)
class CommitRequest:
    """What to store for a partition, all of it or nothing.

    Attributes:
        partition: The partition.
        token: The token under which it was opened.
        session: The session that opened it.
        offset: Everything up to here is done.
        done: The number of records up to there, counted from the beginning of the stream.
        commands: The commands passed to `Batch.commit_with`.
        records: The records passed to `Batch.send`.
    """

    partition: int
    token: int
    session: str
    offset: int
    done: int
    commands: tuple[Command, ...] = ()
    records: tuple[SentRecord, ...] = ()


@dataclass(frozen=True, slots=True)
class SetAside:
    """Dead letters to be stored before the handler gets later records (R18).

    Attributes:
        partition: The partition.
        token: The token under which it was opened.
        session: The session that opened it.
        letters: The records, under the offsets that they have in the stream.
    """

    partition: int
    token: int
    session: str
    letters: tuple[Entry, ...]


class Fetch(NamedTuple):
    """A read of a partition: at most `limit` records whose offsets are above `after`."""

    partition: int
    after: int
    limit: int
    token: int = 0
    """The token under which it is read, where records are received before they are asked for."""


class Fetched(NamedTuple):
    """The records read from a partition.

    Attributes:
        partition: The partition.
        entries: The records, at least one.
        size: The total size of their values, keys and headers in bytes.
    """

    partition: int
    entries: Entries
    size: int


class Behind(NamedTuple):
    """A partition of which no record has come yet, although there may be some."""

    partition: int


class Unreadable(NamedTuple):
    """A partition that the server refused to read.

    Attributes:
        partition: The partition.
        failure: The reason.
    """

    partition: int
    failure: Failed


class NewRecord(NamedTuple):
    """A record that a producer adds."""

    partition: int
    value: bytes
    key: bytes | None = None
    headers: tuple[tuple[str, bytes], ...] = ()


@dataclass(frozen=True, slots=True)
class PartitionInfo:
    """A group's position in a partition, and the state of the partition.

    Attributes:
        token: The newest token that opened the partition; 0 if none did.
        session: The session that it was granted to; empty if the group never opened it.
        offset: The group has done every record up to this offset.
        done: The number of records up to `offset`, counted from the beginning of the stream.
        end: The offset of the last record that was added, 0 before the first.
        added: The number of records ever added; None if the server does not know it.
        length: The number of records that the stream still holds.
        dead: The number of dead letters of the group.
        is_new: Whether the group has no position in the partition yet.
        has_deletions: Whether single records were ever deleted, so that `added` exceeds the number
            of readable records.
    """

    token: int
    session: str
    offset: int
    done: int
    end: int
    added: int | None
    length: int
    dead: int
    is_new: bool
    has_deletions: bool = False

    @property
    def lag(self) -> int | None:
        """The number of records in the stream that are not done; None if unknown."""
        return partition_lag(self.added, self.done, max(0, (self.added or 0) - self.length))


@dataclass(frozen=True, slots=True)
class MemberInfo:
    """A member of a group.

    Attributes:
        member: What it reported when it joined, and whether it is leaving.
        lease_left_ms: The time until its lease ends.
        stats: The statistics in its last beat.
    """

    member: Member
    lease_left_ms: int
    stats: str


@dataclass(frozen=True, slots=True)
class GroupInfo:
    """A group at one moment.

    Attributes:
        version: Its version.
        members: The members, by session.
        owners: The owning session, by partition.
        targets: The session that the plan assigns, by partition.
        last_owner: The name of the last owner, by partition.
    """

    version: int
    members: Mapping[str, MemberInfo]
    owners: Mapping[int, str]
    targets: Mapping[int, str]
    last_owner: Mapping[int, str]


class Connection(Protocol):
    """A worker's connection to its group and the partitions of the stream.

    Calls for several partitions are independent: if the server refuses one partition, its reply is
    `Failed` and the others get theirs. An error is raised only if it concerns all of them.
    """

    @property
    def runs_commands(self) -> bool:
        """Whether commits run the commands of `Batch.commit_with`."""
        ...

    @property
    def stores_records(self) -> bool:
        """Whether commits store the records of `Batch.send`."""
        ...

    @property
    def lease_ms(self) -> int:
        """The time after which the group gives up on a silent worker."""
        ...

    @property
    def longest_wait_s(self) -> float:
        """The longest that a thread may wait before it reads the clock again, in seconds.

        Infinite for a clock that no test moves.
        """
        ...

    def now_ms(self) -> float:
        """Return the time of the worker's clock, which runs even while the machine is suspended."""
        ...

    def partitions(self, given: int | None) -> int:
        """Return the number of partitions of the stream; its first user decides it.

        Args:
            given: The number for a new stream, which an existing one must match. None: 1 for a new
                stream, any number for an existing one.

        Raises:
            ConfigError: The stream has another number of partitions.
        """
        ...

    def perform(self, control: Control, call: Call) -> Reply:
        """Run the script of a call. It takes at most `control.timeout_ms`. Control thread."""
        ...

    def wait(self, version: int, timeout_s: float) -> int:
        """Wait for a change of the group: a wake-up. Listener thread.

        Returns the version, which differs from `version` unless the timeout passed.
        """
        ...

    def open(self, openings: Sequence[Opening], start: Start) -> list[Opened | Fenced | Failed]:
        """Open partitions, and return a reply for each. Committer thread."""
        ...

    def commit(self, commits: Sequence[CommitRequest]) -> list[Commit | Fenced | Failed]:
        """Commit partitions, and return a reply for each. Committer thread.

        A command that fails ends its commit: those before it have run, and the offset is not
        stored.
        """
        ...

    def set_aside(self, requests: Sequence[SetAside]) -> list[int | Fenced | Failed]:
        """Store dead letters, none twice; return how many each request stored. Committer thread."""
        ...

    def infos(self, partitions: Sequence[int]) -> list[PartitionInfo | Failed]:
        """Return the positions in the partitions. Listener thread."""
        ...

    def read(self, fetches: Sequence[Fetch], wait_ms: int) -> list[Fetched | Behind | Unreadable]:
        """Read records of partitions. Reader thread.

        Args:
            fetches: At most one per partition.
            wait_ms: How long to wait for a record if no partition has any.

        Returns:
            One entry for each partition that has records, may have some, or cannot be read.
        """
        ...

    def close(self) -> None:
        """Close the connection. A call that is under way may raise StreamUnavailableError."""
        ...


class Writer(Protocol):
    """A producer's connection to a stream. It may be used by several threads."""

    @property
    def chooses_partition(self) -> bool:
        """Whether it takes -1 as the partition, and chooses one by the key."""
        ...

    def partitions(self, given: int | None) -> int:
        """As in `Connection`."""
        ...

    def add(self, records: Sequence[NewRecord], max_len: int | None) -> list[int | None]:
        """Add records, and return their offsets, with None for each whose partition is full.

        The records of a partition are added in order: once one is not added, no later record of its
        partition is.

        Args:
            records: The records.
            max_len: The most records per partition that some group has not done; without any group,
                the most records that it holds. None: no limit.
        """
        ...

    def close(self) -> None:
        """Close the connection."""
        ...


@dataclass
class Redriven:
    """What a redrive has done so far.

    Attributes:
        sent: The number of letters that were sent back.
        left: The number of letters that it could not send back.
        notes: Sentences about what was left.
    """

    sent: int = 0
    left: int = 0
    notes: list[str] = field(default_factory=list)


class Administration(Protocol):
    """What monitors and commands do with a group. They do not contact its workers."""

    @property
    def lacks(self) -> Mapping[str, str]:
        """What the backend does not have, each with what to do in its place.

        The keys are commands, or "metrics" for what workers report.
        """
        ...

    @property
    def counts_by_offset(self) -> bool:
        """Whether the offset of a record is the number of offsets before it, as on Kafka."""
        ...

    def partitions(self) -> int:
        """Return the number of partitions of the stream; 0 if it has none yet."""
        ...

    def group(self) -> GroupInfo:
        """Return the members of the group, and the owners of its partitions."""
        ...

    def infos(self, partitions: Sequence[int]) -> list[PartitionInfo]:
        """Return the positions in the partitions."""
        ...

    def history(self, after: int) -> list[Event]:
        """Return the last events, at most about 1,000, whose versions are larger than `after`."""
        ...

    def drain(self, session: str) -> bool:
        """Let a member leave once its partitions are drained; False if it is not a member."""
        ...

    def trim(self) -> int:
        """Remove the records that all groups of the stream have done, and return how many."""
        ...

    def resize(self, partitions: int) -> int:
        """Raise the number of partitions of the stream, and return the new number."""
        ...

    def reset(self, partition: int, offset: int, done: int) -> None:
        """Let the group continue after an offset. The caller has checked that it has no members."""
        ...

    def delete(self) -> None:
        """Forget the group. The caller has checked that the group has no members."""
        ...

    def redrive(self, partition: int | None, limit: int | None, redriven: Redriven) -> None:
        """Send dead letters back as new records, the oldest first, but none that comes meanwhile.

        Args:
            partition: The partition of the records; None for all.
            limit: The most letters to send; None for all.
            redriven: What is done, which is brought up to date even if an error is raised.
        """
        ...

    def close(self) -> None:
        """Close the connection."""
        ...


def lacking(administration: Administration, command: str) -> ConfigError:
    """Return the error of a command that the backend does not have."""
    return ConfigError(f"{command} is not possible on this stream: {administration.lacks[command]}")


class StreamSource(Protocol):
    """A stream in a backend."""

    @property
    def stream(self) -> str:
        """The name of the stream."""
        ...

    @property
    def partition_count(self) -> int | None:
        """The number of partitions of a new stream, required of an existing one; None for any."""
        ...

    def connect(self, group: str, *, lease_ms: int, name: str) -> Connection:
        """Connect a worker.

        Args:
            group: The group.
            lease_ms: The lease of the worker: each control call takes at most a quarter of it.
            name: The name of the worker.
        """
        ...

    def open_writer(self) -> Writer:
        """Connect a producer."""
        ...

    def open_administration(self, group: str) -> Administration:
        """Connect a monitor, or a command."""
        ...


# The redrive of backends that keep dead letters by partition, and remove them.


_BLOCK = 500
"""Letters sent back per call to the server."""

_REFUSALS = 5
"""Consecutive calls that send nothing, because the letters have changed, before it ends."""


class LetterBoxes(Protocol):
    """The dead letters of a group, by partition, where letters are removed as they are sent."""

    def partitions(self) -> int:
        """Return the number of partitions."""
        ...

    def infos(self, partitions: Sequence[int]) -> list[PartitionInfo]:
        """Return how many letters there are, beside other facts."""
        ...

    def dead_letters(self, partition: int, limit: int) -> list[Entry]:
        """Return the oldest dead letters of a partition."""
        ...

    def send_back(self, partition: int, letters: Sequence[Entry]) -> int:
        """Move the oldest dead letters back into the stream as new records; return how many."""
        ...


def redrive(
    boxes: LetterBoxes, partition: int | None, limit: int | None, redriven: Redriven
) -> None:
    """Send letters back; see `backend.Administration`."""
    partitions = range(boxes.partitions()) if partition is None else [partition]
    infos = boxes.infos(partitions)
    wanted = 0
    for each, info in zip(partitions, infos, strict=True):
        # No more than there are now, because letters that fail again would circulate forever.
        left = info.dead if limit is None else min(info.dead, limit - wanted)
        wanted += left
        refused = 0
        while left > 0 and refused < _REFUSALS:
            returned = _send_back(boxes, each, min(left, _BLOCK))
            if returned is None:
                break
            refused = 0 if returned else refused + 1
            redriven.sent, left = redriven.sent + returned, left - returned
    redriven.left = wanted - redriven.sent
    if redriven.left:
        redriven.notes.append(
            f"{counted(redriven.left, 'dead letter')} less than there were: another redrive or a "
            "reset is under way; run it again"
        )


def _send_back(boxes: LetterBoxes, partition: int, limit: int) -> int | None:
    """Return how many were sent; None if there are no letters."""
    letters = boxes.dead_letters(partition, limit)
    if not letters:
        return None
    plain = [each._replace(headers=without_origin(each.headers)) for each in letters]
    return boxes.send_back(partition, plain)
