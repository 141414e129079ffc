"""`TickingRows`: a source into which rows come at a fixed rate, whether they are read or not."""

import time
from collections.abc import Iterator, Sequence

import pyarrow as pa

from batchqueue.pipeline import Lag, Limit, Plan, Position, Split

SCHEMA = pa.schema([("n", pa.int64())])
SPLIT_ROWS = 500


class TickingRows:
    """The numbers from 0 on, in splits of 500; it has no end."""

    name = "ticking"
    bounded = False

    def __init__(self, rows_per_s: int, began_s: float) -> None:
        """Begin without rows, at a time in seconds since 1970."""
        self._rows_per_s = rows_per_s
        self._began_s = began_s

    def schema(self) -> pa.Schema:
        return SCHEMA

    def initial(self) -> Position:
        return {"row": 0}

    def plan(self, start: Position, limit: Limit) -> Plan:
        there = int((time.time() - self._began_s) * self._rows_per_s) // SPLIT_ROWS * SPLIT_ROWS
        most = max(limit.rows // SPLIT_ROWS, 1) * SPLIT_ROWS
        end = {"row": min(there, start["row"] + most)}
        return Plan(tuple(self.between(start, end)), end if end["row"] > start["row"] else start)

    def between(self, start: Position, end: Position) -> Sequence[Split]:
        return [
            Split("0", {"row": at}, {"row": at + SPLIT_ROWS}, SPLIT_ROWS, 8 * SPLIT_ROWS, None)
            for at in range(start["row"], end["row"], SPLIT_ROWS)
        ]

    def read(self, split: Split) -> Iterator[pa.RecordBatch]:
        yield pa.record_batch({"n": pa.array(range(split.start["row"], split.end["row"]))})

    def lag(self, at: Position) -> dict[str, Lag]:
        there = int((time.time() - self._began_s) * self._rows_per_s)
        return {"0": Lag(max(0, there - at["row"]), None)}

    def commit(self, end: Position) -> None:
        """Keep nothing."""
