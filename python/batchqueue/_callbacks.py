"""What the core asks Python to do for it."""

import logging
import operator
import traceback
from collections.abc import Callable
from typing import Any

_log = logging.getLogger("batchqueue")


def warn(line: str) -> None:
    """Log a line of the core that may need a hand."""
    _log.warning("%s", line)


def inform(line: str) -> None:
    """Log a line of the core that reports something expected."""
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
    """Ask a custom balancer; return its plan as plain ints, None to skip, or what is wrong with it."""
    plan = function(load, owner, threads)
    if plan is None:
        return None
    try:
        # A number that no thread can have is refused by the core, whatever its size.
        return [max(-1, min(operator.index(thread), 1 << 31)) for thread in plan]
    except TypeError:
        return f"the custom balancer returned {plan!r}: give a list with one drain thread per partition, or None"
