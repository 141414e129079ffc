"""All tests, as `make test` runs them: stage by stage, with the seconds of each.

The environment of the Python tests is made beside the tests of the core, which need none.
"""

import os
import sys

from stages import Stages

MAKE = os.environ.get("MAKE", "make")


def main() -> int:
    """Run the stages; return 1 if one of them fails."""
    with Stages("make test") as stages:
        environment = stages.begin("environment", MAKE, "--jobs=2", "test-environment")
        stages.run("test-rust", MAKE, "test-rust")
        stages.run("loom", MAKE, "loom")
        stages.wait(environment)
        stages.run("test-python", MAKE, "test-python")
    return stages.status


if __name__ == "__main__":
    sys.exit(main())
