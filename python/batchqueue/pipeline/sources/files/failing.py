"""Errors that name the file: of what cannot be read, and of what changed after it was listed."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from batchqueue.pipeline.errors import SourceChangedError, SourceDataError
from batchqueue.pipeline.sources.files.scan import FileEntry, entry_of

if TYPE_CHECKING:
    from pyarrow import fs

_KEEP = (
    "files must not change while they are read: write new ones under a name that starts with '.' "
    "or '_' and rename them, or begin with a new checkpoint"
)


@contextmanager
def reading(path: str, remedy: str = "") -> Iterator[None]:
    """Let errors of pyarrow and of the system name the file.

    Args:
        path: The file.
        remedy: What to do about data that does not parse.

    Raises:
        SourceDataError: The file is corrupt or cannot be read.
        SourceChangedError: The file is gone.
    """
    import pyarrow as pa

    try:
        yield
    except FileNotFoundError as error:
        raise SourceChangedError(f"{path} was listed and is gone; {_KEEP}") from error
    except (MemoryError, pa.ArrowCancelled):
        raise
    except (pa.ArrowException, OSError, EOFError, UnicodeDecodeError) as error:
        hint = remedy or "write it again, or leave it out of the paths"
        raise SourceDataError(f"{path} cannot be read: {error}; {hint}") from error


def check_unchanged(filesystem: "fs.FileSystem", entry: FileEntry) -> None:
    """Refuse a file that is not the one that was listed.

    Raises:
        SourceChangedError: Its size or time differs, or it is gone.
    """
    with reading(entry.path):
        info = filesystem.get_file_info(entry.path)
    if not info.is_file:
        raise SourceChangedError(f"{entry.path} was listed ({entry}) and is gone; {_KEEP}")
    now = entry_of(info)
    if now[1:] != entry[1:]:
        raise SourceChangedError(f"{entry.path} was {entry} and is {now}; {_KEEP}")
