"""The stages of `make test`, `make test-all` and `.ci/run`, with the seconds of each.

| command | what runs |
|---|---|
| `stages.py test` | all tests; of matrices and the slowest loom models a part, chosen by commit |
| `stages.py test-all` | every case, slow tests, loom-full, docs, all faults, every pyspark; hours |
| `stages.py ci` | `make test`, lint, docs, stubs, types, some faults, the oldest pyspark, a demo |

Each runs from a clean clone without an environment. It needs Python 3.11 or later, Rust with
rustfmt and clippy, a C toolchain and make.
"""

import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import IO, NamedTuple, Self

ROOT = Path(__file__).resolve().parents[1]
MAKE = os.environ.get("MAKE", "make")

FAULT_PARTS = 24
"""The number of parts that the faults are divided into; all of them take more than an hour."""

CLOSING = re.compile(
    r"test result:|=+ .*(passed|failed).* =+$|\d+ passed, \d+ failed$|=== make test: all passed"
)
"""The last lines that test runners print."""


def test(everything: bool) -> int:
    """Run all tests; return 1 if a stage fails.

    The environment of the Python tests and the binary of the loom models are built while the tests
    of the core run, which need neither and mostly wait.
    """
    if everything:
        os.environ["BATCHQUEUE_TEST_MATRIX"] = "all"
        os.environ["PYTEST_ADDOPTS"] = "-m 'slow or not slow'"
    elif not os.environ.get("BATCHQUEUE_TEST_MATRIX"):
        os.environ["BATCHQUEUE_TEST_MATRIX"] = str(count_commits() or "all")
    with Stages("make test-all" if everything else "make test") as stages:
        environment = stages.begin("environment", MAKE, "--jobs=2", "test-environment")
        loom_build = stages.begin("loom-build", "nice", MAKE, "loom-build")
        stages.run("test-rust", MAKE, "test-rust")
        stages.wait(loom_build)
        stages.run("loom", MAKE, "loom-full" if everything else "loom")
        stages.wait(environment)
        stages.run("test-python", MAKE, "test-python")
        if everything:
            stages.run("test-docs", MAKE, "test-docs")
            stages.run("faults", MAKE, "faults")
            stages.run("spark-versions", ".venv/bin/python", "scripts/spark_versions.py")
    return stages.status


def ci() -> int:
    """Run all checks that a change must pass; print the closing lines again at the end."""
    os.chdir(ROOT)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.environ.setdefault("CI", "true")  # a test fails if its PostgreSQL server is missing
    part = f"{(count_commits() or 0) % FAULT_PARTS + 1}/{FAULT_PARTS}"
    closing: list[str] = []
    with Stages(".ci/run") as stages, tempfile.TemporaryDirectory() as output:
        # The README's commands.
        stages.run("test", "make", "test", closing=closing)
        versions = [".venv/bin/python", "scripts/spark_versions.py", "--versions", "3.5"]
        environment = stages.begin("versions-environment", *versions, "--prepare")
        stages.run("lint", "make", "lint")
        stages.run("docs", "make", "test-docs", closing=closing)
        stages.run("stubs", "make", "check-stubs")
        stages.run("types", "make", "types")
        # A different part for each commit.
        stages.run("faults", "make", "faults", f"FAULTS_ARGS=--part {part}", closing=closing)
        stages.wait(environment)
        # A minute of tests on the oldest pyspark; `make spark-versions` runs more, on five.
        stages.run("versions", *versions, "--quick")
        stages.run("demo", "make", "demo", f"DEMO_ARGS=--rows 20000 --output {output}")
    print("\n".join(closing), flush=True)
    return stages.status


def count_commits() -> int | None:
    """Return the number of commits of this checkout; `None` for sources without their history."""
    git = ["git", "-C", ROOT, "rev-list", "--count", "HEAD"]
    try:
        return int(subprocess.run(git, check=True, capture_output=True, text=True).stdout)
    except (OSError, subprocess.CalledProcessError):
        return None


class StageFailed(Exception):
    """A stage ended with a status other than 0; its output says why."""


class Background(NamedTuple):
    """A stage that runs in parallel with others; its output is shown when it has ended."""

    name: str
    process: subprocess.Popen[bytes]
    output: IO[bytes]
    began: float


class Stages:
    """A run of stages, with a table of their seconds at the end; the first failure ends it.

    Attributes:
        status: 0, or 1 after a failure.
    """

    def __init__(self, title: str) -> None:
        """Begin without stages.

        Args:
            title: The name of the run in the last line.
        """
        self.status = 0
        self._title = title
        self._seconds: dict[str, float] = {}
        self._background: list[Background] = []
        self._began = time.monotonic()

    def run(self, name: str, *command: str, closing: list[str] | None = None) -> None:
        """Run one stage to its end; append the last lines of its tests to `closing`."""
        print(f"=== {name}: {' '.join(command)}", flush=True)
        began = time.monotonic()
        if closing is None:
            self._ended(name, began, subprocess.call(command))
            return
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
        ) as process:
            for line in process.stdout or ():
                print(line, end="", flush=True)
                if CLOSING.match(line.rstrip("\n")):
                    closing.append(line.rstrip("\n"))
        self._ended(name, began, process.returncode)

    def begin(self, name: str, *command: str) -> Background:
        """Start a stage in parallel with the next ones; `wait` for it before using its result."""
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
        print(f"=== {self._title}: seconds of each stage")
        for name, seconds in [*self._seconds.items(), ("total", total)]:
            print(f"{seconds:7.0f} {name}")
        if isinstance(error, StageFailed):
            self.status = 1
            print(f"=== {self._title}: {error}, after {total:.0f} s", flush=True)
            return True
        if error is None:
            print(f"=== {self._title}: all passed in {total:.0f} s", flush=True)
        return False


if __name__ == "__main__":
    runs = {"test": lambda: test(False), "test-all": lambda: test(True), "ci": ci}
    sys.exit(runs[sys.argv[1]]())
