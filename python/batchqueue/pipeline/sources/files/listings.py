"""Which listing a position refers to: one that was made once, or the log of a watched directory."""

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from batchqueue.exceptions import ConfigError
from batchqueue.pipeline.errors import PositionError
from batchqueue.pipeline.sources.files.format import format_of
from batchqueue.pipeline.sources.files.listing import FrozenListing, recover
from batchqueue.pipeline.sources.files.log import ListingLog
from batchqueue.pipeline.sources.files.position import Place
from batchqueue.pipeline.sources.files.scan import FileEntry, scan

if TYPE_CHECKING:
    import pyarrow as pa
    from pyarrow import fs


class Listing(Protocol):
    """A list of files that positions refer to."""

    @property
    def files(self) -> Sequence[FileEntry]:
        """The files, in the order of reading."""
        ...

    @property
    def mark(self) -> dict[str, Any]:
        """What positions keep of it."""
        ...

    def at(self, number: int, piece: int) -> FileEntry | None:
        """Return what a position keeps of a file."""
        ...


class Listings(Protocol):
    """The listings of a source. It pickles, without the lists."""

    def current(self) -> Listing:
        """Return the listing that a first run begins with."""
        ...

    def find(self, place: Place) -> Listing:
        """Return the listing of a position."""
        ...

    def extend(self) -> None:
        """Add new files to the listing, if it grows."""
        ...

    def schema(self, read: "Callable[[FileEntry], pa.Schema]") -> "tuple[pa.Schema, str]":
        """Return the columns of the first file, and its path.

        Args:
            read: Returns the columns of a file.
        """
        ...


class FrozenListings:
    """The files that were there when the source was first used, or when a position was made."""

    def __init__(
        self, name: str, filesystem: "fs.FileSystem", paths: Sequence[str], named: bool
    ) -> None:
        """Describe them.

        Args:
            name: The name of the source.
            filesystem: Where the files are.
            paths: The paths to scan.
            named: Whether the names of the files say their format.
        """
        self._name, self._filesystem, self._paths, self._named = name, filesystem, paths, named
        self._current: Listing | None = None
        self._found: dict[str, Listing] = {}

    def current(self) -> Listing:
        """Return the listing of this process, which is made on the first call."""
        if self._current is None:
            listing = FrozenListing(self._scan())
            self._current = self._found[listing.mark["id"]] = listing
        return self._current

    def find(self, place: Place) -> Listing:
        """Return the listing of a position, which is made again if another process made it.

        Raises:
            PositionError: It is a position of a watched directory.
            SourceChangedError: A file of it has changed or is gone.
        """
        identity = place.mark["id"]
        if not all(type(place.mark.get(key)) is int for key in ("files", "newest")):
            raise PositionError(
                f"source {self._name!r}: {place.mark!r} is not a list of files that was made once, "
                "but that of a watched directory; begin with a new checkpoint"
            )
        if identity not in self._found:
            found = recover(self._scan(), place.mark, place.at, self._name)
            # The thread that reads the lag may have been quicker, and there is one listing.
            self._found.setdefault(identity, found)
        return self._found[identity]

    def extend(self) -> None:
        """Do nothing: there is an end."""

    def schema(self, read: "Callable[[FileEntry], pa.Schema]") -> "tuple[pa.Schema, str]":
        """Return the columns of the first file, and its path."""
        first = self.current().files[0]
        return read(first), first.path

    def _scan(self) -> list[FileEntry]:
        found = scan(self._filesystem, self._paths)
        if not found.files:
            empty = f", except for {found.empty} of zero bytes" if found.empty else ""
            raise ConfigError(f"no file matches {', '.join(self._paths)}{empty}; correct `paths`")
        if self._named:
            format_of(found.files)
        return found.files

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_current": None, "_found": {}}


class WatchedListing:
    """The log of a directory that grows."""

    def __init__(
        self,
        filesystem: "fs.FileSystem",
        paths: Sequence[str],
        named: bool,
        log: str,
        interval_s: float,
    ) -> None:
        """Describe it.

        Args:
            filesystem: Where the files are.
            paths: The paths to scan.
            named: Whether the names of the files say their format.
            log: The path of the log.
            interval_s: Seconds between two scans.
        """
        self._filesystem, self._paths, self._named = filesystem, paths, named
        self._path, self._interval_s = log, interval_s
        self._logs: dict[str, ListingLog] = {}  # one at most
        self._next_scan_s = 0.0

    def current(self) -> ListingLog:
        """Return the log."""
        if not self._logs:
            # The thread that reads the lag may be quicker, and there is one log.
            self._logs.setdefault(self._path, ListingLog(self._path, self._paths))
        return self._logs[self._path]

    def find(self, place: Place) -> ListingLog:
        """Return the log, which has to be the one of the position.

        Raises:
            SourceChangedError: The log was deleted and made again, or truncated.
        """
        log = self.current()
        log.require(place.mark, place.file + (place.piece > 0))
        return log

    def extend(self) -> None:
        """Scan, unless the last scan was just now."""
        if time.monotonic() < self._next_scan_s:
            return
        found = scan(self._filesystem, self._paths).files
        if self._named and found:
            format_of(found)
        self.current().extend(found)
        self._next_scan_s = time.monotonic() + self._interval_s

    def schema(self, read: "Callable[[FileEntry], pa.Schema]") -> "tuple[pa.Schema, str]":
        """Return the columns of the first file, which are noted: it may be gone some day.

        Raises:
            ConfigError: No file has come yet.
        """
        log = self.current()
        if not log.files:
            raise ConfigError(
                f"no file has come yet to {', '.join(self._paths)}, so the columns are not known; "
                "give `schema`"
            )
        first = log.files[0]
        return log.schema or log.note_schema(read(first)), first.path

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_logs": {}, "_next_scan_s": 0.0}
