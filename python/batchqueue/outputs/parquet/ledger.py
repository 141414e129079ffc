"""The epochs of a sink in a Parquet store: the newest in its manifest, older ones in files.

Such a file never changes, like those of the data. Some of the newest files become a larger one in
their turn, because each commit writes the names of all, and lists the folder to find others. So a
commit costs the same, however many epochs are kept.
"""

import json
import uuid
from copy import deepcopy
from itertools import takewhile
from pathlib import Path

from batchqueue._words import counted
from batchqueue.outputs.parquet.manifest import (
    EPOCHS_SUFFIX,
    Manifest,
    Summary,
    damaged,
    write_durably,
)
from batchqueue.outputs.store import StoreError

FILE_EPOCHS = 32
"""So many epochs in the manifest become a file, and so many of these files become one. Each commit
writes the manifest, and a file costs another `fsync`."""


def add_epoch(manifest: Manifest, epoch: Summary, kept: int) -> None:
    """Add the newest epoch; forget the oldest if there would be more than `kept`."""
    manifest.recent.append(epoch)
    excess = max(manifest.forgotten, _stored(manifest) - kept)
    while manifest.older and excess >= manifest.older[0][1]:
        excess -= manifest.older.pop(0)[1]
    if not manifest.older:
        del manifest.recent[:excess]
        excess = 0
    manifest.forgotten = excess


def move_recent(folder: Path, manifest: Manifest) -> list[Path]:
    """Move the epochs of a manifest into a file, if there are enough; return the file."""
    if len(manifest.recent) < FILE_EPOCHS:
        return []
    small = list(takewhile(_is_small, reversed(manifest.older)))
    merged = manifest.older[-len(small) :] if len(small) >= FILE_EPOCHS - 1 else []
    try:
        epochs = [epoch for name, number in merged for epoch in _epochs_in(folder / name, number)]
    except (OSError, StoreError):
        # A damaged file is named where it is read, and must not stop those who only write.
        merged, epochs = [], []
    epochs += manifest.recent
    path = folder / f"{uuid.uuid4().hex[:16]}{EPOCHS_SUFFIX}"
    write_durably(path, json.dumps(epochs).encode())
    manifest.older = [
        *manifest.older[: len(manifest.older) - len(merged)],
        (path.name, len(epochs)),
    ]
    manifest.recent = []
    return [path]


def _is_small(file: tuple[str, int]) -> bool:
    return file[1] < FILE_EPOCHS * FILE_EPOCHS


def newest_epochs(folder: Path, manifest: Manifest, newest: int | None = None) -> list[Summary]:
    """Return the newest epochs that are kept, the oldest first.

    Args:
        folder: The folder of the sink.
        manifest: Its state.
        newest: At most this many; `None` for all.

    Raises:
        OSError: A file cannot be read.
        StoreError: A file is damaged.
    """
    kept = _stored(manifest) - manifest.forgotten
    wanted = kept if newest is None else max(0, min(newest, kept))
    found = deepcopy(manifest.recent)
    for name, number in reversed(manifest.older):
        if len(found) >= wanted:
            break
        found = _epochs_in(folder / name, number) + found
    return found[len(found) - wanted :]


def _stored(manifest: Manifest) -> int:
    return len(manifest.recent) + sum(number for _, number in manifest.older)


def _epochs_in(path: Path, number: int) -> list[Summary]:
    try:
        epochs: list[Summary] = json.loads(path.read_bytes())
        if len(epochs) != number:
            raise ValueError(f"{counted(len(epochs), 'epoch')} instead of {number}")
    except (ValueError, TypeError) as error:
        raise damaged(path, error) from error
    return epochs
