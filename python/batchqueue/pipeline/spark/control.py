"""`DriverControl`: how the driver communicates with the readers of its queries.

The reader of a query runs in a separate process next to the JVM. Spark gives the driver no way to
call it, so both use files in one directory:

| file | written by | says |
|---|---|---|
| `paused` | the driver | all readers pause; the content is the reason |
| `epoch-<query>` | the driver, from Spark's progress | how long the last epoch was busy |

A file appears as a whole or not at all. When the directory is gone, nothing is paused, so a reader
that outlives its driver does not wait forever.
"""

import json
import logging
import os
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote


class EpochReport(NamedTuple):
    """What Spark reports about an epoch that has ended."""

    end: str
    """The position after it, as sorted JSON."""
    rows: int
    """Its rows."""
    busy_s: float
    """Seconds from its planning to its commit."""


class DriverControl:
    """The directory through which a driver pauses its readers, and reports epochs to them.

    It pickles. Only the driver writes.
    """

    def __init__(self, directory: str | Path) -> None:
        """Use a directory, which has to exist.

        Args:
            directory: A path that the driver and Spark's process on the driver's machine both see.
        """
        self._directory = Path(directory)

    def pause(self, reason: str) -> None:
        """Make all readers pause."""
        self._write("paused", reason)

    def resume(self) -> None:
        """Make all readers continue."""
        (self._directory / "paused").unlink(missing_ok=True)

    def reason(self) -> str | None:
        """Return why readers pause, or None if they do not."""
        return self._read("paused")

    def report(self, query: str, epoch: EpochReport) -> None:
        """Report the last epoch of a query."""
        self._write(_epoch_file(query), json.dumps(epoch))

    def last_epoch(self, query: str) -> EpochReport | None:
        """Return the newest report about a query, or None if there is none."""
        text = self._read(_epoch_file(query))
        return None if text is None else EpochReport(*json.loads(text))

    def _write(self, name: str, text: str) -> None:
        handle, path = tempfile.mkstemp(dir=self._directory)
        with os.fdopen(handle, "w") as file:
            file.write(text)
        os.replace(path, self._directory / name)

    def _read(self, name: str) -> str | None:
        try:
            return (self._directory / name).read_text()
        except FileNotFoundError:
            return None


def _epoch_file(query: str) -> str:
    return f"epoch-{quote(query, safe='')}"


_log = logging.getLogger("batchqueue.pipeline")


@dataclass(frozen=True, eq=False)
class RunControl:
    """The directory of one run. It is removed at the end, or when nothing refers to it any more."""

    directory: tempfile.TemporaryDirectory[str]
    control: DriverControl


class LiveControl:
    """Pauses and resumes the readers of all runs of a pipeline. Any thread may call it."""

    def __init__(self, parent: str | None) -> None:
        """Begin without runs.

        Args:
            parent: Where the directories are created; None for the system's temporary directory.
        """
        self._parent = parent
        self._lock = threading.Lock()
        # Both are written and read with the lock.
        self._reason: str | None = None
        self._runs: list[RunControl] = []

    @property
    def reason(self) -> str | None:
        """Why readers pause, or None if they do not."""
        with self._lock:
            return self._reason

    def begin(self) -> RunControl:
        """Make the directory of a run, which is paused if the pipeline is."""
        directory = tempfile.TemporaryDirectory(
            prefix="batchqueue-", dir=self._parent, ignore_cleanup_errors=True
        )
        run = RunControl(directory, DriverControl(directory.name))
        with self._lock:
            if self._reason is not None:
                run.control.pause(self._reason)
            self._runs.append(run)
        return run

    def stop(self, run: RunControl) -> None:
        """Make the readers of a run pause until its end, whether or not the pipeline resumes.

        Raises:
            OSError: The directory cannot be written.
        """
        with self._lock:
            if run in self._runs:
                self._runs.remove(run)
                run.control.pause("stop")

    def end(self, run: RunControl) -> None:
        """Remove the directory of a run; a reader that still waits in it stops waiting."""
        with self._lock:
            if run in self._runs:
                self._runs.remove(run)
        run.directory.cleanup()

    def pause(self, reason: str) -> None:
        """Make readers pause, including those of later runs."""
        with self._lock:
            self._reason = reason
            for run in self._runs:
                run.control.pause(reason)

    def resume(self) -> None:
        """Make readers continue."""
        with self._lock:
            self._reason = None
            for run in self._runs:
                run.control.resume()
