"""`plan`, a pure function: which member of a group owns which partition."""

import math
import threading
from bisect import bisect_left, insort
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Protocol

from batchqueue.base.checks import ABOVE_0, check_finite
from batchqueue.base.words import counted
from batchqueue.exceptions import ConfigError

_Held = tuple[float, int]
"""A partition that a member holds: its weight and its number."""

_FLOOR = 0.1
"""The smallest weight of a partition, as a share of the mean."""

_CLOSE = 0.05
"""Members whose load is this close to the mean, as a share of it, count as balanced."""

_SKIP_RATIO = 1.25
"""The largest load, relative to the smallest that any plan could reach, that needs no new plan."""

_WORTH = 0.1
"""The gain that justifies a step, as a share of the weight that changes hands, or a periodic plan,
as a share of the largest load. Noise of 3 % on equal weights never lowers the largest load that
much, and seldom makes a step worth it."""

_LEAST_CAPACITY = 1e-9
"""A smaller share of the largest capacity is raised to this, so that loads stay finite."""


def plan(
    weights: Mapping[int, float | None],
    last_owner: Mapping[int, str | None],
    capacity: Mapping[str, float],
    *,
    force: bool,
) -> dict[int, str]:
    """Give each partition an owner such that loads are even and few partitions move.

    The load of a member is the weight of its partitions divided by its capacity; the mean is the
    total weight divided by the total capacity.

    1. A partition whose last owner is a member stays there.
    2. Each other partition, heaviest first, goes to the member whose load with it is smallest:
       longest-processing-time-first (R. L. Graham, "Bounds on Multiprocessing Timing Anomalies",
       SIAM J. Appl. Math. 17, 1969; for unequal capacities, T. Gonzalez, O. H. Ibarra, S. Sahni,
       "Bounds for LPT Schedules on Uniform Processors", SIAM J. Comput. 6, 1977).
    3. Repair: the most loaded member gives a partition to the least loaded, or swaps one, while the
       larger of the two loads falls by at least a tenth of the weight that changes hands. Repair
       ends when all are within 5 % of the mean; with equal weights, when no step is left. A member
       that no step relieves, for instance because its only partition is heavier than the mean, is
       set aside, and the others are balanced among themselves.
    4. No member stays without a partition while another has two. With more members than
       partitions, the rest stand by.

    Equal weights and capacities give each member floor(partitions / members) partitions or one
    more, with the fewest moves. The same arguments give the same plan in every process, and
    planning again from a plan changes nothing.

    Ties go to the first name in sorted order, and to the lowest partition. 2,048 partitions and 64
    members take less than 100 ms of processor time, whatever has changed.

    Args:
        weights: Weight per partition, in any unit, for instance busy seconds per second. None, NaN,
            infinite and negative weights are unknown and count as the mean of the known ones.
            Smaller weights are raised to a tenth of that mean; all are equal if none above 0 is
            known.
        last_owner: Name of the last owner per partition, or None. It may have left the group. A
            partition that only one of `weights` and `last_owner` names also gets an owner.
        capacity: Capacity per member, in any unit, above 0. Leave out members that are about to
            leave.
        force: True after members have changed. False for a periodic run: owners stay while every
            partition has a living one and the largest load is at most 1.25 times the mean, or 1.25
            times the heaviest partition on the largest member; they also stay if the plan would
            lower the largest load by less than a tenth.

    Returns:
        Name of the owner per partition, by ascending partition. Empty if there are no members.

    Raises:
        ConfigError: A capacity is not a finite number above 0.

    Example:
        >>> from batchqueue.groups.plan import plan
        >>> owners = plan(dict.fromkeys(range(4)), {}, {"a": 1.0, "b": 1.0}, force=True)
        >>> owners
        {0: 'a', 1: 'b', 2: 'a', 3: 'b'}
        >>> plan(dict.fromkeys(range(4)), owners, {"a": 1.0, "b": 1.0, "c": 1.0}, force=True)
        {0: 'c', 1: 'b', 2: 'a', 3: 'b'}
    """
    _check_capacity(capacity)
    if not capacity:
        return {}
    members = sorted(capacity)
    partitions = sorted(weights.keys() | last_owner.keys())
    estimated = _estimated([weights.get(partition) for partition in partitions])
    number = {name: member for member, name in enumerate(members)}
    held: list[list[_Held]] = [[] for _ in members]
    orphans: list[_Held] = []
    for weight, partition in sorted(zip(estimated, partitions, strict=True)):
        owner = last_owner.get(partition)
        member = None if owner is None else number.get(owner)
        (orphans if member is None else held[member]).append((weight, partition))
    shares = _Shares(_relative([capacity[name] for name in members]), held)
    if force or orphans:
        shares.place(orphans)
        shares.even()
        return shares.owners(members)
    before, kept = shares.largest(), shares.owners(members)
    if before <= _SKIP_RATIO * max(shares.mean(range(len(members))), max(estimated, default=0.0)):
        return kept
    shares.even()
    return shares.owners(members) if shares.largest() <= (1 - _WORTH) * before else kept


def _check_capacity(capacity: Mapping[str, float]) -> None:
    for name, value in sorted(capacity.items()):
        remedy = "a finite number above 0, for instance 1.0"
        check_finite(f"the capacity of member {name!r}", value, ABOVE_0, give=remedy)


def _relative(capacity: list[float]) -> list[float]:
    largest = max(capacity)
    return [max(value / largest, _LEAST_CAPACITY) for value in capacity]


def _estimated(weights: list[float | None]) -> list[float]:
    """All weights, at most 1: unknown ones are estimated, and tiny ones raised to the floor."""
    # Relative to the largest, so that no sum overflows and equal weights are exactly 1.
    usable = [
        weight if weight is not None and 0 <= weight < math.inf else None for weight in weights
    ]
    known = [weight for weight in usable if weight is not None]
    largest = max(known, default=0.0)
    if largest == 0:
        return [1.0] * len(weights)
    mean = math.fsum(weight / largest for weight in known) / len(known)
    return [mean if weight is None else max(weight / largest, _FLOOR * mean) for weight in usable]


class _Shares:
    """The partitions of each member. A member is its position in the sorted names.

    Attributes:
        capacity: Per member, relative to the largest.
        held: Partitions per member, lightest first.
        total: Sum of the weights per member.
        load: `total / capacity` per member.
    """

    def __init__(self, capacity: list[float], held: list[list[_Held]]) -> None:
        self.capacity = capacity
        self.held = held
        self.members = range(len(capacity))
        self.weigh()

    def weigh(self) -> None:
        """Recompute the loads, so that they depend only on what is held, not on earlier steps."""
        self.total = [math.fsum(weight for weight, _ in held) for held in self.held]
        self.load = [total / size for total, size in zip(self.total, self.capacity, strict=True)]

    def largest(self) -> float:
        """Return the load of the most loaded member."""
        return max(self.load)

    def mean(self, members: Iterable[int]) -> float:
        """Return the load that each of `members` would have if their loads were equal."""
        chosen = list(members)
        total = math.fsum(self.total[member] for member in chosen)
        return total / math.fsum(self.capacity[member] for member in chosen)

    def owners(self, names: list[str]) -> dict[int, str]:
        """Return the name of the owner per partition."""
        pairs = zip(names, self.held, strict=True)
        return dict(sorted((partition, name) for name, held in pairs for _, partition in held))

    def place(self, orphans: list[_Held]) -> None:
        """Give each orphan an owner, heaviest first."""
        ordered = sorted(orphans, key=lambda orphan: (-orphan[0], orphan[1]))
        for left, orphan in zip(range(len(ordered), 0, -1), ordered, strict=True):
            idle = [member for member in self.members if not self.held[member]]
            # Keep the last orphans for members without any: moving others there costs more.
            choice = idle if left <= len(idle) else self.members
            self._put(orphan, self._lowest(choice, orphan[0]))

    def even(self) -> None:
        """Repair until no step is left; repairing the result again changes nothing.

        This ends: a step replaces the larger of two loads by smaller ones, so the loads, sorted in
        descending order, fall lexicographically. No step makes a member idle, so each idle member
        is given a partition at most once.
        """
        changed = True
        while changed:
            self.weigh()
            changed = self._repair()
            changed = self._fill() or changed

    def _repair(self) -> bool:
        """Take steps from the most to the least loaded member; return whether there were any."""
        weights = {weight for held in self.held for weight, _ in held}
        # Without measured loads, the numbers of partitions differ by at most one.
        close = _CLOSE if len(weights) > 1 else 0.0
        active = list(self.members)
        mean, changed = self.mean(active), False
        while len(active) > 1:
            giver = max(active, key=self.load.__getitem__)
            smallest = min(self.load[member] for member in active)
            if self.load[giver] <= (1 + close) * mean and smallest >= (1 - close) * mean:
                break
            others = (member for member in active if member != giver)
            taker = self._lowest(others, self.held[giver][0][0])
            step = self._best_step(giver, taker)
            if step is None:
                active.remove(giver)
                mean = self.mean(active)
                continue
            gives, takes = step
            self._move(gives, giver, taker)
            if takes is not None:
                self._move(takes, taker, giver)
            changed = True
        return changed

    def _best_step(self, giver: int, taker: int) -> tuple[_Held, _Held | None] | None:
        """Return the best partition to give, and the one to take in return if a swap is needed.

        A move that gains at least half of the conceivable gain is preferred to a swap, which takes
        two handovers.
        """
        have, wanted = self.held[giver], self.held[taker]
        load, size = self.load[giver], self.capacity[giver]
        both = size + self.capacity[taker]
        # The weight whose move makes the two loads equal.
        ideal = (self.total[giver] * self.capacity[taker] - self.total[taker] * size) / both
        enough = (load - self._larger(giver, taker, ideal)) / 2
        best: tuple[_Held, _Held | None] | None = None
        most = 0.0
        heavy = bisect_left(have, (ideal, -1))
        if len(have) > 1 or not wanted:
            for gives in have[max(heavy - 1, 0) : heavy + 1]:
                gain = load - self._larger(giver, taker, gives[0])
                if gain > most and gain >= _WORTH * gives[0] / size:
                    best, most = (gives, None), gain
        # Swapping a partition below the ideal shifts less than moving the heaviest of these.
        for gives in have[heavy:] if wanted else ():
            if most >= enough:
                break
            index = bisect_left(wanted, (gives[0] - ideal, -1))
            for takes in wanted[max(index - 1, 0) : index + 1]:
                gain = load - self._larger(giver, taker, gives[0] - takes[0])
                if gain > most and gain >= _WORTH * (gives[0] + takes[0]) / size:
                    best, most = (gives, takes), gain
        return best

    def _fill(self) -> bool:
        """Give idle members a partition from members with two; return whether there were any."""
        changed = False
        while True:
            idle = [member for member in self.members if not self.held[member]]
            givers = [member for member in self.members if len(self.held[member]) > 1]
            if not idle or not givers:
                return changed
            giver = max(givers, key=self.load.__getitem__)
            taker = self._lowest(idle, self.held[giver][0][0])
            loads = ((self._larger(giver, taker, held[0]), held) for held in self.held[giver])
            self._move(min(loads)[1], giver, taker)
            changed = True

    def _lowest(self, members: Iterable[int], weight: float) -> int:
        """Return the member whose load is smallest with `weight` added."""
        return min(
            members, key=lambda member: (self.total[member] + weight) / self.capacity[member]
        )

    def _larger(self, giver: int, taker: int, shift: float) -> float:
        """Return the larger of the two loads after moving `shift` from the giver to the taker."""
        gave = (self.total[giver] - shift) / self.capacity[giver]
        took = (self.total[taker] + shift) / self.capacity[taker]
        return max(gave, took)

    def _put(self, partition: _Held, member: int) -> None:
        insort(self.held[member], partition)
        self.total[member] += partition[0]
        self.load[member] = self.total[member] / self.capacity[member]

    def _move(self, partition: _Held, giver: int, taker: int) -> None:
        held = self.held[giver]
        del held[bisect_left(held, partition)]
        # Exactly 0 when nothing is left: a rounding error must not make an idle member look loaded.
        self.total[giver] = self.total[giver] - partition[0] if held else 0.0
        self.load[giver] = self.total[giver] / self.capacity[giver]
        self._put(partition, taker)


_NAMED = 5
"""The most members that a message names; it counts the others."""


class SupportsPlan(Protocol):
    """A function that plans as `batchqueue.groups.plan.plan` does."""

    def __call__(
        self,
        weights: dict[int, float | None],
        last_owner: dict[int, str | None],
        capacity: dict[str, float],
        /,
        *,
        force: bool,
    ) -> Mapping[int, str] | None:
        """Return the owner per partition, or None to leave all partitions where they are.

        Args:
            weights: Weight per partition, in busy seconds per second; None if unknown.
            last_owner: Name of the last owner per partition, or None. It may have left the group.
            capacity: Capacity per living member, above 0.
            force: True after members have changed, False for a periodic run.
        """


@dataclass(frozen=True)
class GroupBalancer:
    """How partitions are spread over the members of a group. The static methods create balancers.

    Any member may be the one that plans, so give the same balancer to all workers of a group.

    Example:
        >>> from batchqueue.groups.plan import GroupBalancer
        >>> def first_only(weights, last_owner, capacity, *, force):
        ...     return dict.fromkeys(weights, min(capacity))
        >>> balancer = GroupBalancer.custom(first_only)
        >>> balancer.plan({0: None, 1: 0.5}, {}, {"a": 1.0, "b": 1.0}, force=True)
        {0: 'a', 1: 'a'}
    """

    kind: str
    function: SupportsPlan | None = None

    @staticmethod
    def load_weighted() -> "GroupBalancer":
        """Weigh a partition by the time that its handlers are busy, and by its lag.

        This is the default; see `batchqueue.groups.plan.plan`. Partitions count as equal while
        their load is unknown.
        """
        return GroupBalancer("load_weighted")

    @staticmethod
    def custom(assign: SupportsPlan) -> "GroupBalancer":
        """Use your own assignment.

        Args:
            assign: Takes the weight per partition (busy seconds per second, None if unknown), the
                name of the last owner per partition (None at first; it may have left), the
                capacity per living member, and the keyword `force` (False for a periodic run).
                Returns a dict with the name of a living member for each partition, or None to leave
                all partitions where they are. Any other result makes `plan` raise ConfigError.
                A worker waits for it for at most a quarter of its lease, and then spreads the
                partitions by load.
                A balancer pickles if `assign` does, like any function of a module.

        Raises:
            ConfigError: `assign` is not callable.
        """
        if not callable(assign):
            raise ConfigError(f"GroupBalancer.custom: {assign!r} is not callable; give a function")
        return GroupBalancer("custom", assign)

    def plan(
        self,
        weights: Mapping[int, float | None],
        last_owner: Mapping[int, str | None],
        capacity: Mapping[str, float],
        *,
        force: bool,
    ) -> dict[int, str]:
        """Return the wanted owner per partition, by ascending partition.

        Args:
            weights: Weight per partition, in busy seconds per second; None if unknown.
            last_owner: Name of the last owner per partition, or None. It may have left the group.
                A partition that only one of `weights` and `last_owner` names is planned as well.
            capacity: Capacity per living member, above 0. Without members the plan is empty, and a
                custom function is not called.
            force: True after members have changed, False for a periodic run.

        Raises:
            ConfigError: `load_weighted` got a capacity that is not a finite number above 0. A
                custom function raised, left out a partition, or named an unknown one or an owner
                that is not a living member. The message has the value, the limit and the remedy.
        """
        if self.function is None:
            return plan(weights, last_owner, capacity, force=force)
        if not capacity:
            return {}
        partitions = sorted(weights.keys() | last_owner.keys())
        owners = {partition: last_owner.get(partition) for partition in partitions}
        try:
            # Copies, so that the function cannot change the data that its plan is checked against.
            planned = self.function(
                {partition: weights.get(partition) for partition in partitions},
                dict(owners),
                dict(capacity),
                force=force,
            )
        except Exception as error:
            raise ConfigError(
                f"the custom balancer raised {error!r}; fix the function, or return None to leave "
                "all partitions where they are"
            ) from error
        return _kept(owners, capacity) if planned is None else _checked(planned, owners, capacity)


class _BoundedFunction:
    """Calls a function on another thread, one at a time, and waits for it up to a limit."""

    def __init__(self, function: SupportsPlan, timeout_s: float) -> None:
        self._function = function
        self._timeout_s = timeout_s
        self._result: Future[Mapping[int, str] | None] | None = None

    def __call__(self, *given: Any, force: bool) -> Mapping[int, str] | None:
        if self._result is not None and not self._result.done():
            raise TimeoutError("its last call has not returned yet")
        result: Future[Mapping[int, str] | None] = Future()

        def call() -> None:
            try:
                result.set_result(self._function(*given, force=force))
            except BaseException as error:
                result.set_exception(error)

        self._result = result
        # A daemon, because a function that hangs must not keep the process alive.
        threading.Thread(target=call, name="batchqueue-balancer", daemon=True).start()
        try:
            return result.result(self._timeout_s)
        except TimeoutError:
            if result.done():  # the function's own error, or a plan that came just now
                return result.result()
            raise TimeoutError(f"it has not returned after {self._timeout_s:g} s") from None


def bounded(balancer: GroupBalancer, timeout_s: float) -> GroupBalancer:
    """Return a balancer that limits the time of its function: one that hangs has failed.

    Args:
        balancer: The balancer.
        timeout_s: The seconds that its function has.
    """
    if balancer.function is None:
        return balancer
    return GroupBalancer(balancer.kind, _BoundedFunction(balancer.function, timeout_s))


def _kept(owners: Mapping[int, str | None], capacity: Mapping[str, float]) -> dict[int, str]:
    kept = {
        partition: owner
        for partition, owner in owners.items()
        if owner is not None and owner in capacity
    }
    orphans = [partition for partition in owners if partition not in kept]
    if orphans:
        raise ConfigError(
            f"the custom balancer returned None, and {len(orphans)} of {len(owners)} partitions "
            f"have no living owner, for instance {orphans[0]}; give one member per partition"
        )
    return kept


def _checked(
    planned: Any, owners: Mapping[int, str | None], capacity: Mapping[str, float]
) -> dict[int, str]:
    """Return a plan that names each partition once, and only living members; raise otherwise.

    Without this, a partition whose owner is missing or has left would never be handled.
    """
    if not isinstance(planned, Mapping):
        raise ConfigError(
            f"the custom balancer returned {planned!r}; give a dict with one member per partition, "
            "or None"
        )
    for partition in planned:
        if partition not in owners:
            raise ConfigError(
                f"the plan of the custom balancer has partition {partition!r}, and the stream has "
                f"{counted(len(owners), 'partition')}, {_some(owners)}; give one member for each "
                "of these"
            )
    for partition in owners:
        if partition not in planned:
            raise ConfigError(
                f"the plan of the custom balancer has {counted(len(planned), 'entry', 'entries')} "
                f"and the stream {counted(len(owners), 'partition')}, and partition {partition} is "
                "left out; give one member per partition"
            )
        owner = planned[partition]
        if not isinstance(owner, str) or owner not in capacity:
            raise ConfigError(
                f"the plan of the custom balancer gives partition {partition} to {owner!r}, and "
                f"the living members are {_some(sorted(capacity))}; give one of these"
            )
    return {partition: planned[partition] for partition in owners}


def _some(values: Iterable[object]) -> str:
    names = [repr(value) for value in values]
    more = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {more} more" if more > 0 else "")
