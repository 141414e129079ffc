"""Threads of a test: started together, joined within a deadline, and counted by name."""

import threading
from pathlib import Path

from core_support.waits import WAIT_S


def run_threads(*bodies):
    """Runs the functions concurrently, one thread each; waits for all; raises the first error."""
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
    """Starts a thread; returns it with a list that gets what `body` returned or raised."""
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
    """How many threads of the system have such a name, which ends after 15 characters."""
    names = []
    for task in Path("/proc/self/task").iterdir():
        try:
            names.append((task / "comm").read_text().strip())
        except OSError:
            continue  # it has ended meanwhile
    return sum(name.startswith(start[:15]) for name in names)
