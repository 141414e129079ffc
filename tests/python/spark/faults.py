"""What the tests of failures share: a store that goes wrong at a named place, and waiting with a deadline."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from batchqueue.outputs import SqliteStore, StoreTransaction

IN_A_TASK = "in a task"
BEFORE_THE_COMMIT = "before the commit"
BEFORE_THE_LEDGER_ENTRY = "between merge and ledger entry"
BEFORE_THE_END = "before the transaction ends"
AFTER_THE_COMMIT = "after the commit"

DEADLINE_S = 300


def wait_until(condition: Callable[[], Any]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, f"waited {DEADLINE_S} s for {condition}"
        time.sleep(0.02)


class FaultyStore(SqliteStore):
    """A store that does something bad, at one place in one transaction of the sink."""

    def __init__(self, path: Path, place: str, applied: int, action: Callable[[], None]) -> None:
        """Describe it.

        Args:
            path: The file.
            place: One of the names above.
            applied: How many epochs are in the ledger when it happens.
            action: What happens.
        """
        super().__init__(path)
        self.place = place
        self.applied = applied
        self.action = action

    @contextmanager
    def transaction(self, sink_id: str = "default") -> Iterator[StoreTransaction]:
        if sink_id == "default":  # `prepare`
            with super().transaction(sink_id) as transaction:
                yield transaction
            return
        self._reach(BEFORE_THE_COMMIT, len(self.summaries(sink_id)))
        with super().transaction(sink_id) as transaction:
            applied = len(transaction.summaries())
            record = transaction.record

            def faulty_record(
                query_id: str, batch_id: int, summary: Mapping[str, Any], *, marked: bool = True
            ) -> None:
                self._reach(BEFORE_THE_LEDGER_ENTRY, applied)
                record(query_id, batch_id, summary, marked=marked)

            transaction.record = faulty_record  # type: ignore[method-assign]
            yield transaction
            self._reach(BEFORE_THE_END, applied)
        self._reach(AFTER_THE_COMMIT, applied)

    def _reach(self, place: str, applied: int) -> None:
        if (place, applied) == (self.place, self.applied):
            self.action()
