"""`FilterOperator`: keeps some of the rows."""

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from batchqueue.pipeline.chunks.rows import filtered
from batchqueue.pipeline.errors import OperatorError
from batchqueue.pipeline.operators.base import ChainedOperator
from batchqueue.pipeline.operators.results import row_values


class FilterOperator(ChainedOperator):
    """Keeps the rows for which an expression or a function says true; null means no."""

    def __init__(self, name: str, keep: "pc.Expression | Callable[[pa.RecordBatch], Any]") -> None:
        super().__init__(name)
        self._keep = keep

    def process(self, chunk: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows to keep."""
        if isinstance(self._keep, pc.Expression):
            given: Any = _evaluated(self._keep, chunk)
        else:
            given = self._keep(chunk)
        return filtered(chunk, self._mask(given, chunk.num_rows))

    def _mask(self, given: Any, rows: int) -> pa.BooleanArray:
        wanted = f"return a boolean array with a value for each of the {rows} rows"
        mask = row_values(self.name, given, rows, wanted)
        if not pa.types.is_boolean(mask.type):
            message = f"{self.name} returned values of type {mask.type}; {wanted}"
            raise OperatorError(message, self.name)
        return mask


def _evaluated(expression: pc.Expression, chunk: pa.RecordBatch) -> pa.ChunkedArray:
    """Return the value of an expression for each row.

    `RecordBatch.filter` would do it in threads of pyarrow, and not for all types of columns.
    """
    # Imported here: it imports pandas, if that is installed, which takes seconds.
    from pyarrow import acero

    table = pa.Table.from_batches([chunk])
    plan = acero.Declaration.from_sequence(
        [
            acero.Declaration("table_source", acero.TableSourceNodeOptions(table)),
            acero.Declaration("project", acero.ProjectNodeOptions([expression], ["keep"])),
        ]
    )
    return plan.to_table(use_threads=False).column(0)
