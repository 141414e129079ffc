"""The folder of a run: one run uses it at a time, and each run starts anew."""

import fcntl
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from batchqueue.exceptions import ConfigError

_MADE = ("metrics.sqlite*", "worker-*.log", "worker-*.journal", "ownership.png", "redis.log")
"""The files of a run. Others in the folder are not the demo's, and stay."""

_PATIENCE_S = 15.0
"""Longer than the workers of a run that was killed need to end."""

_POLL_S = 0.1


class RunFolder:
    """The files of a run.

    Attributes:
        path: The folder.
        lock: The file that is locked while the run, or a process that it started, lives.
    """

    def __init__(self, path: Path, lock: IO[bytes]) -> None:
        self.path = path
        self.lock = lock

    @property
    def database(self) -> Path:
        """The file of the aggregates."""
        return self.path / "metrics.sqlite"

    @property
    def picture(self) -> Path:
        """The file of the picture, a PNG."""
        return self.path / "ownership.png"

    @property
    def server(self) -> Path:
        """The folder of the server's data, which is removed when it has ended."""
        return self.path / "redis"

    @property
    def server_log(self) -> Path:
        """The log of the server."""
        return self.path / "redis.log"

    def log(self, worker: str) -> Path:
        """Return the file of a worker's output."""
        return self.path / f"{worker}.log"

    def journal(self, worker: str) -> Path:
        """Return the file of a worker's journal."""
        return self.path / f"{worker}.journal"


@contextmanager
def claimed(path: Path) -> Iterator[RunFolder]:
    """Lock a folder for a run, and remove what an earlier run left there.

    Processes of the run inherit the lock, so that a new run begins only after the last worker of
    one that was killed has ended: otherwise that worker might store into the new database.

    Args:
        path: The folder, created on demand.

    Raises:
        ConfigError: Another run uses the folder, or it cannot be written.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
        lock = (path / "lock").open("wb")
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be written ({error.strerror or error}): name another --output"
        ) from error
    with lock:
        _acquire(lock, path)
        for pattern in _MADE:
            for file in path.glob(pattern):
                file.unlink()
        shutil.rmtree(path / "redis", ignore_errors=True)
        yield RunFolder(path, lock)


def _acquire(lock: IO[bytes], path: Path) -> None:
    end = time.monotonic() + _PATIENCE_S
    while True:
        try:
            return fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= end:
                raise ConfigError(
                    f"another demo runs in {path}: wait for its end, or name another --output"
                ) from None
            time.sleep(_POLL_S)
