"""The folder of a run, and its files."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from batchqueue.cli.demo_folder import claimed_folder

_MADE = ("metrics.sqlite*", "worker-*.*", "ownership.png", "redis.log", "redis")
"""What a run leaves."""


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

    A worker of a run that was killed might otherwise store into the new database.

    Args:
        path: The folder, created on demand.

    Raises:
        ConfigError: Another run uses the folder, or it cannot be written.
    """
    with claimed_folder(path, _MADE) as lock:
        yield RunFolder(path, lock)
