"""Signals: how the pressure of a stage reaches the stages and sources before it.

Pure. The effective pressure of a stage is the highest of all stages from it to the end. So a source
is informed of its last stage at the next check, before the stages between them are full.
"""

from collections.abc import Iterable, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from typing import NamedTuple

from batchqueue.pipeline.errors import GraphError


class BackpressureSignal(NamedTuple):
    """Backpressure is active at a stage, or at one after it."""

    stage: str
    """The stage that is to slow down what comes before it."""
    slow_down_factor: float
    """From 0.0, stop, to 1.0, as fast as possible."""
    reason: str
    """Why, for instance `lag 6000 > 5000, workers 98 % busy`: the readings of `cause`."""
    timestamp: float
    """When it was checked, in seconds since 1970."""
    cause: str
    """The stage where it began."""


class StagePressure(NamedTuple):
    """What a stage says about itself."""

    slow_down_factor: float
    is_active: bool
    early_warning: bool
    reason: str


class EffectivePressure(NamedTuple):
    """What is true of a stage and all stages after it."""

    slow_down_factor: float = 1.0
    """The least of all."""
    is_active: bool = False
    """Whether backpressure is active at any of them."""
    early_warning: bool = False
    """Whether any of them warns."""
    reason: str = ""
    """The reason of `cause`; empty if there is none."""
    cause: str | None = None
    """Where it began: of equally slow stages the last one, because it holds up those before it.
    None if nothing slows down."""
    missing: frozenset[str] = frozenset()
    """Those whose pressure is not known; they count as 1.0."""

    @property
    def asks_to_pause(self) -> bool:
        """Whether a source should not produce, because backpressure is active or near."""
        return self.is_active or self.early_warning


class Propagated(NamedTuple):
    """The pressure at one stage of a graph."""

    heard: EffectivePressure
    """That of the stages after it. It is what a source has to follow."""
    effective: EffectivePressure
    """The same with its own."""


def downstream_first(downstream: Mapping[str, Sequence[str]]) -> tuple[str, ...]:
    """Return the stages of a graph, each behind those that follow it.

    Args:
        downstream: The names of the stages that follow each stage. Those that are not a key have
            no stage after them.

    Raises:
        GraphError: A stage follows itself.

    Example:
        >>> downstream_first({"orders": ["totals"], "totals": ["store"]})
        ('store', 'totals', 'orders')
    """
    try:
        return tuple(TopologicalSorter(downstream).static_order())
    except CycleError as error:
        circle = " -> ".join(map(repr, reversed(error.args[1])))
        raise GraphError(
            f"the stages {circle} make a circle; let data flow in one direction"
        ) from error


def propagate(
    downstream: Mapping[str, Sequence[str]],
    own: Mapping[str, StagePressure],
    order: Sequence[str] | None = None,
) -> dict[str, Propagated]:
    """Return the pressure at each stage of a graph.

    Args:
        downstream: The names of the stages that follow each stage.
        own: What each stage says about itself. A stage that is missing counts as 1.0 and is named
            in `missing`.
        order: What `downstream_first` returned. Default: None, it is called.

    Raises:
        GraphError: A stage follows itself.

    Example:
        >>> slow = StagePressure(0.0, True, True, "lag 6000 > 5000")
        >>> fast = StagePressure(1.0, False, False, "")
        >>> graph = {"a": ["b"], "b": ["c"]}
        >>> propagate(graph, {"a": fast, "b": fast, "c": slow})["a"].effective.cause
        'c'
    """
    found: dict[str, Propagated] = {}
    for stage in downstream_first(downstream) if order is None else order:
        heard = _combined(found[each].effective for each in downstream.get(stage, ()))
        found[stage] = Propagated(heard, _combined((heard, _own(stage, own.get(stage)))))
    return found


def _own(stage: str, pressure: StagePressure | None) -> EffectivePressure:
    if pressure is None:
        return EffectivePressure(missing=frozenset((stage,)))
    slows = pressure.is_active or pressure.early_warning or pressure.slow_down_factor < 1
    if not slows:
        return EffectivePressure()
    return EffectivePressure(*pressure, stage, frozenset())


def _combined(pressures: Iterable[EffectivePressure]) -> EffectivePressure:
    """The highest pressure; of several that are equal the first gives reason and cause."""
    combined = list(pressures)
    if not combined:
        return EffectivePressure()
    # Active first, so that a signal names a stage where backpressure is active.
    first = min(combined, key=_rank)
    return EffectivePressure(
        slow_down_factor=min(each.slow_down_factor for each in combined),
        is_active=first.is_active,
        early_warning=any(each.early_warning for each in combined),
        reason=first.reason,
        cause=first.cause,
        missing=frozenset().union(*(each.missing for each in combined)),
    )


def _rank(pressure: EffectivePressure) -> tuple[bool, float, bool]:
    return not pressure.is_active, pressure.slow_down_factor, not pressure.early_warning
