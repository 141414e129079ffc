"""`batchqueue demo --groups`: files, group, check, picture, report."""

import signal
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from pyspark.sql import SparkSession
from rich.console import Console

from batchqueue.cli.command import FAILED, INTERRUPTED, OK
from batchqueue.cli.demo_groups.figure import draw
from batchqueue.cli.demo_groups.flights import SINK_ID, carriers_of_partitions
from batchqueue.cli.demo_groups.folder import RunFolder, claimed
from batchqueue.cli.demo_groups.group import run_group
from batchqueue.cli.demo_groups.journal import read_journal
from batchqueue.cli.demo_groups.options import GroupsOptions
from batchqueue.cli.demo_groups.report import (
    print_changes,
    print_counts,
    print_owners,
    print_workers,
)
from batchqueue.cli.demo_groups.timeline import make_timeline
from batchqueue.cli.demo_job import FlightFiles, write_flights
from batchqueue.cli.demo_progress import step
from batchqueue.cli.demo_report import Comparison, Results, compare_with_spark_sql, print_comparison
from batchqueue.outputs import SqliteStore
from batchqueue.spark import local_session


def run(options: GroupsOptions, *, spark: SparkSession | None = None) -> int:
    """Run the demo, from the beginning in any case, and return the exit code.

    SIGTERM has the effect of Ctrl-C: workers and server end before this returns.

    Args:
        options: The options of the run.
        spark: The session that computes what the result is compared with. Default: None, one that
            is started for it and stopped.

    Returns:
        0 if every aggregate is equal to that of Spark SQL, 1 if not, 130 if it was interrupted.

    Raises:
        ConfigError: An option is invalid, or another run uses the folder.
        BatchQueueError: The server, a worker or the store failed.
    """
    # The demo uses no pandas.
    warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas", FutureWarning)
    console = Console(highlight=False, markup=False, soft_wrap=True)
    try:
        with _terminated_as_interrupted():
            return OK if _run(options, console, spark) else FAILED
    except KeyboardInterrupt:
        print(
            "\ninterrupted: workers and server have ended; the same command begins anew",
            file=sys.stderr,
        )
        return INTERRUPTED


def _run(options: GroupsOptions, console: Console, spark: SparkSession | None) -> bool:
    with step(console, "writing the flights as Parquet files"):
        files = write_flights(options.output, options.rows, options.scale)
    console.print(f"{files.total_rows:,} flights in {files.files} files under {files.directory}")
    carriers = carriers_of_partitions()
    with claimed(options.folder) as folder:
        story = run_group(console, folder, files, options.workers)
        journals = {name: read_journal(folder.journal(name)) for name in story.names}
        timeline = make_timeline(story, journals)
        with _session(console, options.spark_master, spark) as session:
            comparison = _compare(console, folder, files, session)
        with step(console, "drawing the picture"):
            draw(folder.picture, timeline, carriers)
    print_owners(console, timeline, carriers)
    print_workers(console, timeline)
    print_changes(console, timeline)
    print_counts(console, timeline, files.total_rows)
    console.print(f"database: {folder.database}\npicture: {folder.picture}")
    print_comparison(console, comparison)
    return not comparison.differences


def _compare(
    console: Console, folder: RunFolder, files: FlightFiles, spark: SparkSession
) -> Comparison:
    with step(console, "computing every aggregate with Spark SQL"):
        results = Results(SqliteStore(folder.database), SINK_ID)
        return compare_with_spark_sql(spark, files, results)


@contextmanager
def _session(console: Console, master: str, given: SparkSession | None) -> Iterator[SparkSession]:
    if given is not None:
        yield given
        return
    with step(console, "starting Spark"):
        session = local_session("batchqueue demo", master)
    try:
        yield session
    finally:
        session.stop()


@contextmanager
def _terminated_as_interrupted() -> Iterator[None]:
    """Raise KeyboardInterrupt on SIGTERM; in the main thread only."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(number: int, frame: FrameType | None) -> None:
        del number, frame
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
