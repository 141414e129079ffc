"""Notes in a folder: how processes of a cluster tell the test what they did, and wait for each other."""

import json
import os
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Notes:
    """One file per note; all of them are JSON objects of a kind.

    Attributes:
        folder: Where every process of the test can write.
    """

    folder: Path

    def write(self, kind: str, **facts: Any) -> None:
        """Leave a note, which is there as a whole or not at all."""
        draft = self.folder / f".{uuid.uuid4()}"
        draft.write_text(json.dumps(facts))
        draft.rename(self.folder / f"{kind} {uuid.uuid4()}")

    def read(self, kind: str, **facts: Any) -> list[dict[str, Any]]:
        """Return the notes of a kind that have these facts, in no order."""
        notes = [json.loads(path.read_text()) for path in self.folder.glob(f"{kind} *")]
        return [note for note in notes if facts.items() <= note.items()]

    def first(self, what: str) -> bool:
        """Return whether this call is the first, of all processes, that names `what`."""
        try:
            os.close(os.open(self.folder / f"first {what}", os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return False
        return True
