"""L1 alone, in both ways: items and handlers in Python, and aggregators in Rust."""

import time
from typing import NamedTuple

import pyarrow.dataset

from batchqueue.aggregation import MergeBuffer, Metrics
from batchqueue.cli.demo.data import FlightFiles
from batchqueue.cli.demo.job import flights_job
from batchqueue.cli.demo.measures import COLUMNS
from batchqueue.outputs import MetricsStore
from batchqueue.spark import dry_run

_MOST_ROWS = 50_000
_BATCH_ROWS = 10_000  # the size of the batches that Spark sends to a Python worker


class L1Speeds(NamedTuple):
    """The speeds of L1 without Spark, in a single process.

    Attributes:
        rows: Number of flights in each way.
        python: Rows per second with items and handlers in Python.
        rust: Rows per second with aggregators in Rust.
        are_equal: Whether both ways made the same partials.
    """

    rows: int
    python: float
    rust: float
    are_equal: bool


def measure_l1(files: FlightFiles, store: MetricsStore) -> L1Speeds:
    """Run L1 in both ways over the first flights.

    Args:
        files: The flights.
        store: The store of the job, which is not written.
    """
    flights = pyarrow.dataset.dataset(files.directory, format="parquet").head(
        _MOST_ROWS, columns=list(COLUMNS)
    )
    batches = flights.combine_chunks().to_batches(max_chunksize=_BATCH_ROWS)

    def run(l1: str) -> tuple[float, dict[tuple[type[Metrics], tuple[str, int]], Metrics]]:
        began = time.perf_counter()
        partials = dry_run(flights_job(store, l1), batches)
        seconds = time.perf_counter() - began
        merged = MergeBuffer()
        merged.accept_all(partials)
        return seconds, {(type(partial), partial.key): partial for partial in merged.drain()}

    (python_s, python), (rust_s, rust) = run("python"), run("rust")
    return L1Speeds(
        flights.num_rows, flights.num_rows / python_s, flights.num_rows / rust_s, python == rust
    )
