"""The gate: what signals do to a source. Pure.

A source with *credits* is held back by something else already. In one process that is the blocking
put into the bounded queue of its first stage and the limit on bytes; only `push` and foreign
producers have none.
"""

from typing import NamedTuple

from batchqueue.pipeline.backpressure.config import Gate
from batchqueue.pipeline.backpressure.signals import EffectivePressure
from batchqueue.pipeline.contract import Limit


class GateDecision(NamedTuple):
    """What a source may do until the next check."""

    may_plan: bool = True
    """Whether it may plan, or take what is pushed."""
    factor: float = 1.0
    """The share of its limit that it may plan."""
    cause: str | None = None
    """The stage that pauses it or slows it down; None if none does."""
    reason: str = ""
    """The reason of that stage."""

    def limited(self, limit: Limit) -> Limit:
        """Return a limit times the factor, at least one row and one byte.

        Example:
            >>> GateDecision(factor=0.3).limited(Limit(rows=2_000, bytes=1 << 20))
            Limit(rows=600, bytes=314572)
        """
        if self.factor == 1.0:
            return limit
        return Limit(*(max(1, int(most * self.factor)) for most in limit))


OPEN = GateDecision()
"""Nothing is held back."""


def decide(heard: EffectivePressure, gate: Gate, *, has_credits: bool) -> GateDecision:
    """Return what a source may do.

    Args:
        heard: The pressure of the stages after the source. Its own is not part of it: a source
            that is behind has to read more, not less.
        gate: The `gate` of the `BackpressureConfig`.
        has_credits: Whether something else holds the source back.

    Example:
        >>> heard = EffectivePressure(0.6, False, False, "", "totals")
        >>> decide(heard, "credit", has_credits=False).factor
        0.6
        >>> decide(heard, "credit", has_credits=True).factor
        1.0
    """
    if gate == "credit" and has_credits:
        return OPEN
    waits_for_release = gate == "signal" and heard.is_active
    pauses = heard.early_warning or heard.slow_down_factor == 0 or waits_for_release
    if not pauses and heard.slow_down_factor == 1:
        return OPEN
    return GateDecision(not pauses, heard.slow_down_factor, heard.cause, heard.reason)


def is_gated(gate: Gate, *, has_credits: bool) -> bool:
    """Return whether signals can slow a source down at all."""
    return gate != "credit" or not has_credits
