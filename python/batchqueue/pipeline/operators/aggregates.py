"""`aggregate` in a chain: in one worker, or in several whose partials one more merges."""

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from batchqueue.aggregation import Aggregation, Aggregator
from batchqueue.pipeline.errors import CutError
from batchqueue.pipeline.operators.base import ChainedOperator

_NEVER_MS = 1e12
"""The flush period: the flush of the chain decides, not the time."""


@dataclass(frozen=True, eq=False)
class PartialAggregateStep:
    """The first half of a spread aggregation: `spread` workers merge parts of the rows."""

    aggregation: Aggregation
    spread: int

    def __str__(self) -> str:
        return f"aggregate({', '.join(self.aggregation.measures)}) in {self.spread} parts"


@dataclass(frozen=True, eq=False)
class MergeAggregateStep:
    """The second half of a spread aggregation: one worker merges the partials of the others."""

    aggregation: Aggregation

    def __str__(self) -> str:
        return f"aggregate({', '.join(self.aggregation.measures)})"


class AggregateOperator(ChainedOperator):
    """Merges rows, and partials, until `flush`; groups are emitted earlier if there are too many.

    It has no state at a cut, because it is flushed before.
    """

    keeps_rows = True

    def __init__(self, name: str, aggregation: Aggregation, *, emits_partials: bool) -> None:
        super().__init__(name)
        self._aggregation = aggregation
        self._emits_partials = emits_partials
        self._early: list[pa.RecordBatch] = []
        self._aggregator = self._new()

    def process(self, chunk: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Merge the rows; return groups only where there would be too many."""
        self._aggregator.update(chunk)
        early = self._early.copy()
        self._early.clear()
        for partials in early:
            yield partials if self._emits_partials else self._merged(partials)

    def flush(self) -> Iterator[pa.RecordBatch]:
        """Return all groups, and begin anew."""
        if len(self._aggregator):
            if self._emits_partials:
                groups = self._aggregator.partials()
            else:
                groups = self._aggregator.result()
                self._aggregator = self._new()
            yield groups

    def check_flushed(self) -> None:
        """Raise CutError if there are groups."""
        if groups := len(self._aggregator):
            raise CutError(
                f"{self.name} still has {groups} groups, which a snapshot would lose; flush the "
                "chain before"
            )

    def _new(self) -> Aggregator:
        return Aggregator(self._aggregation, self._early.append, flush_period_ms=_NEVER_MS)

    def _merged(self, partials: pa.RecordBatch) -> pa.RecordBatch:
        aggregator = Aggregator(self._aggregation)
        aggregator.update(partials)
        return aggregator.result()
