"""Commands one after the other, with the seconds of each, and some of them beside the others."""

import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import IO, Self


def count_commits() -> int | None:
    """Return the number of commits of this checkout; `None` for sources without their history."""
    git = ["git", "-C", Path(__file__).parent, "rev-list", "--count", "HEAD"]
    try:
        return int(subprocess.run(git, check=True, capture_output=True, text=True).stdout)
    except (OSError, subprocess.CalledProcessError):
        return None


class StageFailed(Exception):
    """A stage ended with a status other than 0; its output says why."""


@dataclass
class Background:
    """A stage that runs beside the others, and whose output is shown when it has ended."""

    name: str
    process: subprocess.Popen[bytes]
    output: IO[bytes]
    began: float


@dataclass
class Stages:
    """Runs stages and prints a table of their seconds at the end; the first failure ends them all.

    Attributes:
        title: Names the whole in the last line.
        status: 0, or 1 after a failure.
    """

    title: str
    status: int = 0
    _seconds: dict[str, float] = field(default_factory=dict)
    _background: list[Background] = field(default_factory=list)
    _began: float = field(default_factory=time.monotonic)

    def run(self, name: str, *command: str) -> None:
        """Run one stage to its end."""
        print(f"=== {name}: {' '.join(command)}", flush=True)
        began = time.monotonic()
        self._ended(name, began, subprocess.call(command))

    def run_and_keep(self, name: str, *command: str) -> list[str]:
        """Run one stage to its end; return the lines that it printed."""
        print(f"=== {name}: {' '.join(command)}", flush=True)
        began = time.monotonic()
        lines = []
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
        ) as process:
            for line in process.stdout or ():
                print(line, end="", flush=True)
                lines.append(line.rstrip("\n"))
        self._ended(name, began, process.returncode)
        return lines

    def begin(self, name: str, *command: str) -> Background:
        """Start a stage beside those that follow; `wait` for it before its result is needed."""
        print(f"=== {name}: {' '.join(command)}, beside the next stages", flush=True)
        output = tempfile.TemporaryFile()  # noqa: SIM115 (read and closed by `wait`)
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
        self._background.append(Background(name, process, output, time.monotonic()))
        return self._background[-1]

    def wait(self, stage: Background) -> None:
        """Wait for a stage that was started by `begin`, and show its output."""
        self._background.remove(stage)
        status = stage.process.wait()
        print(f"=== {stage.name}: what it printed", flush=True)
        stage.output.seek(0)
        sys.stdout.buffer.write(stage.output.read())
        sys.stdout.buffer.flush()
        stage.output.close()
        self._ended(stage.name, stage.began, status)

    def _ended(self, name: str, began: float, status: int) -> None:
        self._seconds[name] = time.monotonic() - began
        if status != 0:
            raise StageFailed(f"{name}: failed with status {status}")
        print(f"=== {name}: done in {self._seconds[name]:.0f} s", flush=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> bool:
        for stage in self._background:
            stage.process.terminate()
            stage.process.wait()
        total = time.monotonic() - self._began
        print(f"=== {self.title}: seconds of each stage")
        for name, seconds in [*self._seconds.items(), ("total", total)]:
            print(f"{seconds:7.0f} {name}")
        if isinstance(error, StageFailed):
            self.status = 1
            print(f"=== {self.title}: {error}, after {total:.0f} s", flush=True)
            return True
        if error is None:
            print(f"=== {self.title}: all passed in {total:.0f} s", flush=True)
        return False
