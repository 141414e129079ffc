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


@dataclass
class Ledger:
    """What a snapshot says of epochs.

    Attributes:
        marks: Query → largest batch id.
        description: Description of the job that wrote last.
        epochs: Those that the transaction of the snapshot has recorded, the oldest first. In the
            property of a table: the newest epoch.
        begins: Whether earlier epochs are forgotten, or there are none.
    """

    marks: dict[str, int] = field(default_factory=dict)
    description: dict[str, Any] | None = None
    epochs: list[tuple[str, int, dict[str, Any]]] = field(default_factory=list)
    begins: bool = True

    def next(self) -> "Ledger":
        """Return the ledger of the next transaction, before it records an epoch."""
        return Ledger(dict(self.marks), deepcopy(self.description), begins=False)

    def has_anything(self) -> bool:
        """Return whether something was recorded since the last `clear`, if ever."""
        return bool(self.marks or self.epochs or self.description is not None)

    def to_text(self) -> str:
        """Return it as the property of a snapshot."""
        return json.dumps(vars(self))


def properties_of(ledger: Ledger, earlier: list[Epoch], snapshot_id: int) -> dict[str, str]:
    """Return what a table says of its newest ledger.

    Args:
        ledger: That of the snapshot.
        earlier: The newest epoch before it, or none.
        snapshot_id: The snapshot.
    """
    newest = (ledger.epochs or earlier)[-1:]
    content = {**vars(ledger), "epochs": newest, "begins": True, "snapshot": snapshot_id}
    return {LEDGER: json.dumps(content)}


def ledger_of(metadata: "TableMetadata", name: str) -> Ledger:
    """Return the ledger of the current snapshot.

    Raises:
        StoreError: It is damaged, or that snapshot is of a time before the first ledger.
    """
    for text in _texts(metadata):
        return _read(text, name)
    newest = metadata.properties.get(LEDGER)
    if newest is None:
        return Ledger()
    ledger = json.loads(newest)
    known = {snapshot.snapshot_id for snapshot in metadata.snapshots}
    if ledger.pop("snapshot", None) in known:
        raise StoreError(
            f"table {name} was rolled back to a snapshot without a ledger, before its first epoch: "
            "roll it forward again, or drop the table to write the sink anew"
        )
    return _read(json.dumps(ledger), name)


def epochs_of(metadata: "TableMetadata", name: str, newest: int) -> list[Epoch]:
    """Return the newest epochs of the snapshots that are kept, the oldest first.

    Raises:
        StoreError: A ledger is damaged.
    """
    found = list(islice(_newest_first(metadata, name), newest))
    if not found and newest > 0:  # the snapshot that had it has expired
        found = [Epoch(*epoch) for epoch in ledger_of(metadata, name).epochs[-1:]]
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
        raise StoreError(
            f"table {name} has a ledger that cannot be read ({error}): use the version of "
            "batchqueue that wrote it, or roll the table back to the snapshot before"
        ) from error
