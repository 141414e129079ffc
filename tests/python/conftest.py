"""Settings of all tests: the slice of each matrix that a run takes; the order for workers."""

import gc
import os
import signal
import subprocess
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

import java_machines

os.environ.update(java_machines.short_lived())

# A background job of a shell ignores SIGINT, and so would the processes that tests start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

ROOT = Path(__file__).parents[2]
MATRIX = "BATCHQUEUE_TEST_MATRIX"

# With several workers the slowest tests come first, so that all workers end together. Tests that
# share a cluster stay together; tests that share only the worker's Spark session are spread. The
# model tests are before all others: they know drain threads by their names, which the threads of
# pyarrow's pool take over when a commit into a Parquet store starts them.
FIRST = (
    *("core/model/", "spark/cluster/", "docs/", "spark/failures/", "cli/", "spark/"),
    *("core/promises/", "outputs/"),
)
TOGETHER = ("spark/cluster/",)
SPARK_PARTS = 12
"""A test with a Spark session takes seconds. Each run takes one in so many of a folder."""

PARTS = {
    "spark/": 3,
    "cli/test_demo_command.py": 3,
    "cli/groups/": 2,
    "cli/store/": 2,
    "exporters/test_http_programs.py": 3,
    "exporters/test_postgres_hangs.py": 3,
    "exporters/test_postgres_programs.py": 3,
    "groups/chaos/": 2,
    "groups/worker/": 2,
    "pipeline/runner/": 2,
    "pipeline/sinks/": 2,
    "pipeline/sources/": 2,
    "pipeline/spark/": 2,
}
"""The same for other tests that start processes or wait for them, by folder or file."""

SPREAD = ("spark/failures/test_driver_failures.py", "docs/test_examples.py")


def turn() -> int | None:
    """Returns the slice of each matrix that this run takes; None for all of it."""
    if given := os.environ.get(MATRIX):
        return None if given == "all" else int(given)
    git = ["git", "-C", ROOT, "rev-list", "--count", "HEAD"]
    try:
        counted = subprocess.run(git, check=True, capture_output=True, text=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return None  # sources without their history
    return int(counted)


def pytest_collection_finish() -> None:
    """Leaves what is there before the first test out of garbage collection, which tests ask for."""
    gc.collect()
    gc.freeze()


def pytest_report_header() -> str:
    taken = turn()
    if taken is None:
        return "matrices: every case"
    return (
        f"matrices: part {taken} by turns, another one with each commit;"
        f" every case: make test-all, or {MATRIX}=all"
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if (taken := turn()) is not None:
        leave_out(config, items, taken)
    if hasattr(config, "workerinput"):
        items.sort(key=rank)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Gives a worker one group of tests after the other, in their order."""
    from xdist.scheduler import LoadScopeScheduling

    class Groups(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return group(nodeid)

    return Groups(config, log)


@pytest.hookimpl(optionalhook=True)
def pytest_handlecrashitem(crashitem: str, sched: Any) -> None:
    """A test that ended its worker, perhaps by its deadline, is not given to another worker."""
    for tests in sched.workqueue.values():
        if crashitem in tests:
            tests[crashitem] = True


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    """Says how a worker ended that was not asked to, which neither pytest nor execnet does."""
    process = getattr(node.gateway._io, "popen", None)
    if error and process is not None:
        code = process.wait(60)
        how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        print(f"\nworker {node.gateway.id}, process {process.pid}, ended by {how}", flush=True)


def parts_of(item: pytest.Item) -> int | None:
    """Returns how many runs share the tests at the place of a test, or None."""
    path = item.path.relative_to(Path(__file__).parent).as_posix()
    return next((parts for place, parts in PARTS.items() if path.startswith(place)), None)


def leave_out(config: pytest.Config, items: list[pytest.Item], taken: int) -> None:
    """Keeps every n-th case of each matrix, and at least one.

    A matrix is the cases of a test with the mark `matrix`, or all tests whose mark has the same
    `name`; without a mark, it is all tests of a folder that use the fixture `spark`, or whose place
    has `PARTS`.
    """
    matrices: dict[tuple[str, int], list[pytest.Item]] = defaultdict(list)
    for item in items:
        if marker := item.get_closest_marker("matrix"):
            (parts,) = marker.args
            name = marker.kwargs.get("name", item.nodeid.partition("[")[0])
            matrices[name, parts].append(item)
        elif "spark" in getattr(item, "fixturenames", ()):
            matrices[str(item.path.parent), SPARK_PARTS].append(item)
        elif parts := parts_of(item):
            matrices[str(item.path.parent), parts].append(item)
    left_out = []
    for (_, parts), cases in matrices.items():
        count = min(parts, len(cases))
        left_out += [case for index, case in enumerate(cases) if index % count != taken % count]
    if left_out:
        gone = set(left_out)
        items[:] = [item for item in items if item not in gone]
        config.hook.pytest_deselected(items=left_out)


def group(nodeid: str) -> str:
    """Returns the name of a group of tests that one worker runs: usually those of a file."""
    path = nodeid.partition("::")[0].removeprefix("tests/python/")
    for folder in TOGETHER:
        if path.startswith(folder):
            return folder
    return nodeid if path in SPREAD else path


def rank(item: pytest.Item) -> int:
    path = item.path.relative_to(Path(__file__).parent).as_posix()
    return next((rank for rank, first in enumerate(FIRST) if path.startswith(first)), len(FIRST))
