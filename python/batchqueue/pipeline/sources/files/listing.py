"""The list of files that positions refer to. It stays the same when files are added later."""

import hashlib
import json
from collections.abc import Sequence
from typing import Any

from batchqueue._background_log import BackgroundLog
from batchqueue._words import counted
from batchqueue.pipeline.errors import SourceChangedError
from batchqueue.pipeline.sources.files.scan import FileEntry

_log = BackgroundLog("batchqueue.pipeline")
_NAMED = 5


class FrozenListing:
    """The files that were there when it was made, sorted by path.

    Attributes:
        files: The files.
        mark: What positions keep of it: a digest of all files, and what is needed to make it again
            when there are more files.
    """

    def __init__(self, files: Sequence[FileEntry]) -> None:
        self.files = files
        newest = max((file.mtime_ns or 0 for file in files), default=0)
        self.mark: dict[str, Any] = {"id": _digest(files), "files": len(files), "newest": newest}

    def at(self, number: int, piece: int) -> FileEntry | None:
        """Return what a position keeps of a file; None behind the last one."""
        return self.files[number] if number < len(self.files) else None


def recover(
    found: Sequence[FileEntry], mark: dict[str, Any], at: FileEntry | None, name: str
) -> FrozenListing:
    """Make the listing of a position again, from the files that exist now.

    Files that came later do not belong to it, and are logged as a warning.

    Args:
        found: The files that exist, sorted.
        mark: The mark of the listing.
        at: The file at the position, if it is not behind the last one.
        name: The name of the source.

    Raises:
        SourceChangedError: A file of the listing has changed or is gone.
    """
    listing = FrozenListing(found)
    if listing.mark == mark:
        return listing
    newest = mark["newest"]
    listing = FrozenListing([file for file in found if (file.mtime_ns or 0) <= newest])
    later = [file for file in found if (file.mtime_ns or 0) > newest]
    if listing.mark == mark:
        _log.warning(
            "source %r: %s came after the position was made and %s not read: %s; begin "
            "with a new checkpoint, or use watch=True for directories that grow",
            name,
            counted(len(later), "file"),
            "is" if len(later) == 1 else "are",
            _some(later),
        )
        return listing
    raise SourceChangedError(
        f"source {name!r}: {_difference(found, listing.files, later, mark, at)}; restore them, or "
        "begin with a new checkpoint"
    )


def _difference(
    found: Sequence[FileEntry],
    older: Sequence[FileEntry],
    later: Sequence[FileEntry],
    mark: dict[str, Any],
    at: FileEntry | None,
) -> str:
    if at is not None and at not in found:
        now = next((file for file in found if file.path == at.path), None)
        return f"{at.path} was {at} and is {'gone' if now is None else now}"
    count, missing = mark["files"], mark["files"] - len(older)
    if missing > 0:
        written = f"; written since: {_some(later)}" if later else ""
        verbs = ("is gone or was", "are gone or were")[missing > 1]
        return f"{missing} of its {counted(count, 'file')} {verbs} written again{written}"
    return f"its {count} files are not the same as the {len(older)} that exist now: {_some(older)}"


def _some(files: Sequence[FileEntry]) -> str:
    names = ", ".join(file.path for file in files[:_NAMED])
    return names + (f" and {len(files) - _NAMED} more" if len(files) > _NAMED else "")


def _digest(files: Sequence[FileEntry]) -> str:
    digest = hashlib.sha256()
    for file in files:
        digest.update(json.dumps(file).encode())
    return digest.hexdigest()[:32]
