"""The partials of all tasks of an epoch meet, and go to the store."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Protocol

from batchqueue import SupportsConsume
from batchqueue.aggregation import L2PersistenceWorker, Metrics
from batchqueue.outputs import StoreWriter
from batchqueue.presets import sql_batch
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
    job: AggregationJob,
    name: str,
    messages: Sequence[Partials],
    stored: Callable[[Iterable[Metrics]], Iterable[Metrics]],
    writer: Callable[[], StoreWriter],
) -> MergeSummary:
    """Merge the partials of all tasks, and write them.

    Those of declared metrics are merged in columns, the others as objects by the queue of L2.

    Args:
        job: The job.
        name: What the names of the queues begin with.
        messages: One for each task.
        stored: Passes on the partials that are stored.
        writer: Makes what takes the merged partials.

    Raises:
        SinkError: A partial was lost, or does not fit.
    """
    groups = [of_task for message in messages for of_task in message.groups]
    # The L2 stage ends first, so the store writer still takes what its workers emit at close.
    with Stage(f"{name}-persist", sql_batch(writer, writers=1)) as persist:
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
        for of_metric in chain(found.merged, columns):
            persist.produce_many(stored(of_metric))
    merged = sum(of_task.partials for of_task in groups) + sum(map(len, columns))
    merged -= sum(map(len, found.unmerged))
    return MergeSummary(
        l2.summary.with_merged(merged),
        persist.summary,
        l2.drain_cpu_s + persist.drain_cpu_s,
    )
