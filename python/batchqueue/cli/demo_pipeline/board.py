"""`Board`: the slow sink of the demo, which stands still once."""

import time
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple, Self

import pyarrow as pa
import pyarrow.compute
import pyarrow.parquet as pq

from batchqueue.cli.demo_job import FlightFiles

pc: Any = pyarrow.compute  # untyped: it creates its functions on import

ROWS_PER_S = 30_000
"""What the sink takes: less than the files give."""

_STEP_S = 0.05


class Stall(NamedTuple):
    """When the sink stood still, on the monotonic clock."""

    began: float
    ended: float


class Board:
    """Takes flights at a fixed rate, as a service might, and stands still once.

    Here it is called in this process, and on Spark by copies in the tasks. So a file says whether
    it has stood still.

    Attributes:
        rows: The flights that it was given so far, in this process.
        is_released: Set to let it not stand still any longer, for instance after Ctrl-C.
    """

    def __init__(self, mark: Path, stall_from: datetime, stall_s: float) -> None:
        """Begin without flights.

        Args:
            mark: The file that is made when it stands still.
            stall_from: The hour whose first flight makes it stand still.
            stall_s: For how many seconds.
        """
        self.rows = 0
        self.is_released = False
        self._mark = mark
        self._stall_from = stall_from
        self._stall_s = stall_s

    @classmethod
    def halfway(cls, files: FlightFiles, mark: Path, stall_s: float) -> Self:
        """Return one that stands still when half of the files have been read."""
        paths = sorted(files.directory.glob("*.parquet"))
        hours = pq.read_table(paths[len(paths) // 2], columns=["time_hour"])["time_hour"]
        return cls(mark, hours[0].as_py(), stall_s)

    def show(self, chunks: Sequence[pa.RecordBatch]) -> None:
        """Take flights; this is the function of the sink."""
        rows = sum(chunk.num_rows for chunk in chunks)
        time.sleep(rows / ROWS_PER_S)
        self.rows += rows
        if self._stall_s and any(map(self._is_late, chunks)) and not self._mark.exists():
            self._stand_still()

    def stall(self) -> Stall | None:
        """Return when it stood still; None if it has not, or still does."""
        try:
            began, ended = map(float, self._mark.read_text().split())
        except (OSError, ValueError):
            return None
        return Stall(began, ended)

    def _is_late(self, chunk: pa.RecordBatch) -> bool:
        return bool(pc.max(chunk["time_hour"]).as_py() >= self._stall_from)

    def _stand_still(self) -> None:
        try:
            self._mark.touch(exist_ok=False)
        except FileExistsError:  # a copy in another task was first
            return
        began = time.monotonic()
        while not self.is_released and time.monotonic() - began < self._stall_s:
            time.sleep(min(_STEP_S, self._stall_s))
        self._mark.write_text(f"{began} {time.monotonic()}")
