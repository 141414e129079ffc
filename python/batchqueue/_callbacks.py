"""Functions that the core calls: log lines, tracebacks, balancers, failed parts, dead letters."""

import logging
import operator
import traceback
from collections.abc import Callable
from itertools import accumulate
from typing import Any

from batchqueue.dead_letters import DeadLetter
from batchqueue.exceptions import BatchFailed, ConfigError

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


def add_dead_letters(  # noqa: PLR0917 - the core passes them by position
    letters: list[DeadLetter[Any]],
    items: list[Any],
    types: list[type | str],
    error: BaseException,
    attempts: int,
    queue: str,
) -> None:
    """Append the items of one call that failed for good."""
    letters += [
        DeadLetter(item, error, attempts, queue, item_type)
        for item, item_type in zip(items, types, strict=True)
    ]


def failed_positions(
    error: BatchFailed,
    batch: list[Any],
    original: list[Any] | None,
    count: int,
    sizes: list[int] | None,
) -> list[int]:
    """Return the positions in a batch of what failed, in ascending order.

    Args:
        error: What the handler raised or returned.
        batch: The list that the handler got, as it left it.
        original: The same as the handler got it, if the queue still has it.
        count: The items of the list when the handler got it.
        sizes: The rows of each item, or None for objects.

    Raises:
        ConfigError: The error names something that is not in the batch, or names it twice, or the
            handler has changed the length of its list.
    """
    if len(batch) != count:
        raise ConfigError(
            f"BatchFailed is about a list that had {count} items and has {len(batch)} now; leave "
            "the list as long as it was"
        )
    given = batch if original is None else original
    named = error.indexes or []
    most = count if sizes is None else sum(sizes)
    beyond = next((number for number in named if number >= most), None)
    if beyond is not None:
        raise ConfigError(f"BatchFailed has the index {beyond}; give 0 to {most - 1}")
    if len(set(named)) < len(named):
        raise ConfigError("BatchFailed has an index twice; give each once")
    # The handler may have sorted its list.
    if sizes is None:
        items = [batch[at] for at in named] if error.items is None else error.items
        return sorted(_places(items, given))
    starts = list(accumulate(sizes, initial=0))
    blocks = _places(batch if error.items is None else error.items, given)
    rows = [row for block in blocks for row in range(starts[block], starts[block + 1])]
    return sorted(rows if error.items is not None else (rows[at] for at in named))


def _places(items: list[Any], batch: list[Any]) -> list[int]:
    """Return the positions of objects in a batch, by identity."""
    places: dict[int, list[int]] = {}
    for position in range(len(batch) - 1, -1, -1):
        places.setdefault(id(batch[position]), []).append(position)
    positions = []
    for item in items:
        left = places.get(id(item))
        if not left:
            raise ConfigError(
                f"BatchFailed has an item of class {type(item).__qualname__} that is not in the "
                "batch, or not that often; give objects of the list itself, or indexes"
            )
        positions.append(left.pop())
    return positions
