"""Waits that end, and how long they may take."""

import threading
import time

WAIT_S = 30.0
"""How long any wait may take before its test fails. Never reached unless something is wrong."""


HANG_S = 150
"""How long a test, or one example of a long one, may take before it ends the run with the stacks of all threads."""


def eventually(condition, what="the condition"):
    """Poll until `condition()` is true; fail after WAIT_S."""
    deadline = time.monotonic() + WAIT_S
    pause = threading.Event()
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not come true within {WAIT_S} s"
        pause.wait(0.002)
