"""Groups of declared metrics, as their aggregators left them: tasks send, the commit merges.

A group is merged by an `Aggregator` across all tasks before it becomes a metric object, so the
number of objects is that of the distinct keys, however many tasks there are.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute

from batchqueue.aggregation import Aggregation, Aggregator, Sum
from batchqueue.aggregation.aggregator import MAX_GROUPS
from batchqueue.spark.errors import SinkError
from batchqueue.spark.job.declared import ROUNDING_OF
from batchqueue.spark.job.steps import ArrowAggregation, ArrowStep
from batchqueue.spark.task.columns import ColumnPartials, declared_partials
from batchqueue.spark.task.ipc import read_batch, written
from batchqueue.spark.task.null_keys import counting_rows, record_batches, without_rows

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
    for key in step.key_columns:
        nulls = partials.column(key).null_count
        if nulls:
            raise SinkError(
                f"the key column {key!r} of the metrics {', '.join(step.types)} is None in some "
                "rows, which no store can hold: leave such rows out, or give "
                "ArrowAggregation(null_keys='skip'), or a value that stands for null"
            )
    return TaskGroups(position, partials.num_rows * len(step.types), written(partials))


def merged_groups(groups: Iterable[TaskGroups], steps: Sequence[ArrowStep]) -> list[ColumnPartials]:
    """Merge the groups of many tasks.

    Args:
        groups: Of each task and step.
        steps: `AggregationJob.arrow`.

    Raises:
        SinkError: A value does not fit the column of its metric.
    """
    # `prepare` may give a column another type in another task; those meet as objects in the store.
    alike: dict[tuple[int, pa.Schema], list[pa.RecordBatch]] = {}
    for of_task in groups:
        partials = read_batch(of_task.stream)
        alike.setdefault((of_task.step, partials.schema), []).append(partials)
    found: list[ColumnPartials] = []
    for (position, _), batches in alike.items():
        step = steps[position]
        assert isinstance(step, ArrowAggregation)
        found += _merged(step, batches)
    return found


def _merged(step: ArrowAggregation, batches: list[pa.RecordBatch]) -> list[ColumnPartials]:
    """Merge partials of equal schemas."""
    try:
        groups = record_batches(without_rows(_result(counting_rows(step), batches)))
        return [partials for batch in groups for partials in declared_partials(step, batch)]
    except (OverflowError, SinkError) as error:
        if len(batches) > 1:
            # Of a sum that is too large, or too large for a float to be exact, those of the tasks
            # may fit. The store adds them.
            return [partials for batch in batches for partials in _merged(step, [batch])]
        if isinstance(error, OverflowError):
            raise overflow(error) from error
        raise


def overflow(error: OverflowError) -> SinkError:
    """Return the error of a sum in one task that does not fit, given that of the aggregator."""
    what = str(error).partition("; ")[0]
    return SinkError(
        f"measure {what}, in a group of one task, so nothing of this epoch is committed: measure "
        "in a larger unit, or as double"
    )


def _result(aggregation: Aggregation, batches: list[pa.RecordBatch]) -> pa.Table:
    """Merge partials of equal schemas, of which each task had at most `max_groups`."""
    aggregator = Aggregator(replace(aggregation, max_groups=MAX_GROUPS))
    aggregator.consume(batches)
    result: Any = pa.Table.from_batches([aggregator.result()])
    partials = aggregator.partials()
    for name, measure in aggregation.measures.items():
        fields = partials.column(name).type
        if isinstance(measure, Sum) and fields.get_field_index("error") >= 0:
            rounding = _rounding(result.column(name), partials.column(name))
            result = result.append_column(ROUNDING_OF + name, rounding)
    return result


def _rounding(totals: pa.ChunkedArray, sums: pa.StructArray) -> pa.Array:
    """Return what a total of floats lacks of the sum with its error, from which it was rounded."""
    total = totals.combine_chunks()
    exactly = _compute.add(_compute.subtract(sums.field("sum"), total), sums.field("error"))
    # No total is known to lack anything if it is null, NaN or infinite.
    return _compute.if_else(_compute.fill_null(_compute.is_finite(exactly), False), exactly, 0.0)
