"""Rows of a record batch: by mask, and by index. pyarrow cannot do it for all types."""

from typing import Any

import pyarrow as pa
import pyarrow.compute

pc: Any = pyarrow.compute  # untyped: it creates its functions on import


def filtered(batch: pa.RecordBatch, mask: pa.BooleanArray) -> pa.RecordBatch:
    """Return the rows where a mask is true; the batch itself if these are all."""
    if mask.true_count == batch.num_rows:
        return batch
    try:
        return batch.filter(mask)
    except pa.ArrowNotImplementedError:
        return taken(batch, pc.indices_nonzero(mask.fill_null(False)))


def taken(batch: pa.RecordBatch, indices: pa.Array) -> pa.RecordBatch:
    """Return the rows at some indices, in that order, as a copy.

    Args:
        batch: The batch.
        indices: Integers without nulls.
    """
    try:
        return batch.take(indices)
    except pa.ArrowNotImplementedError:
        # pyarrow 26 cannot take from views and run-end encoded columns, but slice and join them.
        rows = [batch.slice(index, 1) for index in indices.to_pylist()]
        return pa.concat_batches(rows) if rows else batch.slice(0, 0)
