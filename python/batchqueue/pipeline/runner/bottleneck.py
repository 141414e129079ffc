"""Which stage holds up the others."""

from collections.abc import Sequence

from batchqueue.pipeline.runner.stage import Stage

_HELD_UP = 0.05
"""The share of the last seconds that has to be spent on waiting for room, to be named."""


def root(outlets: Sequence[Stage]) -> str | None:
    """Return the last of the stages that wait for each other, from these on.

    Args:
        outlets: The stages that a source or stage feeds.

    Returns:
        The name of the stage; None if there was hardly a wait for any of these.
    """
    share, slowest = max(
        ((outlet.waited_for.share, outlet) for outlet in outlets),
        key=lambda pair: pair[0],
        default=(0.0, None),
    )
    if slowest is None or share < _HELD_UP:
        return None
    return root(slowest.outlets) or slowest.name


def holder(stages: Sequence[Stage]) -> str | None:
    """Return the stage that a cut would wait for, if it began now; None if all are empty."""
    for stage in reversed(stages):
        if stage.gate.held().rows:
            return root(stage.outlets) or stage.name
    return None
