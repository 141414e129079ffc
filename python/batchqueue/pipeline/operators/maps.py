"""Functions and operator objects of the user in a chain: `map` and `stateful`."""

from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa

from batchqueue._words import a_type
from batchqueue.pipeline.errors import GraphError, OperatorError
from batchqueue.pipeline.operators.base import ChainedOperator, Outputs
from batchqueue.pipeline.operators.results import batches_of, check_schema


class FunctionOperator(ChainedOperator):
    """A function of a record batch."""

    def __init__(
        self, name: str, function: Callable[[pa.RecordBatch], Any], schema: pa.Schema | None
    ) -> None:
        super().__init__(name)
        self._function = function
        self._schema = schema

    def process(self, chunk: pa.RecordBatch) -> Outputs:
        """Call the function."""
        result = self._function(chunk)
        if not isinstance(result, pa.RecordBatch):
            return None if result is None else self._checked(result)
        if self._schema is not None:
            check_schema(self.name, result, self._schema)
        return result

    def _checked(self, result: Any) -> Iterator[pa.RecordBatch]:
        for batch in batches_of(self.name, result):
            if self._schema is not None:
                check_schema(self.name, batch, self._schema)
            yield batch


class ObjectOperator(FunctionOperator):
    """An object with `process`, and whatever else of `contract.Operator` it has."""

    def __init__(self, name: str, operation: Any, schema: pa.Schema | None = None) -> None:
        super().__init__(name, operation.process, schema)
        self._flush = getattr(operation, "flush", None)
        self._snapshot = getattr(operation, "snapshot", None)
        self._restore = getattr(operation, "restore", None)
        self._on_pause = getattr(operation, "on_pause", None)
        self._on_resume = getattr(operation, "on_resume", None)
        if (self._snapshot is None) != (self._restore is None):
            has, lacks = "snapshot", "restore"
            if self._snapshot is None:
                has, lacks = lacks, has
            raise GraphError(
                f"{name}: {type(operation).__name__} has `{has}` but not `{lacks}`; define both, "
                "or neither"
            )
        self.has_state = self._snapshot is not None
        self.keeps_rows = self._flush is not None

    def flush(self) -> Iterator[pa.RecordBatch]:
        """Call `flush` of the object."""
        return iter(()) if self._flush is None else self._checked(self._flush())

    def snapshot(self) -> bytes:
        """Return the state of the object."""
        assert self._snapshot is not None
        state = self._snapshot()
        if not isinstance(state, bytes):
            raise OperatorError(
                f"the snapshot of {self.name} is {a_type(state)}; return bytes", self.name
            )
        return state

    def restore(self, state: bytes) -> None:
        """Give the object its state."""
        assert self._restore is not None
        self._restore(state)

    def pause(self, reason: str) -> None:
        """Call `on_pause`."""
        if self._on_pause is not None:
            self._on_pause(reason)

    def resume(self) -> None:
        """Call `on_resume`."""
        if self._on_resume is not None:
            self._on_resume()


def operator_of(name: str, operation: Any, schema: pa.Schema | None = None) -> ChainedOperator:
    """Return the chained operator of a function, or of an object with `process`."""
    if callable(getattr(operation, "process", None)) and not isinstance(operation, type):
        return ObjectOperator(name, operation, schema)
    if callable(operation) and not isinstance(operation, type):
        return FunctionOperator(name, operation, schema)
    raise GraphError(
        f"{name} made {operation!r}; it must make an object with `process`, or a function of a "
        "record batch"
    )
