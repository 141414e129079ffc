"""What a successful attempt sends to the commit: its encoded partials and a summary."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Self

from batchqueue.aggregation import Metrics
from batchqueue.spark.errors import SinkError
from batchqueue.spark.job.aggregation_job import AggregationJob
from batchqueue.spark.job.options import SinkOptions
from batchqueue.spark.stage.process import CpuSummary, infrequent_gc
from batchqueue.spark.stage.stage_summary import StageSummary
from batchqueue.spark.task.columns import ColumnPartials
from batchqueue.spark.task.contents import Contents
from batchqueue.spark.task.context import EpochId
from batchqueue.spark.task.groups import TaskGroups, merged_groups
from batchqueue.spark.task.partials import decode, encode


@dataclass(frozen=True)
class AttemptSummary:
    """The counts and times of one attempt.

    Attributes:
        rows: Rows from Spark.
        l1: The counts of its queue.
        thread_items: Items that each drain thread handled.
        cpu: CPU and wall time of `write()`.
        skipped: Rows that steps left out because of a null key.
        bad_rows: Rows that could not be read, and were left out.
        bad_row_error: What was wrong with the first of them; None if there is none.
        newest: The latest time of its rows in whole seconds, if the job has a watermark; None
            without rows.
        contents: What its rows contained; None if that is not known.
    """

    rows: int
    l1: StageSummary
    thread_items: tuple[int, ...]
    cpu: CpuSummary
    skipped: int = 0
    bad_rows: int = 0
    bad_row_error: str | None = None
    newest: int | None = None
    contents: Contents | None = None

    @classmethod
    def without_queue(
        cls,
        rows: int = 0,
        *,
        skipped: int = 0,
        newest: int | None = None,
        bad_rows: int = 0,
        bad_row_error: str | None = None,
        contents: Contents | None = None,
    ) -> Self:
        """Return the summary of an L1 without a queue, such as one in Spark SQL."""
        cpu, l1 = CpuSummary(0, 0, 0), StageSummary.total([])
        return cls(rows, l1, (), cpu, skipped, bad_rows, bad_row_error, newest, contents)


@dataclass(frozen=True)
class AttemptMessage:
    """What a successful attempt sends to the commit.

    Attributes:
        epoch: The micro-batch; None in a batch write. The commit learns the query only from here.
        partials: Arrow IPC streams, see `batchqueue.spark.task.partials`.
        summary: Counts and times of the attempt.
        groups: Those of declared metrics, see `batchqueue.spark.task.groups`.
    """

    epoch: EpochId | None
    partials: tuple[bytes, ...]
    summary: AttemptSummary
    groups: tuple[TaskGroups, ...] = ()

    @property
    def size(self) -> int:
        """Bytes of the partials and groups."""
        return sum(map(len, self.partials)) + sum(len(groups.stream) for groups in self.groups)

    def columns(self, job: AggregationJob) -> tuple[ColumnPartials, ...]:
        """Return nothing: other tasks may have any key as well."""
        return ()

    def objects(self, job: AggregationJob) -> Iterator[Metrics]:
        """Decode the partials that are not in groups."""
        return decode(self.partials, job.stored_metrics)

    def metrics(self, job: AggregationJob) -> Iterator[Metrics]:
        """Decode all partials.

        Raises:
            SinkError: As `merged_groups`.
        """
        return chain(self.objects(job), merged_groups(self.groups, job.arrow))


@infrequent_gc()
def encode_message(
    partials: Iterable[Metrics],
    job: AggregationJob,
    summary: AttemptSummary,
    epoch: EpochId | None,
    groups: Iterable[TaskGroups] = (),
) -> AttemptMessage:
    """Encode partials.

    Raises:
        SinkError: A partial cannot be encoded.
    """
    return AttemptMessage(epoch, encode(partials, job.stored_metrics), summary, tuple(groups))


def empty_message(job: AggregationJob, epoch: EpochId | None) -> AttemptMessage:
    """Return the message of a task without rows, for an epoch without tasks."""
    return encode_message([], job, AttemptSummary.without_queue(), epoch)


def check_size(size: int, options: SinkOptions) -> None:
    """Check that the partials of an attempt, or of an epoch, fit into one process.

    Args:
        size: Their size in bytes.
        options: With `max_commit_bytes`.

    Raises:
        SinkError: They are larger than `max_commit_bytes`.
    """
    if size > options.max_commit_bytes:
        raise SinkError(
            f"the partial aggregates of one epoch take {size} bytes, more than maxCommitBytes="
            f"{options.max_commit_bytes}, and would all meet in one process: make epochs smaller "
            "(maxFilesPerTrigger, maxOffsetsPerTrigger), bring the rows of one entity together "
            "first (df.repartition), merge in many tasks (MetricsWriter(shards=...)), or raise "
            "maxCommitBytes and spark.driver.memory"
        )
