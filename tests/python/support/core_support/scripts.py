"""Scripts that run in a new interpreter: exits, forks, signals."""

import os
import signal
import subprocess
import sys
import textwrap

SCRIPT_S = 200.0
"""How long a new interpreter may run: less than a test, so that a script that hangs is shown."""

STACKS_S = 30.0
"""How long it may take to print its stacks."""


FORKS = {
    "python": "fork_child = os.fork",
    "c": """
# A thread that waits for the interpreter demands it after this interval, and a child that inherits
# the demand waits for a thread that does not exist there. Set before there are other threads: one
# that already waits keeps the interval that it began with.
sys.setswitchinterval(1_000)

def fork_in_c():
    return ctypes.PyDLL(None).fork()

def fork_child():
    pid = fork_in_c()
    if pid == 0:
        BatchQueueManager.names()
    return pid
""",
}
"""How a script forks: with the hooks of Python, or without them, as a host written in C does. The
child of such a host may hang if it releases the interpreter before it uses the package, which runs
the hooks then: its lock still knows the threads of the parent."""

SCRIPT_HEADER = """
import atexit, ctypes, gc, os, signal, sys, threading, time
import faulthandler
faulthandler.enable()
# Processes that run in the background may have been started with Ctrl-C ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)
from batchqueue import *

def config(threads=1, **settings):
    settings.setdefault("max_idle_ms", 60_000)
    settings.setdefault("partitions", PartitionPolicy.fixed(threads))
    return BatchQueueConfig(threads=ThreadPolicy.fixed(threads), **settings)

def eventually(condition):
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.002)

def say(*words):
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())
"""


def run_script(code, python=sys.executable, header=SCRIPT_HEADER):
    """Runs a script in a new interpreter.

    Returns its exit code, the lines of its output, and its standard error.
    """
    script = header + textwrap.dedent(code)
    process = subprocess.Popen(
        [python, "-c", script],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        out, err = process.communicate(timeout=SCRIPT_S)
    except subprocess.TimeoutExpired:
        # Also its forked children; SIGABRT makes each of them print the stacks of its threads.
        os.killpg(process.pid, signal.SIGABRT)
        try:
            out, err = process.communicate(timeout=STACKS_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            out, err = process.communicate(timeout=STACKS_S)
        raise AssertionError(f"the script hangs; so far:\n{out}\n{err}") from None
    return process.returncode, out.splitlines(), err
