"""A commit to `ParquetStore` beside few and many epochs in its ledger."""

import time
from pathlib import Path
from typing import Any

from batchqueue.outputs import ParquetStore
from batchqueue.outputs.parquet.manifest import FILE_EPOCHS

COMMITS = 2 * FILE_EPOCHS  # of which two write a file of epochs

SUMMARY: dict[str, Any] = {
    "rows": 20_000,
    "tasks": [
        {"partition": number, "rows": 2_500, "items": 10_000, "handlers_s": 0.25, "groups": 1_000}
        for number in range(8)
    ],
}
"""As large as that of an epoch of eight tasks."""


class Ledger:
    """A sink with a number of epochs."""

    def __init__(self, directory: Path, epochs: int) -> None:
        """Make the sink, by transactions of as many epochs as a file has."""
        # The files that this replaces within a second are a day's in life, and gone by then.
        self._store = ParquetStore(
            directory, kept_summaries=2 * epochs + COMMITS, keep_replaced_s=0
        )
        self._next = 0
        while self._next < epochs:
            self._record(min(FILE_EPOCHS, epochs - self._next))

    def commits(self) -> float:
        """Return the seconds that commits of one epoch take."""
        begin = time.perf_counter()
        for _ in range(COMMITS):
            self._record(1)
        return time.perf_counter() - begin

    def _record(self, epochs: int) -> None:
        with self._store.transaction() as transaction:
            for _ in range(epochs):
                transaction.record("bench", self._next, SUMMARY)
                self._next += 1
