"""The writer of `df.write`."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import cast

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from batchqueue.spark.commit.commit import EpochCommit
from batchqueue.spark.job import AggregationJob
from batchqueue.spark.options import SinkOptions
from batchqueue.spark.task.arrow import batches_with_instants, zone_of_task
from batchqueue.spark.task.attempt import run_attempt
from batchqueue.spark.task.message import AttemptMessage, AttemptSummary, encode_message


class BatchSinkWriter(DataSourceArrowWriter):
    """Writes one batch: `write` runs in the tasks, `commit` in a process beside the driver."""

    def __init__(
        self, job: AggregationJob, options: SinkOptions, overwrite: bool, zone: str = "UTC"
    ) -> None:
        """Make the writer, and refuse what the ledger shows cannot be committed.

        Raises:
            SinkError: As `EpochCommit.check_batch`.
        """
        self._job = job
        self._options = options
        self._overwrite = overwrite
        self._zone = zone
        self._repeated = EpochCommit(job, options, []).check_batch(overwrite=overwrite)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Aggregate the rows of one task; those of a write that the ledger has are only counted."""
        if self._repeated is not None:
            count = sum(batch.num_rows for batch in iterator)
            summary = AttemptSummary.without_queue(count)
            return TaskMessage(encode_message([], self._job, summary, None))
        rows = batches_with_instants(iterator, zone_of_task(self._zone))
        return TaskMessage(run_attempt(self._job, self._options, rows))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Merge the results of all tasks into the store."""
        commit = EpochCommit(self._job, self._options, attempt_messages(messages))
        if self._repeated is not None:
            # Its rows were left out, so that it must not be applied: an overwrite may have deleted
            # the ledger meanwhile.
            commit.warn_of_other_rows(self._repeated)
        else:
            commit.apply_batch(overwrite=self._overwrite)


# The messages of tasks in the form in which Spark carries them to the commit.


@dataclass(frozen=True)
class TaskMessage(WriterCommitMessage):
    """The message of the successful attempt of a task."""

    message: AttemptMessage


def attempt_messages(messages: list[WriterCommitMessage | None]) -> list[AttemptMessage]:
    """Return what the tasks sent."""
    # Every task has succeeded when Spark commits. None, for a failed task, reaches `abort` only.
    return [cast(TaskMessage, message).message for message in messages]
