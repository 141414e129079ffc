"""Shows that a step of the demo is running, also where the output is not a terminal."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TimeElapsedColumn

_LINE_INTERVAL_S = 5.0


@contextmanager
def step(console: Console, title: str) -> Iterator[None]:
    """Show a step while the block runs: a spinner with its time in a terminal, else `lines`."""
    if not console.is_terminal:
        with lines(console, title):
            yield
        return
    columns = (SpinnerColumn(), "{task.description}", TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        progress.add_task(title, total=None)
        yield


@contextmanager
def lines(console: Console, title: str) -> Iterator[None]:
    """Print a line when the block begins, and a line every five seconds until it ends."""
    ended = threading.Event()
    began = time.monotonic()

    def print_time() -> None:
        while not ended.wait(_LINE_INTERVAL_S):
            console.print(f"{title} ... {time.monotonic() - began:.0f} s")

    console.print(f"{title} ...")
    printer = threading.Thread(target=print_time, name="demo-progress", daemon=True)
    printer.start()
    try:
        yield
    finally:
        ended.set()
        printer.join()
