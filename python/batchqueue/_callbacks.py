"""Functions that the core calls: log lines, tracebacks, custom balancers."""

import logging
import operator
import traceback
from collections.abc import Callable
from typing import Any

_log = logging.getLogger("batchqueue")


def warn(line: str) -> None:
    """Log a line of the core that may call for action."""
    _log.warning("%s", line)


def inform(line: str) -> None:
    """Log a line of the core that reports an expected event."""
    _log.info("%s", line)


def describe_error(error: BaseException) -> str:
    """Return an exception with its traceback, for the log."""
    return "".join(traceback.format_exception(error)).rstrip()


def assign(
    function: Callable[[list[float], list[int], int], Any],
    load: list[float],
    owner: list[int],
    threads: int,
) -> list[int] | str | None:
    """Call a custom balancer.

    Returns:
        Its plan as plain ints, None to leave all partitions where they are, or a text that says why
        the plan is invalid.
    """
    plan = function(load, owner, threads)
    if plan is None:
        return None
    try:
        # Clamped to what fits into the core's integers: the core rejects any invalid thread number.
        return [max(-1, min(operator.index(thread), 1 << 31)) for thread in plan]
    except TypeError:
        return (
            f"the custom balancer returned {plan!r}: "
            "give a list with one drain thread per partition, or None"
        )
