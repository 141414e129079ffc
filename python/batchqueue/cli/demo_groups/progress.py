"""Shows how many flights are done while the group runs, and what happens to its workers."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from batchqueue.cli.demo_progress import lines


@contextmanager
def following(
    console: Console, total: int
) -> Iterator[tuple[Callable[[str], None], Callable[[int], None]]]:
    """Show a bar in a terminal, elsewhere a line now and then.

    Args:
        console: Where to print.
        total: The number of flights.

    Yields:
        A function that prints a line with the seconds since the first line, and one that takes the
        number of flights that are done.
    """
    began: list[float] = []

    def say(text: str) -> None:
        began.append(time.monotonic())
        console.print(f"{began[-1] - began[0]:5.1f} s  {text}")

    if not console.is_terminal:
        with lines(console, "running the workers"):
            yield say, lambda done: None
        return
    columns = (TextColumn("flights"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("flights", total=total)
        yield say, lambda done: progress.update(task, completed=done)
