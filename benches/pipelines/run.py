"""What pipelines cost in one process and on Spark, and how steady their flow is.

    make bench-pipelines
    python benches/pipelines/run.py --page docs/figures/pipelines.md

Each row is measured in this run; the loop and the pipeline run by turns.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
from on_spark import SparkBench
from spark_rows import Row, SparkRows
from workload import PacedSink, same, through_loop, through_pipeline, write_files

from batchqueue.pipeline import FileSource, Pipeline

HERE = Path(__file__).parent
WRITE_S = 0.01


def busy(paths: list[Path], cut_interval_s: float, seconds: float) -> float:
    """Return the share of its time that a slow sink writes, with a cut each so many seconds."""
    sink = PacedSink(WRITE_S)
    flow = Pipeline("paced", cut_interval_s=cut_interval_s)
    flow.source(FileSource([str(path) for path in paths])).map(same).to(sink)
    flow.run(timeout=seconds)
    return sink.busy


def ratio(paths: list[Path], rounds: int) -> tuple[float, float, float]:
    """Return rows per second of pipeline and loop, and the median of their ratios."""
    rows = sum(pq.read_metadata(path).num_rows for path in paths)
    pairs = [(through_pipeline(paths), through_loop(paths)) for _ in range(rounds)]
    pipeline = statistics.median(each for each, _ in pairs)
    loop = statistics.median(each for _, each in pairs)
    return rows / pipeline, rows / loop, statistics.median(b / a for a, b in pairs)


def paused(paths: list[Path], seconds: float) -> tuple[float, float]:
    """Return the MB that a process with a paused source grew, and the MB of one split."""
    command = [sys.executable, HERE / "paused.py", f"{paths[0].parent}/*.parquet", str(seconds)]
    found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    with pq.ParquetFile(paths[0]) as file:
        split = file.read_row_group(0).nbytes
    return found["grown"] / 1e6, split / 1e6


def stalled(paths: list[Path], stall_s: float) -> tuple[int, int]:
    """Return the deepest queue of a sink that stands still once, and its bound, in rows."""
    sink = PacedSink(WRITE_S, stall_at=100, stall_s=stall_s)
    flow = Pipeline("stalled", cut_interval_s=1)
    flow.source(FileSource([str(path) for path in paths])).map(same).to(sink, name="sink")
    deepest = bound = 0
    pause = threading.Event()
    with flow.start() as run:
        while len(sink.spans) < 200:
            stage = run.stats().stages["sink"]
            deepest, bound = max(deepest, stage.queue_rows), stage.queue_limit_rows
            pause.wait(0.005)
        run.stop()
    return deepest, bound


def in_one_process(row: Row, options: argparse.Namespace) -> None:
    """Measure the rows of pipelines in this process."""
    with tempfile.TemporaryDirectory() as folder:
        paths = write_files(Path(folder) / "files", options.rows)

        def rates() -> str:
            ours, plain, share = ratio(paths, options.rounds)
            return f"{share:.2f}; {ours / 1e6:.2f} of {plain / 1e6:.2f} M rows/s"

        def growth() -> str:
            grown, split = paused(paths, options.pause)
            return f"{grown - split:.0f} MB above a split of {split:.1f} MB"

        def depth() -> str:
            deepest, bound = stalled(paths, 5)
            return f"{deepest:,} of {bound:,} rows"

        for interval, wanted in ((1, "≥ 0.97"), (5, "≥ 0.985")):
            row(
                f"share of its time that a sink of 10 ms a write is busy, a cut each {interval} s",
                wanted,
                lambda interval=interval: f"{busy(paths, interval, options.seconds):.3f}",
            )
        row("operators that do nothing, to the same loop in plain pyarrow", "≥ 0.8", rates)
        row(f"memory of a source paused for {options.pause:g} s", "≤ 64 MB", growth)
        row("deepest queue of a sink that stands still for 5 s", "≤ the bound", depth)


def on_spark(row: Row, options: argparse.Namespace, picture: Path | None) -> None:
    """Measure the rows of pipelines on Spark, and draw them."""
    with tempfile.TemporaryDirectory() as folder:
        bench = SparkBench(Path(folder), options.rows)
        rows = SparkRows(bench, options.rounds)
        rows.add(row)
        bench.close()
    if picture is not None:
        rows.picture(picture)


def main() -> None:
    """Measure, print a table, and write the page if one is named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--page", type=Path, help="write the table to this page")
    parser.add_argument("--rows", type=int, default=4_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--pause", type=float, default=60)
    parser.add_argument("--only", choices=("process", "spark"), help="one part of the table")
    options = parser.parse_args()
    rows: list[tuple[str, str, str]] = []

    def row(what: str, wanted: str, measure: Callable[[], str]) -> None:
        rows.append((what, wanted, measure()))
        print(" | ".join(rows[-1]), flush=True)

    if options.only != "spark":
        in_one_process(row, options)
    picture = None if options.page is None else options.page.with_suffix(".png")
    if options.only != "process":
        on_spark(row, options, picture)
    if options.page is not None:
        options.page.write_text(_page(rows))


def _page(rows: list[tuple[str, str, str]]) -> str:
    lines = [
        "# Pipelines, measured",
        "",
        f"Made by `make bench-pipelines` on {os.cpu_count()} cores, from Parquet files.",
        "",
        "| what | wanted | measured |",
        "|---|---|---|",
        *(f"| {what} | {wanted} | {measured} |" for what, wanted, measured in rows),
        "",
        "![Seconds of epochs on Spark: from the start, and behind a pause](pipelines.png)",
        "",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
