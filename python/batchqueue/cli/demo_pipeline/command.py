"""`batchqueue demo --pipeline`: files, the pipeline here and on Spark, check, picture, report."""

import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.sql import SparkSession
from rich.console import Console

from batchqueue.cli.demo_folder import claimed_folder
from batchqueue.cli.demo_job import FlightFiles, write_flights
from batchqueue.cli.demo_pipeline.board import Board
from batchqueue.cli.demo_pipeline.check import Values, compare, expected_values, stored_values
from batchqueue.cli.demo_pipeline.figure import draw
from batchqueue.cli.demo_pipeline.flow import BOARD, SOURCE, flights_flow
from batchqueue.cli.demo_pipeline.options import PipelineOptions
from batchqueue.cli.demo_pipeline.recorder import Recorder
from batchqueue.cli.demo_progress import step
from batchqueue.cli.demo_report import print_comparison
from batchqueue.spark import local_session

_MADE = ("here*", "spark*", "*.png", "*.svg")
"""What a run leaves in its folder."""

_REPORT_INTERVAL_S = 2.0


def run(options: PipelineOptions, *, spark: SparkSession | None = None) -> bool:
    """Run the demo, from the beginning in any case.

    Args:
        options: The options of the run.
        spark: The session to use. Default: None, one that is started for it and stopped.

    Returns:
        Whether every aggregate, here and on Spark, is equal to that of Spark SQL.

    Raises:
        ConfigError: An option is invalid, or another run uses the folder.
        BatchQueueError: The pipeline failed.
    """
    # The demo uses no pandas.
    warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas", FutureWarning)
    console = Console(highlight=False, markup=False, soft_wrap=True)
    with step(console, "writing the flights as Parquet files"):
        files = write_flights(options.output, options.rows, options.scale)
    console.print(f"{files.total_rows:,} flights in {files.files} files under {files.directory}")
    with claimed_folder(options.folder, _MADE):
        here = _run_here(console, options, files)
        with _session(console, options.spark_master, spark) as session:
            on_spark = _run_on_spark(console, options, files, session)
            with step(console, "computing every aggregate with Spark SQL"):
                expected = expected_values(session, files)
    equal = True
    for where, stored in (("here", here), ("on Spark", on_spark)):
        comparison = compare(stored, expected)
        console.print(f"{where}: ", end="")
        print_comparison(console, comparison)
        equal = equal and not comparison.differences
    return equal


def _run_here(console: Console, options: PipelineOptions, files: FlightFiles) -> Values:
    folder = options.folder
    board = Board.halfway(files, folder / "here-stall", options.stall_s)
    database = folder / "here.sqlite"
    flow = flights_flow(files, database, folder / "here-checkpoint", board.show)
    console.print(flow.explain())
    flow.picture(folder / "graph.svg")
    try:
        with flow.start() as run, Recorder(run) as recorder:
            while (summary := run.wait(_REPORT_INTERVAL_S)) is None:
                stats = run.stats()
                source, shown = stats.sources[SOURCE], stats.stages[BOARD]
                console.print(
                    f"{source.rows_out_total:,} of {files.total_rows:,} flights read, "
                    f"{shown.queue_rows:,} wait for {BOARD}, factor {shown.slow_down_factor:.1f}"
                    + (f", held up by {source.held_up_by}" if source.held_up_by else "")
                )
                if shown.queue_rows > 0:
                    run.picture(folder / "graph.svg")
    finally:
        board.is_released = True
    bound = run.stats().stages[BOARD].queue_limit_rows
    draw(folder / "flow.png", recorder.samples, board.stall(), bound)
    deepest = max(sample.depth for sample in recorder.samples)
    console.print(
        f"here: {summary.rows_read:,} flights in {summary.seconds:.1f} s, "
        f"{summary.cuts} cuts; at most {deepest:,} of {bound:,} waited for {BOARD}, "
        f"which stood still for {options.stall_s:g} s; it was given {board.rows:,}"
    )
    console.print(f"pictures: {folder / 'flow.png'}, {folder / 'graph.svg'}")
    return stored_values(database)


def _run_on_spark(
    console: Console, options: PipelineOptions, files: FlightFiles, spark: SparkSession
) -> Values:
    database = options.folder / "spark.sqlite"
    board = Board.halfway(files, options.folder / "spark-stall", options.stall_s)
    flow = flights_flow(files, database, options.folder / "spark-checkpoint", board.show)
    on_spark = flow.on_spark(spark)
    console.print(on_spark.explain())
    began = time.monotonic()
    with step(console, "the same graph on Spark"):
        on_spark.start(available_now=True).awaitTermination()
    seconds = time.monotonic() - began
    console.print(f"on Spark: {files.total_rows:,} flights in {seconds:.1f} s")
    return stored_values(database)


@contextmanager
def _session(console: Console, master: str, given: SparkSession | None) -> Iterator[SparkSession]:
    if given is not None:
        yield given
        return
    with step(console, "starting Spark"):
        session = local_session("batchqueue demo", master)
    session.sparkContext.setLogLevel("OFF")  # the exception of a failed stream names the reason
    try:
        yield session
    finally:
        session.stop()
