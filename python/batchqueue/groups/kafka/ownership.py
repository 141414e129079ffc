"""`Ownership`: the partitions that the broker has assigned to a consumer, and what it may commit.

A pure state machine beside `Control`: no input or output, no threads, no clock. The broker decides
who owns a partition, and says so in callbacks of the consumer. `Control` asks with the same calls
as on Redis, and gets grants and revocations as replies.

The broker checks that a commit comes from a member, not that the member owns the partition. So
these rules keep an offset from going back:

| rule | |
|---|---|
| K1 | one thread owns the consumer: it serves the callbacks and makes the commits |
| K2 | it commits only what is owned now, until a revoke is over or a loss begins |
| K3 | the next commit, and the end of a revoke or a loss, wait for the reply to the last one |
| K4 | a commit that is refused is repeated while the partition is owned under its token |
| K5 | an opening stores its token beside the committed offset, above the token before |
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from batchqueue.groups.backend import CommitRequest
from batchqueue.groups.messages import Refusal, Synced

_SYNC_MS = 60_000
"""A sync need not be repeated soon, because each change raises the version."""


@dataclass(slots=True, eq=False)
class Owned:
    """A partition from its assignment until it is revoked or lost.

    Attributes:
        partition: Its number.
        token: The token of its grant; 0 before.
        session: The session that it was granted to.
        is_open: Whether its token is stored, so that it is read and committed.
        is_revoked: Whether the broker is taking it back. Calls that have begun may finish and be
            committed.
        is_released: Whether nothing of it is left to do.
        committed: What was committed last under this token, or None.
        began: How many partitions the topic had when the group began with this one.
    """

    partition: int
    token: int = 0
    session: str = ""
    is_open: bool = False
    is_revoked: bool = False
    is_released: bool = False
    committed: CommitRequest | None = None
    began: int = 0


class Ownership:
    """The partitions of one consumer.

    Attributes:
        version: Changes with everything that `Control` must learn about.
        partitions: The number of partitions of the topic, as far as known.
        owned: The partitions that the consumer owns now.
        session: The session that has joined, or None.
        is_leaving: Whether the session gives up its partitions.
    """

    def __init__(self, partitions: int, version: int = 1) -> None:
        """Start without partitions.

        Args:
            partitions: The number of partitions of the topic.
            version: The first version.
        """
        self.version = version
        self.partitions = partitions
        self.owned: dict[int, Owned] = {}
        self.session: str | None = None
        self.is_leaving = False
        self._last_token = 0

    # Called by the consumer for what its callbacks report.

    def assign(self, partitions: Iterable[int]) -> None:
        """Add partitions that the broker has assigned."""
        for partition in partitions:
            self.owned[partition] = Owned(partition)
            self.partitions = max(self.partitions, partition + 1)
        self.version += 1

    def revoke(self, partitions: Iterable[int]) -> list[Owned]:
        """Begin to give partitions back, and return those that have something left to do."""
        revoked = [self.owned[each] for each in partitions if each in self.owned]
        for owned in revoked:
            owned.is_revoked = True
            owned.is_released = owned.is_released or not owned.token
        self.version += 1
        return [owned for owned in revoked if not owned.is_released]

    def remove(self, partitions: Iterable[int]) -> None:
        """Forget partitions that were revoked or lost (K2)."""
        for partition in partitions:
            self.owned.pop(partition, None)
        self.version += 1

    def reopen(self, owned: Owned | None) -> None:
        """Take a partition from the session, so that it opens it anew under another token (K9)."""
        if owned is not None:
            owned.token, owned.is_open, owned.committed = 0, False, None
            self.version += 1

    # Called for `Control`; see `control.ControlScripts`.

    def join(self, session: str) -> None:
        """Let a session have the partitions, in place of an earlier one of this process."""
        self.session = session
        self.is_leaving = False
        self.version += 1

    def leave(self) -> None:
        """Begin to give up all partitions."""
        self.is_leaving = True
        self.version += 1

    def sync(
        self, session: str, seen: int, held: Mapping[int, int], now_us: int
    ) -> Synced | Refusal:
        """Compare what a session holds with what the consumer owns.

        Args:
            session: The session.
            seen: The largest token that refused one of its tokens.
            held: The tokens that it holds, by partition.
            now_us: The time, in microseconds since 1970.
        """
        if session != self.session:
            return Refusal.UNKNOWN
        lost, revoked, grants = [], [], {}
        for partition, token in held.items():
            owned = self.owned.get(partition)
            if owned is None or (owned.token, owned.session) != (token, session):
                lost.append(partition)
            elif owned.is_revoked or self.is_leaving:
                revoked.append(partition)
        for partition, owned in self.owned.items():
            if partition in held and partition not in lost:
                continue
            if owned.is_revoked:
                owned.is_released = True
            elif not self.is_leaving:
                self._last_token = max(self._last_token + 1, seen + 1, now_us)
                owned.token, owned.session = self._last_token, session
                owned.is_open = owned.is_released = False
                owned.committed = None
                grants[partition] = owned.token
        return Synced(self.version, self.partitions, grants, tuple(revoked), tuple(lost), _SYNC_MS)

    def release(self, session: str, released: Iterable[tuple[int, int]]) -> None:
        """Take partitions back from a session."""
        for partition, token in released:
            owned = self.find(partition, token, session)
            if owned is not None:
                owned.is_released, owned.is_open = True, False

    # Called for opens, reads and commits.

    def find(self, partition: int, token: int, session: str) -> Owned | None:
        """Return a partition if it is owned under a token now (K2)."""
        owned = self.owned.get(partition)
        return owned if owned and (owned.token, owned.session) == (token, session) else None

    def committed(self) -> list[CommitRequest]:
        """Return what was committed last, of each partition that is owned and open now."""
        return [each.committed for each in self.owned.values() if each.is_open and each.committed]

    def committable(self, requests: Sequence[CommitRequest]) -> list[CommitRequest]:
        """Return the requests for what is owned and open now (K2)."""
        return [
            each
            for each in requests
            if (owned := self.find(each.partition, each.token, each.session)) and owned.is_open
        ]


# The metadata beside a committed offset: who may commit after it.


_FORM = "bq1"


def metadata_of(owned: Owned, name: str) -> str:
    """Return the metadata of a commit."""
    return f"{_FORM};{owned.token};{owned.began};{name}"


def token_in(metadata: str | None) -> int:
    """Return the token in the metadata of a commit; 0 if another program made it."""
    return _number_in(metadata, 1)


def began_in(metadata: str | None) -> int:
    """Return how many partitions there were when the group began; 0 if that is unknown."""
    return _number_in(metadata, 2)


def _number_in(metadata: str | None, place: int) -> int:
    fields = (metadata or "").split(";", 3)
    is_ours = len(fields) == 4 and fields[0] == _FORM and fields[place].isdecimal()
    return int(fields[place]) if is_ours else 0
