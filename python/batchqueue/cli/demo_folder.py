"""The folder of a run: one run uses it at a time, and each run starts anew."""

import fcntl
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from batchqueue.exceptions import ConfigError

_PATIENCE_S = 15.0
"""Longer than the processes of a run that was killed need to end."""

_POLL_S = 0.1


@contextmanager
def claimed_folder(path: Path, made: Sequence[str]) -> Iterator[IO[bytes]]:
    """Lock a folder for a run, and remove what an earlier run left there.

    Processes of the run inherit the lock, so that a new run begins only after the last process of
    one that was killed has ended.

    Args:
        path: The folder, created on demand.
        made: Patterns of the files and folders of a run. Others are not the demo's, and stay.

    Yields:
        The file that is locked.

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
        for pattern in made:
            for found in path.glob(pattern):
                if found.is_dir():
                    shutil.rmtree(found, ignore_errors=True)
                else:
                    found.unlink()
        yield lock


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
