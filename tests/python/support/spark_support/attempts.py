"""Attempts over the flights in the test's process, and what their commit leaves in the store."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from batchqueue.outputs import SqliteStore
from batchqueue.spark import AggregationJob
from batchqueue.spark.options import SinkOptions
from batchqueue.spark.task.attempt import run_attempt
from batchqueue.spark.task.message import AttemptMessage, EpochId
from spark_support.flight_job import DEPARTURES, FILES, flight_job

OPTIONS = SinkOptions(sink_id="flights", on_new_query=None, txn_id=None, max_commit_bytes=1_000_000)


def batches(flights: Path, file: int) -> list[pa.RecordBatch]:
    return pq.read_table(flights / f"part-{file}.parquet").to_batches(max_chunksize=200)


def run_attempts(flights: Path, job: AggregationJob, epoch: EpochId | None) -> list[AttemptMessage]:
    """Run an attempt of the job for each file; return their messages."""
    return [run_attempt(job, OPTIONS, batches(flights, file), epoch) for file in range(FILES)]


def attempts(
    flights: Path, store: SqliteStore, query_id: str | None = "q1", **changes: Any
) -> list[AttemptMessage]:
    """The same for the flight job with some changes, in epoch 0 of a query or in a batch write."""
    epoch = None if query_id is None else EpochId(query_id, 0)
    return run_attempts(flights, flight_job(store, **changes), epoch)


def at(messages: list[AttemptMessage], batch_id: int) -> list[AttemptMessage]:
    """The same results, as if they were those of another epoch."""
    return [
        replace(message, epoch=message.epoch and EpochId(message.epoch.query_id, batch_id))
        for message in messages
    ]


def departures(store: SqliteStore) -> int:
    return sum(item.count for item in store.read(DEPARTURES, "flights"))


def summaries(store: SqliteStore) -> list[Any]:
    with store.transaction("flights") as transaction:
        return transaction.summaries()
