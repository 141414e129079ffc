"""Repeats the start of a query whose Python process came too late; never anything else.

Spark gives such a process 10 s to connect, which is not enough on a machine that does much more.
"""

from collections.abc import Callable
from typing import TypeVar

from spark_support.waits import wait_until

TOO_LATE = "Python worker failed to connect back"
_ATTEMPTS = 5

Result = TypeVar("Result")


def retried(act: Callable[[], Result]) -> Result:
    """Do something that may fail before its first epoch, and return its result."""
    for _ in range(_ATTEMPTS - 1):
        try:
            return act()
        except Exception as error:
            if TOO_LATE not in str(error):
                raise
    return act()


def started(start: Callable[[], Result], is_up: Callable[[], object]) -> Result:
    """Start a run, and wait until its reader is up."""

    def act() -> Result:
        run = start()
        wait_until(lambda: is_up() or not run.isActive, "a reader")
        if not run.isActive and run.exception() is not None:
            run.awaitTermination()
        return run

    return retried(act)
