"""`LiveControl`: the driver's side of the control directories, one for each run."""

import logging
import tempfile
import threading
from dataclasses import dataclass

from batchqueue.pipeline.spark.control import Control

_log = logging.getLogger("batchqueue.pipeline")


@dataclass(frozen=True, eq=False)
class RunControl:
    """The directory of one run. It is removed at the end, or when nothing refers to it any more."""

    directory: "tempfile.TemporaryDirectory[str]"
    control: Control


class LiveControl:
    """Pauses and resumes the readers of all runs of a pipeline. Any thread may call it."""

    def __init__(self, parent: str | None) -> None:
        """Begin without runs.

        Args:
            parent: Where the directories are made; None for the temporary directory of the system.
        """
        self._parent = parent
        self._lock = threading.Lock()
        # Both written and read with the lock.
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
        run = RunControl(directory, Control(directory.name))
        with self._lock:
            if self._reason is not None:
                run.control.pause(self._reason)
            self._runs.append(run)
        return run

    def stop(self, run: RunControl) -> None:
        """Let the readers of a run pause until its end, whether or not the pipeline resumes.

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
        """Let readers pause, those of later runs as well."""
        with self._lock:
            self._reason = reason
            for run in self._runs:
                run.control.pause(reason)

    def resume(self) -> None:
        """Let readers continue."""
        with self._lock:
            self._reason = None
            for run in self._runs:
                run.control.resume()
