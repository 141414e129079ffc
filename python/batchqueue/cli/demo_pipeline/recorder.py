"""`Recorder`: what the pipeline did over time, for the picture."""

import threading
import time
from dataclasses import dataclass, field
from types import TracebackType
from typing import NamedTuple, Self

from batchqueue.cli.demo_pipeline.flow import BOARD, SOURCE
from batchqueue.pipeline import PipelineRun

_INTERVAL_S = 0.1


class Sample(NamedTuple):
    """A run at one moment."""

    at: float
    """On the monotonic clock."""
    rows: int
    """Flights that the source has read so far."""
    depth: int
    """Flights in front of the slow sink, and in its hands."""
    factor: float
    """The factor by which the slow sink asks the source to slow down."""


@dataclass
class Recorder:
    """Takes a sample of a run ten times a second, while its `with` block runs.

    Attributes:
        run: The run.
        samples: What it has seen so far.
    """

    run: PipelineRun
    samples: list[Sample] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._record, name="demo-recorder", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._ended.set()
        self._thread.join()

    def _record(self) -> None:
        while True:
            stats = self.run.stats()
            board = stats.stages[BOARD]
            rows = stats.sources[SOURCE].rows_out_total
            now = time.monotonic()
            self.samples.append(Sample(now, rows, board.queue_rows, board.slow_down_factor))
            if self._ended.wait(_INTERVAL_S):
                return
