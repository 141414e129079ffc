"""What the tests of the queue share: settings, handlers that can be held, and waits that end."""

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

from batchqueue import BatchQueueConfig, PartitionPolicy, ThreadPolicy

WAIT_S = 30.0
"""How long any wait may take before its test fails. Never reached unless something is wrong."""

HANG_S = 150
"""How long a test, or one example of a long one, may take before it ends the run with the stacks of all threads."""

SCRIPT_S = 60.0
"""How long an interpreter of its own may run."""

TYPES = [type(f"Item{index}", (int,), {}) for index in range(5)]
"""Numbers of five classes, for queues with several handlers."""


def config(threads=1, partitions=None, **settings):
    """Settings of a queue that sleeps for a minute when idle, so that a lost wake-up fails its test."""
    settings.setdefault("min_idle_ms", 1)
    settings.setdefault("max_idle_ms", 60_000)
    settings.setdefault("shutdown_timeout", WAIT_S)
    if partitions is None:
        partitions = PartitionPolicy.fixed(threads)
    elif isinstance(partitions, int):
        partitions = PartitionPolicy.fixed(partitions)
    return BatchQueueConfig(threads=ThreadPolicy.fixed(threads), partitions=partitions, **settings)


def eventually(condition, what="the condition"):
    """Poll until `condition()` is true; fail after WAIT_S."""
    deadline = time.monotonic() + WAIT_S
    pause = threading.Event()
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not come true within {WAIT_S} s"
        pause.wait(0.002)


def assert_conserved(stats):
    """The conservation law, of a queue at rest."""
    assert stats.attempts == stats.produced + stats.refused, stats
    assert stats.produced == stats.consumed + stats.failed + stats.unhandled + stats.abandoned, (
        stats
    )
    assert stats.in_flight == 0, stats
    assert stats.total_used == 0, stats


def run_threads(*bodies):
    """Run the functions at once, one thread each; wait for all; raise the first error."""
    errors = []
    start = threading.Barrier(len(bodies))

    def guarded(body):
        try:
            start.wait(WAIT_S)
            body()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(body,), daemon=True) for body in bodies]
    for thread in threads:
        thread.start()
    for thread in threads:
        join(thread)
    if errors:
        raise errors[0]


def join(thread):
    thread.join(WAIT_S)
    assert not thread.is_alive(), f"{thread.name} still runs after {WAIT_S} s"


def in_background(body):
    """Start a thread; return it with a list that gets what `body` returned or raised."""
    outcome = []

    def run():
        try:
            outcome.append(body())
        except BaseException as error:
            outcome.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread, outcome


def native_threads(start="batchqueue"):
    """How many threads have such a name. The system's, as native threads have no other; it ends after 15 characters."""
    names = []
    for task in Path("/proc/self/task").iterdir():
        try:
            names.append((task / "comm").read_text().strip())
        except OSError:
            continue  # it has ended meanwhile
    return sum(name.startswith(start[:15]) for name in names)


class Recorder:
    """A handler that keeps all it was given."""

    def __init__(self):
        self.batches = []
        self.closed = 0

    @property
    def items(self):
        return [item for batch in self.batches for item in batch]

    def consume(self, batch):
        self.batches.append(list(batch))

    def on_close(self):
        self.closed += 1


class Held(Recorder):
    """A recorder that stays inside `consume` until it is released."""

    def __init__(self):
        super().__init__()
        self.entered = threading.Event()
        self.released = threading.Event()

    def consume(self, batch):
        self.entered.set()
        assert self.released.wait(WAIT_S), "nobody released the handler"
        super().consume(batch)

    def hold(self, queue, item):
        """Put `item` in and wait until the handler is inside with it."""
        assert queue.produce(item) is True
        assert self.entered.wait(WAIT_S), "the handler was not entered"


SCRIPT_HEADER = """
import atexit, gc, os, signal, sys, threading, time
import faulthandler
faulthandler.enable()
# Whoever runs the tests in the background may have them, and with them their children, ignore
# Ctrl-C.
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
    """Run a script in a new interpreter; return (exit code, lines of its output, its standard error)."""
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
        # With its forked children; SIGABRT makes each of them show the stacks of its threads.
        os.killpg(process.pid, signal.SIGABRT)
        out, err = process.communicate(timeout=SCRIPT_S)
        raise AssertionError(f"the script hangs; so far:\n{out}\n{err}") from None
    return process.returncode, out.splitlines(), err
