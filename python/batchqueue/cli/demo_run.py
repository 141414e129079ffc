"""`batchqueue demo`: files, stream, check, speeds, picture, report."""

import warnings
from contextlib import nullcontext
from functools import partial

from rich.console import Console

from batchqueue.cli.demo import DemoOptions
from batchqueue.cli.demo_figure import draw
from batchqueue.cli.demo_job import flights_job, measure_l1, run_stream, write_flights
from batchqueue.cli.demo_progress import lines, step
from batchqueue.cli.demo_report import (
    EpochTotals,
    Results,
    compare_with_spark_sql,
    print_comparison,
    print_rate,
    print_results,
    print_speeds,
    print_stages,
    read_epochs,
)
from batchqueue.exceptions import ConfigError
from batchqueue.outputs import SqliteStore
from batchqueue.spark import local_session, show_progress


def run(options: DemoOptions) -> bool:
    """Run the demo, or what an earlier run has left to do.

    Args:
        options: The options of the run.

    Returns:
        Whether every aggregate is equal to that of Spark SQL, and both kinds of L1 make the same
        partials.

    Raises:
        ConfigError: An option is invalid.
        BatchQueueError: The stream or the store failed.
    """
    # The demo uses no pandas.
    warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas", FutureWarning)
    console = Console(highlight=False, markup=False, soft_wrap=True)
    with step(console, "writing the flights as Parquet files"):
        files = write_flights(options.output, options.rows, options.scale)
    console.print(f"{files.total_rows:,} flights in {files.files} files under {files.directory}")
    if options.checkpoint.exists() and not options.database.exists():
        raise ConfigError(
            f"{options.database} is gone, but {options.checkpoint} says what it held: "
            f"remove {options.output}, or name another --output"
        )
    job = flights_job(store := SqliteStore(options.database), options.l1)
    store.prepare()
    earlier = read_epochs(store, job.name)
    with step(console, "starting Spark"):
        spark = local_session("batchqueue demo", options.spark_master)
        spark.sparkContext.setLogLevel("OFF")  # the exception of a failed stream names the reason
    try:
        follow = partial(
            show_progress,
            store=store,
            sink_ids=job.name,
            total_rows=files.total_rows,
            line_interval_s=0,
            console=console,
        )
        # In a terminal `follow` shows a bar from the start, elsewhere a line per finished epoch.
        shown = nullcontext() if console.is_terminal else lines(console, "streaming the files")
        with shown:
            seconds = run_stream(spark, files, job, options.checkpoint, follow)
        epochs = read_epochs(store, job.name)
        results = Results(store, job.name)
        with step(console, "computing every aggregate with Spark SQL"):
            comparison = compare_with_spark_sql(spark, files, results)
        with step(console, "measuring L1 alone"):
            speeds = measure_l1(files, store)
    finally:
        spark.stop()
    with step(console, "drawing the picture"):
        load = [epoch["l1_thread_items"] for epoch in epochs]
        draw(options.picture, results.hourly_delay(), load)
    print_results(console, results)
    print_stages(console, EpochTotals.of(epochs))
    print_rate(console, EpochTotals.of(epochs[len(earlier) :]), seconds)
    print_speeds(console, speeds)
    console.print(f"database: {options.database}\npicture: {options.picture}")
    print_comparison(console, comparison)
    return not comparison.differences and speeds.are_equal
