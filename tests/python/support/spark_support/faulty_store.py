"""A store with a fault at a named place."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from batchqueue.outputs import ParquetStore, PostgresStore, SqliteStore, StoreTransaction

IN_A_TASK = "in a task"
BEFORE_THE_COMMIT = "before the commit"
BEFORE_THE_LEDGER_ENTRY = "between merge and ledger entry"
BEFORE_THE_END = "before the transaction ends"
AFTER_THE_COMMIT = "after the commit"


Store = SqliteStore | PostgresStore | ParquetStore


def epochs(store: Store, sink_id: str = "flights") -> list[int]:
    """Return the numbers of the epochs in the ledger."""
    return [epoch.batch_id for epoch in store.summaries(sink_id)]


class FaultyStore:
    """A store that takes an action at one place in one transaction of the sink."""

    def __init__(self, store: Store, place: str, applied: int, action: Callable[[], None]) -> None:
        """Describe it.

        Args:
            store: Keeps the data. Read from it.
            place: One of the names above.
            applied: How many epochs are in the ledger at that time.
            action: The fault.
        """
        self._store = store
        self._place = place
        self._applied = applied
        self._action = action

    def prepare(self) -> None:
        """Prepare without a fault."""
        self._store.prepare()

    @contextmanager
    def transaction(self, sink_id: str = "default") -> Iterator[StoreTransaction]:
        """Open a transaction, and take the action at its place."""
        self._reach(BEFORE_THE_COMMIT, len(self._store.summaries(sink_id)))
        with self._store.transaction(sink_id) as transaction:
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
        if (place, applied) == (self._place, self._applied):
            self._action()
