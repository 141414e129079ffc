"""All tests, as `make test` runs them: stage by stage, with the seconds of each.

The environment of the Python tests, and the binary of the loom models, are made beside the tests of
the core, which need neither and wait for most of their time. Of the matrices, and of the slowest
loom models, each commit takes another part. With `--all`, as `make test-all` runs them: with every
case of the matrices, the slow tests, the bounds of `make loom-full`, the examples of the
documentation, all faults, and all versions of pyspark. That takes hours.
"""

import os
import sys

from stages import Stages, count_commits

MAKE = os.environ.get("MAKE", "make")


def main() -> int:
    """Run the stages; return 1 if one of them fails."""
    everything = sys.argv[1:] == ["--all"]
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


if __name__ == "__main__":
    sys.exit(main())
