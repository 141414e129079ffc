"""Notes in a folder, by which processes of a cluster report to the test and wait for each other."""

import json
import os
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Notes:
    """One file per note, each a JSON object of some kind.

    Attributes:
        folder: Every process of the test can write to it.
    """

    folder: Path

    def write(self, kind: str, **facts: Any) -> None:
        """Leave a note, which appears as a whole or not at all."""
        draft = self.folder / f".{uuid.uuid4()}"
        draft.write_text(json.dumps(facts))
        draft.rename(self.folder / f"{kind} {uuid.uuid4()}")

    def read(self, kind: str, **facts: Any) -> list[dict[str, Any]]:
        """Return the notes of a kind that have these facts, in no order."""
        notes = [json.loads(path.read_text()) for path in self.folder.glob(f"{kind} *")]
        return [note for note in notes if facts.items() <= note.items()]

    def first(self, what: str) -> bool:
        """Return whether this is the first call, in all processes, that names `what`."""
        try:
            os.close(os.open(self.folder / f"first {what}", os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return False
        return True
