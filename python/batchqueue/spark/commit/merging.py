"""The partials of all tasks of an epoch meet, and go to the store."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Protocol

from batchqueue import SupportsConsume
from batchqueue.aggregation import L2PersistenceWorker, Metrics
from batchqueue.outputs import StoreError
from batchqueue.presets import sql_batch
from batchqueue.spark.commit.destination import Destination
from batchqueue.spark.errors import SinkError
from batchqueue.spark.job.aggregation_job import AggregationJob
from batchqueue.spark.stage.stage import Stage
from batchqueue.spark.stage.stage_summary import StageSummary
from batchqueue.spark.task.columns import ColumnPartials
from batchqueue.spark.task.context import EpochId
from batchqueue.spark.task.groups import TaskGroups, merged_groups
from batchqueue.spark.task.message import AttemptSummary


class Partials(Protocol):
    """The partials of one epoch, or of one of its tasks, on their way to the commit."""

    @property
    def epoch(self) -> EpochId | None:
        """The micro-batch; None in a batch write."""

    @property
    def summary(self) -> AttemptSummary:
        """How they were made."""
        ...

    @property
    def size(self) -> int:
        """Bytes that they take in the message."""
        ...

    @property
    def groups(self) -> Sequence[TaskGroups]:
        """Those of declared metrics that the groups of other tasks are merged with."""
        ...

    def columns(self, job: AggregationJob) -> Sequence[ColumnPartials]:
        """Return those of declared metrics that no other task has the keys of."""
        ...

    def objects(self, job: AggregationJob) -> Iterable[Metrics]:
        """Return the others as metric objects."""
        ...


@dataclass(frozen=True)
class MergeSummary:
    """What the merge of an epoch has done.

    Attributes:
        l2: Partials of the tasks.
        persist: Merged ones that went to the store.
        drain_cpu_s: CPU seconds of the drain threads.
    """

    l2: StageSummary
    persist: StageSummary
    drain_cpu_s: float


def merge_partials(
    job: AggregationJob, name: str, messages: Sequence[Partials], destination: Destination
) -> MergeSummary:
    """Merge the partials of all tasks, and write them.

    Those of declared metrics are merged in columns, and go to the store as rows where they can; the
    others are merged as objects by the queue of L2.

    Args:
        job: The job.
        name: What the names of the queues begin with.
        messages: One for each task.
        destination: Where they go.

    Raises:
        SinkError: A partial was lost, or does not fit.
    """
    groups = [of_task for message in messages for of_task in message.groups]
    stored = destination.stored
    # The L2 stage ends first, so the store writer still takes what its workers emit at close.
    with Stage(f"{name}-persist", sql_batch(destination.writer, writers=1)) as persist:
        workers: dict[type | str, SupportsConsume[Any]] = {
            metric_type: L2PersistenceWorker(persist.produce_many)
            for metric_type in job.stored_metrics
        }
        with Stage(f"{name}-l2", job.l2, workers) as l2:
            for message in messages:
                l2.produce_many(stored(message.objects(job)))
            found = merged_groups(groups, job.arrow)
            for of_metric in found.unmerged:
                l2.produce_many(stored(of_metric))
        columns = [of_metric for message in messages for of_metric in message.columns(job)]
        as_rows = []
        for of_metric in chain(found.merged, columns):
            if destination.takes_as_rows(of_metric):
                as_rows.append(of_metric)
            else:
                persist.produce_many(stored(of_metric))
    for of_metric in as_rows:
        try:
            destination.merge_rows(of_metric)
        except StoreError as error:
            raise SinkError(
                f"metric {of_metric.metric.name!r} was not stored, so nothing of this epoch is "
                f"committed; first error: {type(error).__name__}: {error}"
            ) from error
    merged = sum(of_task.partials for of_task in groups) + sum(map(len, columns))
    merged -= sum(map(len, found.unmerged))
    return MergeSummary(
        l2.summary.with_merged(merged),
        persist.summary.with_merged(sum(map(len, as_rows))),
        l2.drain_cpu_s + persist.drain_cpu_s,
    )
