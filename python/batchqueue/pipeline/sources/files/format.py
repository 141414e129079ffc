"""What a file format has to do for `FileSource`, and which format a file has."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

from batchqueue.exceptions import ConfigError
from batchqueue.pipeline.sources.files.fit import Fit
from batchqueue.pipeline.sources.files.scan import FileEntry

if TYPE_CHECKING:
    import pyarrow as pa
    from pyarrow import fs

_SUFFIXES = {
    "parquet": (".parquet", ".pq", ".parq"),
    "arrow": (".arrow", ".feather", ".ipc"),
    "csv": (".csv",),
    "json": (".json", ".jsonl", ".ndjson"),
}
_COMPRESSED = (".gz", ".bz2", ".zst", ".lz4")
FORMATS = tuple(_SUFFIXES)


class Piece(NamedTuple):
    """A part of a file that is read as a whole: a row group, a record batch or the file."""

    rows: int | None
    """Its rows; None if not known before it is read."""
    bytes: int | None
    """Its bytes in memory, roughly; None if not known before it is read."""


class FileFormat(Protocol):
    """How to read the files of a format. It pickles."""

    def schema(self, filesystem: "fs.FileSystem", path: str) -> "pa.Schema":
        """Return the columns of a file."""
        ...

    def pieces(self, filesystem: "fs.FileSystem", path: str, fit: Fit) -> Sequence[Piece]:
        """Return the parts of a file, at least one, and check its columns."""
        ...

    def open(self, filesystem: "fs.FileSystem", path: str, fit: Fit) -> "OpenFile":
        """Open a file to read its parts, and check its columns."""
        ...


class OpenFile(Protocol):
    """A file whose parts are read, one after the other."""

    def read(self, number: int) -> "Iterator[pa.RecordBatch]":
        """Read a part, and nothing of the others."""
        ...

    def close(self) -> None:
        """Close the file; more than once does nothing."""
        ...


def format_of(files: Sequence[FileEntry]) -> str:
    """Return the format that the names of files say.

    Raises:
        ConfigError: A name says nothing, or they differ.
    """
    formats: dict[str, str] = {}
    for file in files:
        name = file.path.lower()
        for suffix in _COMPRESSED:
            name = name.removesuffix(suffix)
        found = next((each for each, ends in _SUFFIXES.items() if name.endswith(ends)), None)
        if found is None:
            known = ", ".join(suffix for ends in _SUFFIXES.values() for suffix in ends)
            raise ConfigError(
                f"the name of {file.path} does not say its format, as {known} do; give `format`, "
                f"one of {', '.join(FORMATS)}, or leave the file out of the paths"
            )
        formats.setdefault(found, file.path)
        if len(formats) > 1:
            paths = " and ".join(f"{path} ({each})" for each, path in formats.items())
            raise ConfigError(f"the files have several formats: {paths}; give each its own source")
    return next(iter(formats))
