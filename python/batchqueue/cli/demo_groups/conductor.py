"""`Conductor`: kills a worker and adds another one, by progress, not by time."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from batchqueue.cli.demo_groups.feed import Feed
from batchqueue.cli.demo_groups.workers import Workers
from batchqueue.exceptions import BatchQueueError
from batchqueue.groups.backend import Administration, PartitionInfo

KILL_AT = 0.4
"""The share of the flights after which a worker is killed."""

JOIN_AT = 0.6
"""The share after which another one joins."""

_BEFORE_KILL = 0.7
"""The share that is produced at most before the kill, so that the killed worker leaves a lag."""

_BEFORE_JOIN = 0.8
"""The share that is produced at most before the added worker owns partitions."""

_POLL_S = 0.05
_PATIENCE_S = 60.0


class StoppedFlowError(BatchQueueError):
    """The group made no progress."""


@dataclass(frozen=True)
class Reading:
    """The group at one moment.

    Attributes:
        done: Flights whose position is committed.
        owners: The name of the owner, by partition; partitions without one are left out.
        lags: Flights that are in the stream and not done, by partition; 0 if that is not known.
    """

    done: int
    owners: dict[int, str]
    lags: dict[int, int]

    def owned(self, name: str) -> list[int]:
        """Return the partitions of a worker."""
        return sorted(number for number, owner in self.owners.items() if owner == name)

    def lag_of(self, name: str) -> tuple[int, int]:
        """Return the lag of a worker, and how many partitions it has."""
        owned = self.owned(name)
        return sum(self.lags[number] for number in owned), len(owned)


@dataclass(frozen=True)
class Story:
    """What the conductor did. Times are in seconds since the epoch.

    Attributes:
        names: All workers, in the order of their starts.
        killed: The worker that was killed.
        killed_at: When.
        left_behind: The partitions that it owned.
        joined: The worker that was added.
        joined_at: When it was started.
        began_at: When the first flight was about to be produced.
        ended_at: When all flights were done.
    """

    names: tuple[str, ...]
    killed: str
    killed_at: float
    left_behind: tuple[int, ...]
    joined: str
    joined_at: float
    began_at: float
    ended_at: float


class Conductor:
    """Lets a run happen."""

    def __init__(
        self,
        administration: Administration,
        workers: Workers,
        feed: Feed,
        *,
        say: Callable[[str], None],
        show: Callable[[int], None],
    ) -> None:
        """Start nothing yet.

        Args:
            administration: Reads the group.
            workers: The workers.
            feed: Produces the flights.
            say: Is called with a line for what happens.
            show: Is called with the number of flights that are done.
        """
        self._administration = administration
        self._workers = workers
        self._feed = feed
        self._say = say
        self._show = show

    def run(self, count: int) -> Story:
        """Run the group until all flights are done and all workers have left.

        Args:
            count: Workers at the start.

        Raises:
            BatchQueueError: A worker ended, the feed failed, or nothing happened for a minute.
        """
        names = [f"worker-{number}" for number in range(1, count + 1)]
        for name in names:
            self._workers.start(name)
        self._until(lambda reading: _share(reading, names), "the first plan")
        self._say(f"{count} workers share {len(self._read().owners)} partitions")
        began_at = time.time()
        self._feed.start()
        self._feed.allow(_BEFORE_KILL)
        reading = self._until(self._has_done(KILL_AT), "flights")
        killed = max(names, key=reading.lag_of)
        left_behind = self._read().owned(killed)
        killed_at = time.time()
        self._workers.kill(killed)
        self._say(f"{killed} killed at {self._percent(reading)}, it owned {left_behind}")
        self._feed.allow(_BEFORE_JOIN)
        living = [name for name in names if name != killed]
        self._until(lambda reading: _share(reading, living), "the takeover")
        self._say(f"the others own all partitions, {time.time() - killed_at:.1f} s after the kill")
        reading = self._until(self._has_done(JOIN_AT), "flights")
        joined, joined_at = f"worker-{count + 1}", time.time()
        self._workers.start(joined)
        self._say(f"{joined} started at {self._percent(reading)}")
        reading = self._until(lambda reading: _share(reading, [*living, joined]), "the new plan")
        self._say(f"{joined} owns {reading.owned(joined)}")
        self._feed.allow(1.0)
        self._until(self._has_done(1.0), "flights")
        ended_at = time.time()
        self._workers.leave()
        return Story(
            names=(*names, joined),
            killed=killed,
            killed_at=killed_at,
            left_behind=tuple(left_behind),
            joined=joined,
            joined_at=joined_at,
            began_at=began_at,
            ended_at=ended_at,
        )

    def _has_done(self, share: float) -> Callable[[Reading], bool]:
        return lambda reading: reading.done >= share * self._feed.total

    def _percent(self, reading: Reading) -> str:
        return f"{reading.done / self._feed.total:.0%}"

    def _until(self, condition: Callable[[Reading], bool], what: str) -> Reading:
        """Wait for a condition, and return the reading that meets it."""
        last, changed_at = None, time.monotonic()
        while True:
            self._workers.check()
            if self._feed.error is not None:
                raise self._feed.error
            reading = self._read()
            self._show(reading.done)
            if condition(reading):
                return reading
            now = time.monotonic()
            if reading != last:
                last, changed_at = reading, now
            if now - changed_at > _PATIENCE_S:
                raise StoppedFlowError(
                    f"nothing has happened for {_PATIENCE_S:.0f} s while the demo waited for "
                    f"{what}: see the logs of the workers"
                )
            time.sleep(_POLL_S)

    def _read(self) -> Reading:
        administration = self._administration
        group = administration.group()
        infos = dict(enumerate(administration.infos(range(administration.partitions()))))
        return Reading(
            done=sum(info.done for info in infos.values()),
            owners={
                partition: group.members[session].member.name
                for partition, session in group.owners.items()
                if session in group.members
            },
            lags={partition: _lag(info) for partition, info in infos.items()},
        )


def _share(reading: Reading, names: Sequence[str]) -> bool:
    """Whether these workers own all partitions, each at least one."""
    return len(reading.owners) == len(reading.lags) and set(reading.owners.values()) == set(names)


def _lag(info: PartitionInfo) -> int:
    return info.lag or 0
