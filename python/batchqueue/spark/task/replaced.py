"""The results of a write that replaces time buckets are for these only."""

from collections.abc import Iterable
from typing import Any

import pyarrow as pa
import pyarrow.compute

from batchqueue.aggregation import Metrics
from batchqueue.outputs import BadRows
from batchqueue.spark.errors import SinkError

_compute: Any = pyarrow.compute  # its type hints lack functions


def within(metrics: Iterable[Metrics], replaced: range | None) -> Iterable[Metrics]:
    """Pass results on, and check that they are for the time buckets that are replaced, if any.

    Bad rows pass as they are: their time is when their task began.

    Raises:
        SinkError: One is for another: it would be added to what is stored there.
    """
    if replaced is None:
        return metrics
    return (_checked(item, replaced) for item in metrics)


def are_within(time_buckets: pa.Array, replaced: range | None) -> bool:
    """Return whether all time buckets are among those that are replaced, if any are."""
    if replaced is None or len(time_buckets) == 0:
        return True
    ends = _compute.min_max(time_buckets).as_py()
    return bool(replaced.start <= ends["min"] and ends["max"] < replaced.stop)


def _checked(item: Metrics, replaced: range) -> Metrics:
    # Not `in`: of a range it takes steps for what is not exactly an int.
    if not isinstance(item, BadRows) and not replaced.start <= item.time_bucket < replaced.stop:
        raise SinkError(
            f"metric {item.name} has a result for {item.entity!r} in time bucket "
            f"{item.time_bucket}, and `replace` is from {replaced.start} until before "
            f"{replaced.stop}: it would be added to what is stored there, so nothing is written. "
            "Give the rows of these time buckets only, or replace more of them, with all their rows"
        )
    return item
