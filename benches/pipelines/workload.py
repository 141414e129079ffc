"""The files, loops and sinks of the benches of pipelines."""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from batchqueue.pipeline import FileSource, FunctionSink, Pipeline

CHUNK_ROWS = 500
GROUP_ROWS = 50_000


def write_files(
    folder: Path, rows: int, files: int = 4, group_rows: int = GROUP_ROWS
) -> list[Path]:
    """Write Parquet files of an int, a float and a string of ten bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    each = rows // files
    for number in range(files):
        first = number * each
        table = pa.table(
            {
                "n": pa.array(range(first, first + each), pa.int64()),
                "x": pa.array([0.5] * each),
                "s": pa.array([f"{at % 1000:010d}" for at in range(each)]),
            }
        )
        paths.append(folder / f"{number}.parquet")
        pq.write_table(table, paths[-1], row_group_size=group_rows)
    return paths


def same(chunk: pa.RecordBatch) -> pa.RecordBatch:
    """Do nothing."""
    return chunk


def count_rows(chunks: list[pa.RecordBatch]) -> None:
    """Do what a sink must at least do: read each chunk."""
    for chunk in chunks:
        count_rows.rows += chunk.num_rows  # type: ignore[attr-defined]


count_rows.rows = 0  # type: ignore[attr-defined]


def through_pipeline(paths: list[Path]) -> float:
    """Return the seconds of a pipeline of operators that do nothing."""
    flow = Pipeline("nothing")
    source = FileSource([str(path) for path in paths])
    flow.source(source).map(same).map(same).to(FunctionSink(count_rows))
    began = time.perf_counter()
    flow.run()
    return time.perf_counter() - began


def through_loop(paths: list[Path]) -> float:
    """Return the seconds of the same in a loop of plain pyarrow."""
    began = time.perf_counter()
    for path in paths:
        with pq.ParquetFile(path) as file:
            for group in range(file.num_row_groups):
                table = file.read_row_group(group, use_threads=False)
                for chunk in table.to_batches(max_chunksize=CHUNK_ROWS):
                    count_rows([same(same(chunk))])
    return time.perf_counter() - began


class PacedSink:
    """Takes a fixed time for each write, stores cuts in memory, and measures how busy it is.

    Attributes:
        batch_rows: The rows that it likes to have.
        spans: When each write began and ended.
    """

    batch_rows = CHUNK_ROWS

    def __init__(self, write_s: float, stall_at: int | None = None, stall_s: float = 0) -> None:
        self.spans: list[tuple[float, float]] = []
        self._write_s = write_s
        self._stall_at = stall_at
        self._stall_s = stall_s
        self._last: tuple[int, Mapping[str, Any]] | None = None

    def write(self, chunks: list[pa.RecordBatch]) -> None:
        """Take chunks, for as long as it takes."""
        began = time.perf_counter()
        if len(self.spans) == self._stall_at:
            time.sleep(self._stall_s)
        time.sleep(self._write_s)
        self.spans.append((began, time.perf_counter()))

    def commit(self, cut: int, positions: Mapping[str, Any]) -> None:
        """Note a cut."""
        self._last = cut, dict(positions)

    def last_cut(self) -> tuple[int, Mapping[str, Any]] | None:
        """Return the last cut."""
        return self._last

    @property
    def busy(self) -> float:
        """The share of the time between the first write and the last one that it wrote."""
        took = self.spans[-1][1] - self.spans[0][0]
        return sum(end - began for began, end in self.spans) / took
