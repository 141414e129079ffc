"""Summaries of rows that were delivered to handlers: of a partition, and of the whole job."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import ClassVar, Self

import pyarrow as pa

from batchqueue.spark.stage.stage_summary import StageSummary


@dataclass(frozen=True)
class PartitionSummary:
    """What the successful attempt of one partition sends to the driver.

    Attributes:
        query_id: As in the `TaskInfo` of its handlers.
        epoch: As in the `TaskInfo` of its handlers.
        rows: Rows from Spark.
        attempts: Attempts of the task, including this one.
        queue: The counts of the queue; all zero if the partition had no row.
    """

    SCHEMA: ClassVar[str] = "summary string"

    query_id: str | None
    epoch: int | None
    rows: int
    attempts: int
    queue: StageSummary

    def to_batch(self) -> pa.RecordBatch:
        """Return a row of `SCHEMA`."""
        return pa.RecordBatch.from_pydict(
            {"summary": pa.array([json.dumps(asdict(self))], pa.string())}
        )

    @classmethod
    def parse(cls, summary: str) -> Self:
        """Parse the summary in a row of `to_batch`."""
        fields = json.loads(summary)
        return cls(**{**fields, "queue": StageSummary(**fields["queue"])})


@dataclass(frozen=True)
class DeliverySummary:
    """How the rows of one epoch, or of one batch job, were delivered.

    It is made after every partition has succeeded. So `failed`, `refused`, `unhandled` and
    `abandoned` are 0: an attempt in which one of them is not 0 fails. Failed attempts count in
    `attempts` and in no other figure, although their handlers may have taken some of the rows.

    Attributes:
        query_id: As in `TaskInfo`.
        epoch: As in `TaskInfo`.
        partitions: Partitions of the job.
        attempts: Attempts that they took, as Spark numbers them; at least 1 for each partition.
        rows: Rows from Spark.
        items: Items that were enqueued: rows, or what `items` made of them.
        failed: Items whose handler raised, after all retries of the retry policy.
        refused: Items that a queue did not accept.
        unhandled: Items without a handler.
        abandoned: Items that a shutdown left behind.
        peak_used_percent: Highest observed fill of the fullest partition of a queue, 0 to 100.
        seconds: Seconds from the start of the job to its end.
        dead_lettered: Items whose handler raised, and that the `dead_letter` of the config kept.
    """

    query_id: str | None
    epoch: int | None
    partitions: int
    attempts: int
    rows: int
    items: int
    failed: int
    refused: int
    unhandled: int
    abandoned: int
    peak_used_percent: float
    seconds: float
    dead_lettered: int = 0

    @classmethod
    def total(
        cls,
        partitions: Sequence[PartitionSummary],
        seconds: float,
        query_id: str | None,
        epoch: int | None,
    ) -> Self:
        """Return the sum over the partitions of a job.

        Args:
            partitions: The summary of each partition.
            seconds: Seconds that the job took.
            query_id: Used if the job has no partitions.
            epoch: Used if the job has no partitions.
        """
        queue = StageSummary.total([partition.queue for partition in partitions])
        return cls(
            query_id=partitions[0].query_id if partitions else query_id,
            epoch=partitions[0].epoch if partitions else epoch,
            partitions=len(partitions),
            attempts=sum(partition.attempts for partition in partitions),
            rows=sum(partition.rows for partition in partitions),
            items=queue.produced,
            failed=queue.failed,
            refused=queue.refused,
            unhandled=queue.unhandled,
            abandoned=queue.abandoned,
            peak_used_percent=queue.peak_used_percent,
            seconds=seconds,
            dead_lettered=queue.dead_lettered,
        )
