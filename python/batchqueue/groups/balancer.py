"""`GroupBalancer`: how the partitions of a stream are spread over the members of a group."""

import threading
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Protocol

from batchqueue._words import counted
from batchqueue.exceptions import ConfigError
from batchqueue.groups.plan import plan

_NAMED = 5
"""Members that a message names; it counts the others."""


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
    """How partitions are spread over the members of a group. The static methods make one.

    Any member may be the one that plans: give the same balancer to all workers of a group.

    Example:
        >>> from batchqueue.groups.balancer import GroupBalancer
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

        The default; see `batchqueue.groups.plan.plan`. Partitions count alike while their load is
        unknown.
        """
        return GroupBalancer("load_weighted")

    @staticmethod
    def custom(assign: SupportsPlan) -> "GroupBalancer":
        """Use your own assignment.

        Args:
            assign: Takes the weight per partition (busy seconds per second, None if unknown), the
                name of the last owner per partition (None at first; it may have left), the
                capacity per living member, and the keyword `force` (False for a periodic run).
                Returns a dict that holds the name of a living member for each partition, or None to
                leave all partitions where they are. Another result makes `plan` raise ConfigError.
                A worker waits for it up to a quarter of its lease, and then spreads the partitions
                by load.
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
                that is not a living member. The message holds the value, the limit and the remedy.
        """
        if self.function is None:
            return plan(weights, last_owner, capacity, force=force)
        if not capacity:
            return {}
        partitions = sorted(weights.keys() | last_owner.keys())
        owners = {partition: last_owner.get(partition) for partition in partitions}
        try:
            # Copies, so that the function cannot change what its plan is checked against.
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
    """Calls a function on another thread, and waits for it up to a limit; one thread at a time."""

    def __init__(self, function: SupportsPlan, timeout_s: float) -> None:
        self._function = function
        self._timeout_s = timeout_s
        self._result: Future[Mapping[int, str] | None] | None = None

    def __call__(
        self,
        weights: dict[int, float | None],
        last_owner: dict[int, str | None],
        capacity: dict[str, float],
        /,
        *,
        force: bool,
    ) -> Mapping[int, str] | None:
        if self._result is not None and not self._result.done():
            raise TimeoutError("its last call has not returned yet")
        result: Future[Mapping[int, str] | None] = Future()

        def call() -> None:
            try:
                result.set_result(self._function(weights, last_owner, capacity, force=force))
            except BaseException as error:
                result.set_exception(error)

        self._result = result
        # A daemon: a function that hangs must not keep the process alive.
        threading.Thread(target=call, name="batchqueue-balancer", daemon=True).start()
        try:
            return result.result(self._timeout_s)
        except TimeoutError:
            if result.done():  # its own error, or a plan that came just now
                return result.result()
            raise TimeoutError(f"it has not returned after {self._timeout_s:g} s") from None


def bounded(balancer: GroupBalancer, timeout_s: float) -> GroupBalancer:
    """Return a balancer for a thread that others wait for: a function that hangs has failed.

    Args:
        balancer: The balancer.
        timeout_s: Seconds that its function has.
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
    """Return a plan that names each partition once and only living members, or raise.

    A partition without an owner, or whose owner has left, would never be handled.
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
