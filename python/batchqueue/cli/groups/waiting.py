"""`wait_until`: wait for what other processes do."""

import time
from collections.abc import Callable

_POLL_S = 0.2


def wait_until(condition: Callable[[], bool], timeout_s: float | None = None) -> bool:
    """Check a condition until it holds, and return whether it did.

    Args:
        condition: Is called five times per second.
        timeout_s: The longest wait. Default: None, no limit.
    """
    end = None if timeout_s is None else time.monotonic() + timeout_s
    while not condition():
        if end is not None and time.monotonic() >= end:
            return False
        time.sleep(_POLL_S)
    return True
