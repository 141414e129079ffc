"""`FlowLog`: what the log says of backpressure, pauses, skew and thresholds that are too low."""

import logging
import math
from collections.abc import Callable

from batchqueue.pipeline.backpressure.change_log import ChangeLog
from batchqueue.pipeline.backpressure.config import BackpressureConfig
from batchqueue.pipeline.backpressure.gate import GateDecision
from batchqueue.pipeline.backpressure.pressure import readings_of
from batchqueue.pipeline.backpressure.stage_flow import StageFlow

_THRESHOLDS = ("lag_threshold", "queue_size_threshold")


class FlowLog:
    """Writes a line when something has changed, at most one a minute of each kind and stage."""

    def __init__(self, config: BackpressureConfig, clock: Callable[[], float]) -> None:
        """Begin with nothing logged."""
        self._config = config
        self._changes = ChangeLog(clock)
        self._advised: dict[str, int] = {}

    def stage(self, flow: StageFlow, *, is_gating: bool) -> None:
        """Take note of a stage after a reading.

        Args:
            flow: The stage.
            is_gating: Whether its signal can slow a source down.
        """
        name, is_active, hot = flow.stage.name, flow.last.pressure.is_active, flow.skew.hot
        # A full queue that slows no source down by the signal is how a slow sink looks.
        level = logging.WARNING if is_active and is_gating else logging.INFO
        self._changes.note((name, "active"), is_active, False, level, lambda: _activity(flow))
        level = logging.WARNING if hot else logging.INFO
        self._changes.note((name, "skew"), hot, frozenset(), level, flow.skew.line)
        if is_gating and flow.last.reading.rate_per_s:
            self._advise(name, flow.last.reading.rate_per_s)

    def source(self, name: str, decision: GateDecision) -> None:
        """Take note of what a source may do."""
        self._changes.note(
            (name, "pause"), decision.may_plan, True, logging.INFO, lambda: _pause(name, decision)
        )

    def _advise(self, name: str, rate_per_s: float) -> None:
        """Name the thresholds that a stage passes between two checks."""
        needed = 2 * rate_per_s * self._config.check_interval_s
        low = [each for each in _THRESHOLDS if getattr(self._config, each) < needed]
        if low:
            # Rounded up, so that a rate that varies a little gives the same advice.
            wanted = max(rounded_up(needed), self._advised.get(name, 0))
            self._advised[name] = wanted
        self._changes.note(
            (name, "thresholds"),
            self._advised.get(name, 0),
            0,
            logging.WARNING,
            lambda: self._advice(name, rate_per_s, low),
        )

    def _advice(self, name: str, rate_per_s: float, low: list[str]) -> str:
        config, wanted = self._config, self._advised[name]
        given = ", ".join(f"{each} {getattr(config, each)}" for each in low)
        setting = ", ".join(f"{each}={wanted}" for each in low)
        return (
            f"Backpressure of {name}: {given} is less than {name} completes in two checks "
            f"({rate_per_s:.0f} rows/s, every {config.check_interval_s} s), so it would run dry "
            f"while its sources pause; set {setting}"
        )


def rounded_up(rows: float) -> int:
    """Return a number of rows, rounded up to two digits.

    Example:
        >>> rounded_up(20_000.0), rounded_up(20_001.0), rounded_up(7.2)
        (20000, 21000, 8)
    """
    whole = math.ceil(rows)
    unit: int = 10 ** max(0, len(str(whole)) - 2)
    return -(-whole // unit) * unit


def _activity(flow: StageFlow) -> str:
    name, pressure = flow.stage.name, flow.last.pressure
    if pressure.is_active:
        return f"Backpressure activated: {name} ({flow.own().reason})"
    return f"Backpressure deactivated: {name} ({readings_of(pressure)})"


def _pause(name: str, decision: GateDecision) -> str:
    if decision.may_plan:
        return f"resuming {name}"
    return f"pausing {name}: {decision.cause} ({decision.reason})"
