"""Groups of declared metrics, as their aggregators left them: tasks send, the commit merges.

A group is merged by an `Aggregator` across all tasks before it becomes a metric object, so the
number of objects is that of the distinct keys, however many tasks there are.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute

from batchqueue.aggregation import Aggregator, Metrics, Sum
from batchqueue.aggregation.aggregator import MAX_GROUPS
from batchqueue.spark.errors import SinkError
from batchqueue.spark.job.declared import ROUNDING_OF
from batchqueue.spark.job.steps import ArrowAggregation, ArrowStep
from batchqueue.spark.task.columns import ColumnPartials, declared_partials
from batchqueue.spark.task.ipc import read_batch, written
from batchqueue.spark.task.null_keys import (
    check_not_null,
    counting_rows,
    record_batches,
    without_rows,
)

_compute: Any = pyarrow.compute  # its type hints lack functions


class TaskGroups(NamedTuple):
    """What one task has aggregated for a step with declared metrics."""

    step: int
    """Position of the step in `AggregationJob.arrow`."""
    partials: int
    """One for each group and metric."""
    stream: bytes
    """The partials of the aggregator, without null keys, as an Arrow IPC stream."""


def task_groups(position: int, step: ArrowAggregation, partials: pa.RecordBatch) -> TaskGroups:
    """Encode what an aggregator of a step has left.

    Args:
        position: Position of the step in `AggregationJob.arrow`.
        step: The step.
        partials: What `Aggregator.partials` returned, after `without_null_keys`.

    Raises:
        SinkError: A key is null.
    """
    check_not_null(partials, step)
    return TaskGroups(position, partials.num_rows * len(step.types), written(partials))


@dataclass(frozen=True)
class MergedGroups:
    """The groups of many tasks.

    Attributes:
        merged: Those that are merged.
        unmerged: Those that do not merge in columns: L2 combines them.
    """

    merged: list[ColumnPartials] = field(default_factory=list)
    unmerged: list[ColumnPartials] = field(default_factory=list)

    def __iter__(self) -> Iterator[Metrics]:
        """Make the partials."""
        return chain.from_iterable(chain(self.merged, self.unmerged))


def merged_groups(groups: Iterable[TaskGroups], steps: Sequence[ArrowStep]) -> MergedGroups:
    """Merge the groups of many tasks.

    Args:
        groups: Of each task and step.
        steps: `AggregationJob.arrow`.

    Raises:
        SinkError: A value does not fit the column of its metric.
    """
    # `prepare` may give a column another type in another task.
    alike: dict[tuple[int, pa.Schema], _Merge] = {}
    for of_task in groups:
        partials = read_batch(of_task.stream)
        key = (of_task.step, partials.schema)
        if key not in alike:
            step = steps[of_task.step]
            assert isinstance(step, ArrowAggregation)
            alike[key] = _Merge(step)
        alike[key].add(partials, of_task.stream)
    schemas = Counter(position for position, _ in alike)
    found = MergedGroups()
    for (position, _), merge in alike.items():
        merge.finish(found, is_alone=schemas[position] == 1)
    return found


class _Merge:
    """The groups of one step, of the tasks whose columns have the same types."""

    def __init__(self, step: ArrowAggregation) -> None:
        self._step = step
        self._streams: list[bytes] = []
        self._aggregator = _aggregator(step)
        # Across tasks, a kind with its own way to combine is combined in that way.
        self._is_built_in = all(
            kind.combine.__module__.startswith("batchqueue.") for kind in step.types.values()
        )

    def add(self, partials: pa.RecordBatch, stream: bytes) -> None:
        self._streams.append(stream)
        if self._is_built_in:
            self._aggregator.update(partials)

    def finish(self, found: MergedGroups, *, is_alone: bool) -> None:
        """Add what is merged, or else what each task has."""
        if self._is_built_in:
            try:
                merged = _columns_of(self._step, self._aggregator)
            except (OverflowError, SinkError):
                pass  # a sum that is too large, and those of the tasks may fit
            else:
                (found.merged if is_alone else found.unmerged).extend(merged)
                return
        for stream in self._streams:
            aggregator = _aggregator(self._step)
            aggregator.update(read_batch(stream))
            try:
                found.unmerged.extend(_columns_of(self._step, aggregator))
            except OverflowError as error:
                raise overflow(error) from error


def _aggregator(step: ArrowAggregation) -> Aggregator:
    # Each task had at most `max_groups`.
    return Aggregator(replace(counting_rows(step), max_groups=MAX_GROUPS))


def _columns_of(step: ArrowAggregation, aggregator: Aggregator) -> list[ColumnPartials]:
    groups = record_batches(without_rows(_result(aggregator)))
    return [partials for batch in groups for partials in declared_partials(step, batch)]


def overflow(error: OverflowError) -> SinkError:
    """Return the error of a sum in one task that does not fit, given that of the aggregator."""
    what = str(error).partition("; ")[0]
    return SinkError(
        f"measure {what}, in a group of one task, so nothing of this epoch is committed: measure "
        "in a larger unit, or as double"
    )


def _result(aggregator: Aggregator) -> pa.Table:
    result: Any = pa.Table.from_batches([aggregator.result()])
    sums = [
        name
        for name, measure in aggregator.aggregation.measures.items()
        if isinstance(measure, Sum) and pa.types.is_floating(result.column(name).type)
    ]
    partials: Any = aggregator.partials() if sums else None
    for name in sums:
        rounding = _rounding(result.column(name), partials.column(name))
        result = result.append_column(ROUNDING_OF + name, rounding)
    return result


def _rounding(totals: pa.ChunkedArray, sums: pa.StructArray) -> pa.Array:
    """Return what a total of floats lacks of the sum with its error, from which it was rounded."""
    total = totals.combine_chunks()
    exactly = _compute.add(_compute.subtract(sums.field("sum"), total), sums.field("error"))
    # No total is known to lack anything if it is null, NaN or infinite.
    return _compute.if_else(_compute.fill_null(_compute.is_finite(exactly), False), exactly, 0.0)
