"""Waits that end, and how long they may take."""

import threading
import time

WAIT_S = 30.0
"""The limit of any wait before its test fails. Reached only if something is wrong."""


HANG_S = 150
"""The limit of a test, or of one example of a long one, before the run ends with all stacks."""


def eventually(condition, what="the condition", limit_s=WAIT_S):
    """Polls until `condition()` is true; fails after `limit_s`."""
    deadline = time.monotonic() + limit_s
    pause = threading.Event()
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not come true within {limit_s} s"
        pause.wait(0.002)
