"""What the user sees while the stream runs: a line per micro-batch and, on a terminal, a bar."""

import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from batchqueue.cli.demo.epochs import EpochSummary, Totals


class ProgressDisplay:
    """A context; `show` is given the ledger as it grows. Rates are those of this run."""

    def __init__(self, console: Console, total_rows: int, earlier: list[EpochSummary]) -> None:
        """Starts at what earlier runs have done.

        Args:
            console: Where to print.
            total_rows: Rows in all files.
            earlier: The ledger before this run.
        """
        self._console = console
        self._total_rows = total_rows
        self._shown = len(earlier)
        self._earlier = Totals.of(earlier)
        self._started_at = time.monotonic()
        self._bar = Progress(
            SpinnerColumn(),
            TextColumn("{task.completed:,.0f} of {task.total:,.0f} rows"),
            BarColumn(),
            TimeElapsedColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task = self._bar.add_task("rows", total=total_rows, completed=self._earlier.rows)

    def show(self, epochs: list[EpochSummary]) -> None:
        """Prints the micro-batches that are new in the ledger.

        Args:
            epochs: The whole ledger.
        """
        while self._shown < len(epochs):
            self._shown += 1
            epoch, so_far = epochs[self._shown - 1], Totals.of(epochs[: self._shown])
            peaks = Totals.of([epoch]).peak_used_percent
            use = ", ".join(f"{stage} {percent:.0f} %" for stage, percent in peaks.items())
            items_per_s = (so_far.items - self._earlier.items) / (time.monotonic() - self._started_at)
            self._console.print(
                f"micro-batch {epoch['batch_id']:>3}  {so_far.rows:>9,} of {self._total_rows:,} rows  "
                f"{items_per_s:>9,.0f} items/s  queue use {use}  refused {so_far.refused:,}"
            )
            self._bar.update(self._task, completed=so_far.rows)

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()
