"""Waits with a deadline, on a condition, on a process, or on other processes of this machine."""

import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

DEADLINE_S = 150
"""Seconds after which a wait gives up; a healthy run never waits that long."""


def wait_until(
    condition: Callable[[], Any], what: str = "", deadline_s: float = DEADLINE_S
) -> None:
    """Poll a condition.

    Raises:
        TimeoutError: It did not come true in time.
    """
    deadline = time.monotonic() + deadline_s
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {deadline_s} s for {what or condition}")
        time.sleep(0.02)


class Meeting:
    """Blocks each caller until so many have come, from any process of this machine."""

    def __init__(self, folder: Path, parties: int) -> None:
        folder.mkdir(exist_ok=True)
        self._folder = folder
        self._parties = parties

    def __call__(self) -> None:
        (self._folder / str(uuid.uuid4())).touch()
        wait_until(lambda: len(self.came()) >= self._parties)

    def came(self) -> list[Path]:
        """Return a file for each caller that has come."""
        return list(self._folder.iterdir())


def is_alive(pid: int) -> bool:
    """Return whether a process runs; a zombie does not."""
    try:
        return _stat(pid)[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def parent(pid: int) -> int:
    """Return the process that started this one, or has adopted it."""
    return int(_stat(pid)[1])


def _stat(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
