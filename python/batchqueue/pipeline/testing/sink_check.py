"""`check_sink`: does a sink show exactly what was committed, and remember the last cut?"""

import gc
import json
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from batchqueue._words import counted
from batchqueue.pipeline.contract import Position, Sink, TransactionalSink

if TYPE_CHECKING:
    import pyarrow as pa

_PIPELINE = "check_sink"
_POSITIONS: dict[str, Position] = {
    "orders": {"file": 3, "piece": 0, "at": ["a/ü.parquet", 1 << 60, None], "part": 0.5},
    "clients": {"offsets": {"0": 17, "1": 0}, "done": True, "filler": "x" * 60_000},
}


def check_sink(
    make: Callable[[], Sink],
    *,
    chunks: "Sequence[pa.RecordBatch] | None" = None,
    read: "Callable[[], Iterable[dict[str, Any]]] | None" = None,
) -> None:
    """Check that a sink keeps the contract.

    A sink with `commit` and `last_cut` is given cuts, and is dropped and made again between them
    as after a crash. If it has `open`, it is called first.

    Args:
        make: Returns a new instance of the sink, each on the same place, which is empty at first.
        chunks: What to write, at least two record batches. Default: None, four of them with the
            columns `n` (int64, each value once) and `s` (string).
        read: Returns the rows that readers see, in any order, as dicts. Default: None, only what
            `last_cut` returns is checked.

    Raises:
        AssertionError: A rule is broken; the message says which, and where.

    Example:
        >>> from pyarrow import dataset
        >>> from batchqueue.pipeline import FileSink
        >>> check_sink(
        ...     lambda: FileSink("numbers"),
        ...     read=lambda: dataset.dataset("numbers").to_table().to_pylist(),
        ... )
    """
    check = _SinkCheck(make, list(chunks) if chunks is not None else _some_chunks(), read)
    if len(check.chunks) < 2:
        has = counted(len(check.chunks), "record batch", "record batches")
        raise AssertionError(f"chunks has {has}; give at least two")
    if isinstance(check.sink, TransactionalSink):
        check.cuts()
    else:
        check.writes()


class _SinkCheck:
    def __init__(
        self,
        make: Callable[[], Sink],
        chunks: "list[pa.RecordBatch]",
        read: "Callable[[], Iterable[dict[str, Any]]] | None",
    ) -> None:
        self.make, self.chunks, self.read = make, chunks, read
        self.sink: Any = None
        self.crash()

    def crash(self) -> None:
        """Continue with a new instance; the old one is dropped without any call."""
        self.sink = None
        gc.collect()
        made = self.make()
        if not isinstance(made, Sink):
            raise AssertionError(f"{made!r} is not a sink: it needs batch_rows and write")
        self.sink = made
        if hasattr(self.sink, "open"):
            self.sink.open(_PIPELINE)
        rows = self.sink.batch_rows
        if not isinstance(rows, int) or rows < 1:
            self.fail(f"batch_rows is {rows!r}; it must be an int of at least 1")

    def writes(self) -> None:
        """Check a sink without cuts."""
        self.sink.write([])
        self.sink.write(self.chunks)
        self.shows(self.chunks, "after write")
        self.crash()
        self.shows(self.chunks, "in a new instance after write")

    def cuts(self) -> None:
        """Check a transactional sink."""
        first, rest = self.chunks[:1], self.chunks[1:]
        self.remembers(None, "of an empty place")
        self.sink.write(first)
        self.crash()
        self.remembers(None, "after a write without commit and a crash")
        self.shows([], "after a write without commit and a crash")

        self.sink.write([])
        for chunk in first:
            self.sink.write([chunk])
        self.commit(1, {"orders": {"file": 1}})
        self.shows(first, "after cut 1")
        self.crash()
        self.remembers((1, {"orders": {"file": 1}}), "after cut 1 and a crash")
        self.shows(first, "after cut 1 and a crash")

        self.sink.write(rest)
        self.crash()
        self.remembers((1, {"orders": {"file": 1}}), "after an aborted cut 2")
        self.shows(first, "after an aborted cut 2")
        self.sink.write(rest)
        self.commit(2, _POSITIONS)
        self.crash()
        self.remembers((2, _POSITIONS), "after cut 2 was written again")
        self.shows(self.chunks, "after cut 2 was written again")

        self.commit(3, {"orders": {"file": 9}})
        self.crash()
        self.remembers((3, {"orders": {"file": 9}}), "after a cut without rows")
        self.shows(self.chunks, "after a cut without rows")

    def commit(self, cut: int, positions: dict[str, Position]) -> None:
        """Commit, and check that the same instance knows."""
        self.sink.commit(cut, positions)
        self.remembers((cut, positions), f"after commit({cut}, ...)")

    def remembers(self, expected: tuple[int, dict[str, Position]] | None, when: str) -> None:
        """Compare the last cut."""
        last = self.sink.last_cut()
        found = (
            None if last is None else (last[0], {name: dict(at) for name, at in last[1].items()})
        )
        if found == expected:
            return
        shown = repr(found) if len(repr(found)) < 500 else f"{repr(found)[:500]}..."
        if expected is None:
            self.fail(f"last_cut() is {shown} {when}; it must be None")
        self.fail(f"last_cut() is {shown} {when}; it must be cut {expected[0]} with its positions")

    def shows(self, chunks: "list[pa.RecordBatch]", when: str) -> None:
        """Compare the rows that readers see."""
        if self.read is None:
            return
        expected = _sorted(row for chunk in chunks for row in chunk.to_pylist())
        found = _sorted(self.read())
        if found != expected:
            wrong = sum(a != b for a, b in zip(found, expected, strict=False))
            self.fail(
                f"readers see {counted(len(found), 'row')} {when}, {wrong} of them wrong; they "
                f"must see {len(expected)}: what was committed, once, and nothing else"
            )

    def fail(self, message: str) -> NoReturn:
        """Raise AssertionError in the name of the sink."""
        raise AssertionError(f"sink {type(self.sink).__name__}: {message}")


def _sorted(rows: Iterable[dict[str, Any]]) -> list[str]:
    return sorted(json.dumps(row, sort_keys=True, default=repr) for row in rows)


def _some_chunks() -> "list[pa.RecordBatch]":
    import pyarrow as pa

    counts = (500, 1, 37, 500)
    starts = [sum(counts[:number]) for number in range(len(counts))]
    return [
        pa.record_batch(
            {
                "n": pa.array(range(start, start + count), pa.int64()),
                "s": [f"row {number}" for number in range(count)],
            }
        )
        for start, count in zip(starts, counts, strict=True)
    ]
