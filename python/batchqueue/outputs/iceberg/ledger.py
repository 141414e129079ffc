"""The ledger of a sink in the snapshots of its Iceberg table.

Each snapshot that a transaction commits has the marks, the description, and the epochs that the
transaction has recorded. So a table that is rolled back has the ledger of then. Snapshots of other
writers, such as a compaction, have none: that of their nearest ancestor holds. Snapshots expire, so
a property of the table has the newest ledger as well.
"""

import json
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any

from batchqueue.outputs.store import Epoch, StoreError

if TYPE_CHECKING:
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.snapshots import Snapshot

LEDGER = "batchqueue.ledger"
"""The property of a snapshot, and of a table, with a ledger as JSON."""

Summary = tuple[str, int, dict[str, Any]]
"""Query id, batch id, content."""


@dataclass
class Ledger:
    """What a snapshot says of epochs.

    Attributes:
        marks: Query → largest batch id.
        description: Description of the job that wrote last.
        epochs: Those that the transaction of the snapshot has recorded, the oldest first.
        before: The newest epoch before them, whose snapshot may expire; None where `epochs` has
            one.
        begins: Whether earlier epochs are forgotten, or there are none.
    """

    marks: dict[str, int] = field(default_factory=dict)
    description: dict[str, Any] | None = None
    epochs: list[Summary] = field(default_factory=list)
    before: Summary | None = None
    begins: bool = True

    def newest(self) -> list[Summary]:
        """Return the newest epoch, or none."""
        return self.epochs[-1:] or ([] if self.before is None else [self.before])

    def next(self) -> "Ledger":
        """Return the ledger of the next transaction, before it records an epoch."""
        before = next(iter(self.newest()), None)
        return Ledger(dict(self.marks), deepcopy(self.description), [], before, begins=False)

    def has_anything(self) -> bool:
        """Return whether something was recorded since the last `clear`, if ever."""
        return bool(self.marks or self.newest() or self.description is not None)

    def to_text(self) -> str:
        """Return it as the property of a snapshot."""
        return json.dumps({**vars(self), "before": None if self.epochs else self.before})

    def to_property(self, snapshot: "Snapshot") -> dict[str, str]:
        """Return it as the property of a table whose newest ledger it is, in this snapshot."""
        content = {
            **vars(self),
            "epochs": [],
            "before": next(iter(self.newest()), None),
            "snapshot": snapshot.snapshot_id,
            "sequence": snapshot.sequence_number,
        }
        return {LEDGER: json.dumps(content)}


def ledger_of(metadata: "TableMetadata", name: str) -> Ledger:
    """Return the ledger of the current snapshot.

    Raises:
        StoreError: It is damaged, or that snapshot is of a time before the first ledger.
    """
    for text in _texts(metadata):
        return _read(text, name)
    newest = metadata.properties.get(LEDGER)
    return Ledger() if newest is None else _of_expired(metadata, newest, name)


def _of_expired(metadata: "TableMetadata", text: str, name: str) -> Ledger:
    """Return the newest ledger: no snapshot in the history has one any more.

    Raises:
        StoreError: It is not that of the current snapshot.
    """
    try:
        content = json.loads(text)
        snapshot_id, sequence = content.pop("snapshot"), content.pop("sequence")
        ledger = Ledger(**content)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise _unreadable(name, error) from error
    sequences = {each.snapshot_id: each.sequence_number or 0 for each in metadata.snapshots}
    later = [entry.snapshot_id for entry in metadata.snapshot_log]
    if snapshot_id in later:
        later = later[len(later) - later[::-1].index(snapshot_id) :]
    current = metadata.current_snapshot_id
    came_back = any(sequences.get(each, sequence) < sequence for each in later)
    if current is None or sequences[current] < sequence or (snapshot_id in sequences and came_back):
        raise StoreError(
            f"table {name} was rolled back to a snapshot whose ledger has expired, from one with "
            f"the marks {ledger.marks}: roll it forward to snapshot {snapshot_id} if that is still "
            "kept, or drop the table and write the sink anew"
        )
    return ledger


def epochs_of(metadata: "TableMetadata", name: str, newest: int) -> list[Epoch]:
    """Return the newest epochs of the snapshots that are kept, the oldest first.

    The newest of all is always among them.

    Raises:
        StoreError: A ledger is damaged.
    """
    found = list(islice(_newest_first(metadata, name), newest))
    if not found and newest > 0:  # the snapshot that had it has expired
        found = [Epoch(*epoch) for epoch in ledger_of(metadata, name).newest()]
    return found[::-1]


def _newest_first(metadata: "TableMetadata", name: str) -> Iterator[Epoch]:
    for text in _texts(metadata):
        ledger = _read(text, name)
        yield from (Epoch(*epoch) for epoch in reversed(ledger.epochs))
        if ledger.begins:
            return


def _texts(metadata: "TableMetadata") -> Iterator[str]:
    """Yield the ledgers of the current snapshot and its ancestors, the newest first."""
    snapshots = {snapshot.snapshot_id: snapshot for snapshot in metadata.snapshots}
    current: Snapshot | None = metadata.current_snapshot()
    while current is not None:
        if current.summary is not None:
            text = current.summary.additional_properties.get(LEDGER)
            if text is not None:
                yield text
        parent = current.parent_snapshot_id
        current = None if parent is None else snapshots.get(parent)


def _read(text: str, name: str) -> Ledger:
    try:
        return Ledger(**json.loads(text))
    except (ValueError, TypeError) as error:
        raise _unreadable(name, error) from error


def _unreadable(name: str, error: Exception) -> StoreError:
    return StoreError(
        f"table {name} has a ledger that cannot be read ({error}): use the version of batchqueue "
        "that wrote it, or roll the table back to the snapshot before"
    )
