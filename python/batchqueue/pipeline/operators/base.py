"""`ChainedOperator`: what a chain asks of each of its operators."""

from collections.abc import Iterator
from typing import TypeAlias

import pyarrow as pa

Outputs: TypeAlias = pa.RecordBatch | Iterator[pa.RecordBatch] | None
"""What follows from a chunk: a batch, as from most operators, several lazily, or nothing."""


class ChainedOperator:
    """An operator inside a chain. What it raises is wrapped by the chain.

    Attributes:
        name: The step as the graph declares it; part of the snapshot.
        has_state: Whether `snapshot` and `restore` mean something.
        keeps_rows: Whether rows may stay in it until `flush`.
    """

    has_state = False
    keeps_rows = False

    def __init__(self, name: str) -> None:
        self.name = name

    def process(self, chunk: pa.RecordBatch) -> Outputs:
        """Return what follows from a chunk."""
        raise NotImplementedError

    def flush(self) -> Iterator[pa.RecordBatch]:
        """Return what should not wait any longer, lazily."""
        return iter(())

    def check_flushed(self) -> None:
        """Raise CutError if there are rows that only `flush` would emit."""

    def snapshot(self) -> bytes:
        """Return the state."""
        raise NotImplementedError

    def restore(self, state: bytes) -> None:
        """Take the state of a former snapshot."""
        raise NotImplementedError

    def pause(self, reason: str) -> None:
        """Take note that the input pauses."""

    def resume(self) -> None:
        """Take note that the input continues."""
