"""The display of `show_progress`: lines, and in terminals and notebooks a bar below them."""

import time
from collections import deque
from collections.abc import Callable, Iterable
from importlib.util import find_spec
from types import TracebackType
from typing import Self

from rich.console import Console, RenderableType
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.text import Text

from batchqueue.spark.driver.progress import NewEpoch

_RATE_WINDOW_S = 60.0


class ProgressDisplay:
    """A context; `show` is given each epoch as it is committed."""

    def __init__(
        self,
        console: Console | None = None,
        *,
        total_rows: int | None = None,
        total_epochs: int | None = None,
        line_interval_s: float = 10,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Start the clock; nothing is shown before `with`.

        Args:
            console: Where to show it. Default: the standard output.
            total_rows: Rows of the sink at the end.
            total_epochs: Epochs of the query at the end; used if `total_rows` is unknown.
            line_interval_s: Shortest time between two lines, in seconds.
            clock: Returns seconds since an arbitrary time.
        """
        # soft_wrap: a line of a log stays one line, whatever width the terminal claims to have.
        self._console = console or Console(highlight=False, markup=False, soft_wrap=True)
        self._total_rows = total_rows
        self._total_epochs = total_epochs
        self._line_interval_s = line_interval_s
        self._clock = clock
        self._started_at = clock()
        self._recent: deque[tuple[float, int]] = deque()
        self._last_line_at: float | None = None
        self._unprinted: str | None = None
        total = total_rows if total_rows is not None else total_epochs
        self._bar = _Bar(self._console, has_total=total is not None)
        self._task = self._bar.add_task("", total=total)

    def show(self, epoch: NewEpoch) -> None:
        """Show one epoch."""
        rows_so_far = epoch.totals.rows
        line = self._line(epoch, self._rows_per_s(epoch))
        in_rows = self._total_rows is not None or self._total_epochs is None
        self._bar.status = Text(line)
        self._bar.update(self._task, completed=rows_so_far if in_rows else epoch.batch_id + 1)
        now = self._clock()
        if self._last_line_at is None or now - self._last_line_at >= self._line_interval_s:
            self._last_line_at = now
            self._unprinted = None
            self.print_line(line)
        else:
            self._unprinted = line

    def print_line(self, line: str) -> None:
        """Print a line immediately."""
        self._console.print(line, highlight=False, markup=False, soft_wrap=True)

    def _rows_per_s(self, epoch: NewEpoch) -> float:
        """Rows per second, over the last minute or since the start."""
        now, rows = self._clock(), epoch.totals.rows
        if not self._recent:
            self._recent.append((self._started_at, rows - epoch.summary["rows"]))
        self._recent.append((now, rows))
        # The newest reading that is at least a minute old stays: the window begins there.
        while len(self._recent) > 2 and now - self._recent[1][0] >= _RATE_WINDOW_S:
            self._recent.popleft()
        started_at, rows_before = self._recent[0]
        return (rows - rows_before) / max(now - started_at, 0.001)

    def _line(self, epoch: NewEpoch, rows_per_s: float) -> str:
        summary, totals = epoch.summary, epoch.totals
        of_epochs = "" if self._total_epochs is None else f" of {self._total_epochs:,}"
        of_rows = "" if self._total_rows is None else f" of {self._total_rows:,}"
        use = ", ".join(
            f"{name} {stage['peak_used_percent']:.0f} %"
            for name, stage in summary["stages"].items()
        )
        lost = {
            outcome: sum(counts[outcome] for counts in totals.stages.values())
            for outcome in ("failed", "refused")
        }
        return (
            f"epoch {epoch.batch_id:>3}{of_epochs}  {totals.rows:>9,}{of_rows} rows  "
            f"{rows_per_s:>9,.0f} rows/s  L1 ratio {summary['l1_ratio']:,}  queue use {use}  "
            f"{'  '.join(f'{name} {count:,}' for name, count in lost.items())}"
        )

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bar.stop()
        if self._unprinted is not None:
            self.print_line(self._unprinted)
            self._unprinted = None


class _Bar(Progress):
    """The newest line above a bar, while the query runs; only in terminals and notebooks."""

    status = Text("waiting for the first epoch")

    def __init__(self, console: Console, *, has_total: bool) -> None:
        super().__init__(
            SpinnerColumn(),
            TextColumn("{task.percentage:>3.0f} %" if has_total else "{task.completed:,.0f} rows"),
            *([BarColumn()] if has_total else []),
            TimeElapsedColumn(),
            console=console,
            transient=True,
            disable=not (
                console.is_terminal or (console.is_jupyter and find_spec("ipywidgets") is not None)
            ),
        )

    def get_renderables(self) -> Iterable[RenderableType]:
        yield self.status
        yield from super().get_renderables()
