"""Sources and pipelines in separate processes: killed again and again, and paused."""

import json
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from batchqueue.pipeline import Source
from core_support.waits import eventually

SUPPORT = Path(__file__).parents[1]
DEADLINE_S = 120


def start(module: str, argument: Path, **settings: Any) -> subprocess.Popen[bytes]:
    """Starts a module beside this one."""
    path = os.pathsep.join([str(SUPPORT), *filter(None, sys.path)])
    command = [sys.executable, "-m", f"pipeline_support.{module}", str(argument)]
    return subprocess.Popen(command, env={**os.environ, "PYTHONPATH": path}, **settings)


def killed_again_and_again(folder: Path, count: Callable[[], int], rows: int) -> None:
    """Kills the copy of a source three times in between, and lets it end the fourth time.

    Args:
        folder: The folder, with the source.
        count: Returns how many rows readers of the copy see.
        rows: How many rows there are in all.
    """
    for _ in range(3):
        before = count()
        process = start("table_copy", folder)

        def is_at_work(process: subprocess.Popen[bytes] = process, before: int = before) -> bool:
            assert process.poll() is None, "it ended before it was killed"
            return count() > before

        eventually(is_at_work, "more is copied")
        process.kill()
        process.wait()
        assert count() < rows, "it was killed in between"
    assert start("table_copy", folder).wait(DEADLINE_S) == 0


def paused(source: Source, folder: Path) -> dict[str, int]:
    """Returns what a reader that pauses after its first batch says, from its own process."""
    file = folder / "source.pickle"
    file.write_bytes(pickle.dumps(source))
    process = start("paused_reader", file, stdout=subprocess.PIPE)
    said, _ = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 0
    found: dict[str, int] = json.loads(said)
    return found
