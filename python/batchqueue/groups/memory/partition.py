"""`PartitionScripts`: the records of a partition, and who may commit. See `groups/README.md`."""

import threading
from bisect import bisect_right
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

from batchqueue.groups.backend import PartitionInfo
from batchqueue.groups.messages import Command, Commit, Entry, Fenced, Opened
from batchqueue.groups.offsets import SEQUENCE_BITS
from batchqueue.groups.start import Start


@dataclass
class FenceState:
    """Who may commit for a group, and up to where it has everything done.

    Attributes:
        token: The newest token that opened the partition.
        session: The session that holds it.
        offset: The offset up to which everything is done.
        done: The number of records up to there, counted from the beginning of the stream.
        at_ms: When it was stored.
        aside: The offsets above `offset` whose records are in the dead letters.
    """

    token: int
    session: str
    offset: int
    done: int
    at_ms: int
    aside: set[int] = field(default_factory=set)


@dataclass
class PartitionState:
    """All that a partition stores, in one place (R8). Only `PartitionScripts` changes it.

    Attributes:
        entries: The records, by ascending offset.
        end: The offset of the last record that was added.
        added: The number of records that were ever added.
        fences: The fences, by group: these groups read the partition.
        dead: The dead letters, by group.
        effects: The commands of commits, in the order of the commits. Memory runs none of them: it
            keeps them, for tests to read.
    """

    entries: list[Entry] = field(default_factory=list)
    end: int = 0
    added: int = 0
    fences: dict[str, FenceState] = field(default_factory=dict)
    dead: dict[str, list[Entry]] = field(default_factory=dict)
    effects: list[Command] = field(default_factory=list)


class PartitionScripts:
    """The scripts of a partition in memory.

    Each method is atomic. All but `add`, which adds another record, are safe to run late or twice.

    Attributes:
        state: What the partition stores.
    """

    def __init__(self, clock: Callable[[], int]) -> None:
        """Begin without records.

        Args:
            clock: Returns microseconds since 1970.
        """
        self.state = PartitionState()
        self._clock = clock
        self._lock = threading.Lock()

    def add(
        self,
        value: bytes,
        key: bytes | None = None,
        headers: tuple[tuple[str, bytes], ...] = (),
        *,
        max_len: int | None = None,
    ) -> int | None:
        """Add a record, and return its offset; None if the partition is full.

        Args:
            value: The record.
            key: Its key, or None.
            headers: Its headers.
            max_len: The records that may be there which some group has not done; without any group,
                that may be there at all. Default: None, any number.
        """
        with self._lock:
            if max_len is not None and self._unread() >= max_len:
                return None
            return self._append(value, key, headers)

    def read(self, after: int, count: int) -> list[Entry]:
        """Return the first `count` records whose offsets are larger than `after`."""
        with self._lock:
            begin = bisect_right(self.state.entries, after, key=lambda entry: entry.offset)
            return self.state.entries[begin : begin + count]

    def open(
        self, group: str, token: int, session: str, start: Start = Start.EARLIEST
    ) -> Opened | Fenced:
        """Make a token the only one that may commit.

        Args:
            group: The group.
            token: The token of the grant.
            session: The session that it was granted to.
            start: Where a group begins that has no position here yet.
        """
        with self._lock:
            state = self.state
            fence = state.fences.get(group)
            now = self._clock() // 1_000
            if fence is None:
                offset, done = 0, state.added - len(state.entries)
                if start is Start.LATEST:
                    offset, done = state.end, state.added
                fence = state.fences[group] = FenceState(token, session, offset, done, now)
            elif not self._may_open(fence, token, session):
                return Fenced(fence.token)
            fence.token, fence.session, fence.at_ms = token, session, now
            first = state.entries[0].offset if state.entries else None
            length = len(state.entries)
            return Opened(fence.offset, fence.done, state.end, state.added, length, first)

    def commit(
        self,
        group: str,
        token: int,
        session: str,
        offset: int,
        done: int,
        *,
        commands: Sequence[Command] = (),
    ) -> Commit | Fenced:
        """Store an offset, with the effects that belong to it.

        Repeat a commit without a reply unchanged: with more commands, those that ran would run
        again.

        Args:
            group: The group.
            token: The token under which the session opened the partition.
            session: The session.
            offset: Everything up to here is done.
            done: The number of records up to there, counted from the beginning of the stream.
            commands: What `Batch.commit_with` was given.
        """
        with self._lock:
            fence = self.state.fences.get(group)
            if fence is None or not self._may_commit(fence, token, session):
                return Fenced(0 if fence is None else fence.token)
            if not self._is_new(fence, offset):
                return Commit.OLD
            self.state.effects.extend(commands)
            fence.offset, fence.done, fence.at_ms = offset, done, self._clock() // 1_000
            fence.aside = {each for each in fence.aside if each > offset}
            return Commit.STORED

    def set_aside(
        self, group: str, token: int, session: str, letters: Sequence[Entry]
    ) -> int | Fenced:
        """Store dead letters, and return how many were new. It stores none twice.

        Args:
            group: The group.
            token: The token under which the session opened the partition.
            session: The session.
            letters: The records, under the offsets that they have in the stream.
        """
        with self._lock:
            fence = self.state.fences.get(group)
            if fence is None or not self._may_commit(fence, token, session):
                return Fenced(0 if fence is None else fence.token)
            known = fence.aside
            new = [each for each in letters if self._is_new(fence, each.offset)]
            new = [each for each in new if each.offset not in known]
            known.update(each.offset for each in new)
            self.state.dead.setdefault(group, []).extend(new)
            return len(new)

    def info(self, group: str) -> PartitionInfo:
        """Return where the group is."""
        with self._lock:
            state = self.state
            known = state.fences.get(group)
            start = state.added - len(state.entries)
            fence = known or FenceState(0, "", 0, start, 0)
            return PartitionInfo(
                token=fence.token,
                session=fence.session,
                offset=fence.offset,
                done=fence.done,
                end=state.end,
                added=state.added,
                length=len(state.entries),
                dead=len(state.dead.get(group, ())),
                at_ms=fence.at_ms,
            )

    def reset(self, group: str, offset: int, done: int) -> None:
        """Let a group continue after an offset; its token stays, so a former owner cannot commit.

        Args:
            group: The group.
            offset: The offset.
            done: The number of records up to there, counted from the beginning of the stream.
        """
        with self._lock:
            fence = self.state.fences.setdefault(group, FenceState(0, "", 0, 0, 0))
            fence.session, fence.offset, fence.done = "", offset, done
            fence.at_ms, fence.aside = self._clock() // 1_000, set()

    def forget(self, group: str) -> None:
        """Remove a group with its dead letters."""
        with self._lock:
            self.state.fences.pop(group, None)
            self.state.dead.pop(group, None)

    def letters(self, group: str, limit: int) -> list[Entry]:
        """Return the oldest dead letters."""
        with self._lock:
            return self.state.dead.get(group, [])[:limit]

    def send_back(self, group: str, letters: Sequence[Entry]) -> int:
        """Add the oldest dead letters as new records, and remove them; return how many.

        Args:
            group: The group.
            letters: What `letters` returned, perhaps with other headers. If the oldest are others
                by now, nothing is done.
        """
        with self._lock:
            waiting = self.state.dead.get(group, [])
            oldest = [each.offset for each in waiting[: len(letters)]]
            if oldest != [each.offset for each in letters]:
                return 0
            del waiting[: len(letters)]
            for each in letters:
                self._append(each.value, each.key, each.headers)
            return len(letters)

    def trim(self, groups: Collection[str]) -> int:
        """Remove the records that every group has done, and return how many.

        Args:
            groups: The groups that read the stream. If the partition knows another one, or one of
                these has not opened it yet, nothing is removed.
        """
        with self._lock:
            state = self.state
            if not groups or state.fences.keys() != set(groups):
                return 0
            done = min(fence.offset for fence in state.fences.values())
            count = bisect_right(state.entries, done, key=lambda entry: entry.offset)
            del state.entries[:count]
            return count

    def _append(
        self, value: bytes, key: bytes | None, headers: tuple[tuple[str, bytes], ...]
    ) -> int:
        state = self.state
        # As Redis makes ids: the time, and never below the one before.
        state.end = max(state.end + 1, self._clock() // 1_000 << SEQUENCE_BITS)
        state.added += 1
        state.entries.append(Entry(state.end, value, key, headers))
        return state.end

    def _unread(self) -> int:
        done = [fence.done for fence in self.state.fences.values()]
        kept = len(self.state.entries)
        return min(kept, self.state.added - min(done)) if done else kept

    def _may_open(self, fence: FenceState, token: int, session: str) -> bool:
        return token > fence.token or (token, session) == (fence.token, fence.session)  # R3

    def _may_commit(self, fence: FenceState, token: int, session: str) -> bool:
        return (token, session) == (fence.token, fence.session)  # R1

    def _is_new(self, fence: FenceState, offset: int) -> bool:
        return offset > fence.offset  # R12
