"""What is told about rows that were delivered to handlers: by each partition, and by the job."""

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
        query_id: As its handlers were told.
        epoch: As its handlers were told.
        rows: Rows that Spark gave.
        attempts: Tries of the task, this one included.
        queue: The queue; all zero where there was no row.
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
        """Rebuild what `to_batch` wrote."""
        fields = json.loads(summary)
        return cls(**{**fields, "queue": StageSummary(**fields["queue"])})


@dataclass(frozen=True)
class DeliverySummary:
    """How the rows of one epoch, or of one batch job, were delivered.

    It is made when every partition has succeeded. So `failed`, `refused`, `unhandled` and
    `abandoned` are 0: an attempt that counts another number fails. Attempts that failed are in
    `attempts` and in no other figure, though their handlers may have had some of the rows.

    Attributes:
        query_id: As the handlers were told.
        epoch: As the handlers were told.
        partitions: Partitions of the job.
        attempts: Tries that they took, as Spark numbers them; at least one for each partition.
        rows: Rows that Spark gave.
        items: Items that were put on queues: rows, or what `items` made of them.
        failed: Items whose handler raised, after all tries of the retry policy.
        refused: Items that found no room.
        unhandled: Items without a handler.
        abandoned: Items that a queue left behind.
        peak_used_percent: Highest use of the fullest partition of a queue that was seen, 0 to 100.
        seconds: From the start of the job to its end.
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

    @classmethod
    def total(
        cls,
        partitions: Sequence[PartitionSummary],
        seconds: float,
        query_id: str | None,
        epoch: int | None,
    ) -> Self:
        """Add up the partitions of a job.

        Args:
            partitions: One per partition.
            seconds: That the job took.
            query_id: For a job without partitions.
            epoch: For a job without partitions.
        """
        queue = StageSummary.total([one.queue for one in partitions])
        return cls(
            query_id=partitions[0].query_id if partitions else query_id,
            epoch=partitions[0].epoch if partitions else epoch,
            partitions=len(partitions),
            attempts=sum(one.attempts for one in partitions),
            rows=sum(one.rows for one in partitions),
            items=queue.produced,
            failed=queue.failed,
            refused=queue.refused,
            unhandled=queue.unhandled,
            abandoned=queue.abandoned,
            peak_used_percent=queue.peak_used_percent,
            seconds=seconds,
        )
