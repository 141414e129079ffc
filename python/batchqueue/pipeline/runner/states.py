"""The states of a stage: three machines, each with a table of the allowed steps.

A machine *settles* in the last state of each `advance`, and passes through those before it. So a
check that finds nothing new leaves `since` and `count` as they are.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Generic, TypeVar

from batchqueue.pipeline.contract import StateError


class PartitionState(Enum):
    """The life cycle of the partitions of a stage, from its start to its end."""

    INITIALIZING = "initializing"
    COMPUTING_PARTITION_COUNT = "computing_partition_count"
    SINGLE_PARTITION = "single_partition"
    MULTI_PARTITION = "multi_partition"
    QUEUE_CREATED = "queue_created"
    WORKERS_SPAWNING = "workers_spawning"
    RUNNING = "running"
    REBALANCING = "rebalancing"
    STOPPING = "stopping"
    STOPPED = "stopped"


class BackpressureState(Enum):
    """How a stage reacts to pressure.

    It settles in `normal`. Above a threshold it settles in `source_paused` if a source before the
    stage is paused, in `monitoring` if none is, and in `backpressure_active` if nothing precedes
    the stage. Below the threshold it waits in `monitoring` until it is released.
    """

    NORMAL = "normal"
    CHECKING = "checking"
    BACKPRESSURE_ACTIVE = "backpressure_active"
    PROPAGATING = "propagating"
    SOURCE_PAUSED = "source_paused"
    MONITORING = "monitoring"


class SkewState(Enum):
    """How a stage reacts to skew.

    It settles in `no_skew`, in `mitigating` while partitions are hot, and in `monitoring` before
    the first reading and while no lag is known.
    """

    MONITORING = "monitoring"
    COLLECTING_METRICS = "collecting_metrics"
    CALCULATING_LAG = "calculating_lag"
    NO_SKEW = "no_skew"
    SKEW_DETECTED = "skew_detected"
    LOGGING_ALERT = "logging_alert"
    MITIGATING = "mitigating"


State = TypeVar("State", bound=Enum)
Steps = Mapping[State, frozenset[State]]

_P, _B, _S = PartitionState, BackpressureState, SkewState


def _steps(table: dict[State, tuple[State, ...]]) -> Steps[State]:
    return {state: frozenset(following) for state, following in table.items()}


PARTITION_STEPS: Steps[PartitionState] = _steps(
    {
        _P.INITIALIZING: (_P.COMPUTING_PARTITION_COUNT, _P.STOPPING),
        _P.COMPUTING_PARTITION_COUNT: (_P.SINGLE_PARTITION, _P.MULTI_PARTITION, _P.STOPPING),
        _P.SINGLE_PARTITION: (_P.QUEUE_CREATED, _P.STOPPING),
        _P.MULTI_PARTITION: (_P.QUEUE_CREATED, _P.STOPPING),
        _P.QUEUE_CREATED: (_P.WORKERS_SPAWNING, _P.STOPPING),
        _P.WORKERS_SPAWNING: (_P.RUNNING, _P.STOPPING),
        _P.RUNNING: (_P.REBALANCING, _P.STOPPING),
        _P.REBALANCING: (_P.RUNNING, _P.STOPPING),
        _P.STOPPING: (_P.STOPPED,),
        _P.STOPPED: (),
    }
)
"""A stage may be stopped in any state, even before it runs."""

BACKPRESSURE_STEPS: Steps[BackpressureState] = _steps(
    {
        _B.NORMAL: (_B.CHECKING,),
        # To monitoring: below the threshold, but not yet below the release ratio.
        _B.CHECKING: (_B.NORMAL, _B.BACKPRESSURE_ACTIVE, _B.MONITORING),
        # To normal: nothing precedes the stage, so nothing was propagated, and it is released.
        _B.BACKPRESSURE_ACTIVE: (_B.PROPAGATING, _B.NORMAL),
        # To monitoring: no source pauses, because none precedes the stage or other means hold it
        # back.
        _B.PROPAGATING: (_B.SOURCE_PAUSED, _B.MONITORING),
        _B.SOURCE_PAUSED: (_B.MONITORING,),
        _B.MONITORING: (_B.CHECKING,),
    }
)

SKEW_STEPS: Steps[SkewState] = _steps(
    {
        _S.MONITORING: (_S.COLLECTING_METRICS,),
        # To monitoring: no lag is known.
        _S.COLLECTING_METRICS: (_S.CALCULATING_LAG, _S.MONITORING),
        _S.CALCULATING_LAG: (_S.NO_SKEW, _S.SKEW_DETECTED),
        _S.NO_SKEW: (_S.MONITORING,),
        _S.SKEW_DETECTED: (_S.LOGGING_ALERT,),
        _S.LOGGING_ALERT: (_S.MITIGATING,),
        _S.MITIGATING: (_S.MONITORING,),
    }
)


@dataclass(frozen=True)
class Settled(Generic[State]):
    """The state of a machine at one moment."""

    state: State
    since: float
    """When it settled there, by the clock of the machine."""
    count: int
    """How many times it has settled there."""


class StateMachine(Generic[State]):
    """A state, and the steps that lead from it.

    One thread advances it. Others may read `settled` meanwhile, whose fields are consistent.

    Attributes:
        name: What it is the state of.
        path: The states of the last `advance`, beginning with the one before it.

    Example:
        >>> machine = StateMachine("skew of totals", SkewState.MONITORING, SKEW_STEPS)
        >>> machine.advance(SkewState.COLLECTING_METRICS, SkewState.MONITORING)
        >>> machine.state, machine.settled.count
        (<SkewState.MONITORING: 'monitoring'>, 1)
    """

    def __init__(
        self,
        name: str,
        first: State,
        steps: Steps[State],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Settle in the first state.

        Args:
            name: What it is the state of, for errors, for instance "backpressure of totals".
            first: The first state.
            steps: The states that may follow each state.
            clock: Returns the time, in seconds. Default: `time.monotonic`.
        """
        self.name = name
        self._steps = steps
        self._clock = clock
        self._counts = {first: 1}
        self._settled = Settled(first, clock(), 1)
        self.path: tuple[State, ...] = (first,)

    @property
    def settled(self) -> Settled[State]:
        """The state, when it settled there, and how many times it has."""
        return self._settled

    @property
    def state(self) -> State:
        """The state."""
        return self._settled.state

    def advance(self, *states: State) -> None:
        """Pass through states and settle in the last of them.

        Args:
            states: At least one. If the last one is the current state, `since` and `count` stay
                unchanged.

        Raises:
            StateError: A step is not in the table. The machine stays where it was.
        """
        path = (self.state, *states)
        for state, following in zip(path, states, strict=False):
            self._check(state, following)
        self.path = path
        last = path[-1]
        if last != self.state:
            count = self._counts[last] = self._counts.get(last, 0) + 1
            self._settled = Settled(last, self._clock(), count)

    def _check(self, state: State, following: State) -> None:
        allowed = self._steps[state]
        if following not in allowed:
            names = " or ".join(sorted(each.value for each in allowed)) or "nothing, it has ended"
            raise StateError(
                f"{self.name}: {following.value} does not follow {state.value}; allowed is {names}"
            )

    def __repr__(self) -> str:
        """Return what it is the state of, and the state."""
        return f"<{self.name}: {self.state.value}>"
