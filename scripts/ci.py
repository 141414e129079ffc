"""All that must hold before a change is kept, from a clean clone: what `.ci/run` runs.

That is: tests, lint, the examples of the documentation, stubs, types, a part of the faults, the
oldest pyspark, and the demo. Needs Python 3.11 or later, Rust with rustfmt and clippy, a C
toolchain and make; reads no standard input. `make test-all` runs what is a part here.
"""

import os
import re
import sys
import tempfile
from pathlib import Path

from stages import Stages, count_commits

ROOT = Path(__file__).resolve().parents[1]

FAULT_PARTS = 24
"""Into how many parts the faults are cut; all of them take more than an hour."""

CLOSING = re.compile(r"test result:|=+ .*(passed|failed).* =+$|=== make test: all passed")


def main() -> int:
    """Run the stages; print the runners' closing lines once more at the end."""
    os.chdir(ROOT)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.environ.setdefault("CI", "true")  # a test that lacks its PostgreSQL server fails
    part = f"{(count_commits() or 0) % FAULT_PARTS + 1}/{FAULT_PARTS}"
    closing: list[str] = []
    with Stages(".ci/run") as stages, tempfile.TemporaryDirectory() as output:
        # The README's commands.
        closing += filter(CLOSING.match, stages.run_and_keep("test", "make", "test"))
        versions = [".venv/bin/python", "scripts/spark_versions.py", "--versions", "3.5"]
        environment = stages.begin("versions-environment", *versions, "--prepare")
        stages.run("lint", "make", "lint")
        closing += filter(CLOSING.match, stages.run_and_keep("docs", "make", "test-docs"))
        stages.run("stubs", "make", "check-stubs")
        stages.run("types", "make", "types")
        # Another part with each commit.
        faults = stages.run_and_keep("faults", "make", "faults", f"FAULTS_ARGS=--part {part}")
        closing += faults[-1:]
        stages.wait(environment)
        # A minute of tests on the oldest pyspark; `make spark-versions` runs more of them on five.
        stages.run("versions", *versions, "--quick")
        stages.run("demo", "make", "demo", f"DEMO_ARGS=--rows 20000 --output {output}")
    print("\n".join(closing), flush=True)
    return stages.status


if __name__ == "__main__":
    sys.exit(main())
