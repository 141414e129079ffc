"""Thread counts: how many a policy makes of a number of cores, and that it counts usable cores.

A process may be allowed fewer cores than the machine has, in two ways: an affinity mask, and a
quota of its control group, which is how containers are limited. The quota's test makes a control
group for a child. Where the system does not allow this, as in most containers, only the mask can be
tested, and the quota's test is skipped with the reason.
"""

import os
import subprocess
import sys
import uuid
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from batchqueue import ThreadPolicy, presets
from core_support.scripts import SCRIPT_S

POLICIES = {
    presets.METRICS_L1_AGGREGATION: ThreadPolicy.cpu_cores(1.0),
    presets.METRICS_L2_PERSISTENCE: ThreadPolicy.cpu_cores(0.25),
    presets.TOPN_WORKER: ThreadPolicy.fixed(1),
    presets.IO_POOL: ThreadPolicy.cpu_cores(0.5),
}
"""The policies of a whole metrics pipeline: three queues, and the pool that all others share."""


@pytest.mark.parametrize(
    ("cores", "threads"),
    [(2, (2, 1, 1, 1)), (4, (4, 1, 1, 2)), (8, (8, 2, 1, 4)), (16, (16, 4, 1, 8))],
)
def test_threads_of_a_whole_pipeline(cores, threads):
    assert tuple(policy.resolve(cores) for policy in POLICIES.values()) == threads


@pytest.mark.parametrize(("cores", "threads"), [(2, 5), (4, 8), (8, 15), (16, 29)])
def test_sum_of_the_threads_of_a_whole_pipeline(cores, threads):
    assert sum(policy.resolve(cores) for policy in POLICIES.values()) == threads


COUNT = """
import os, sys
from batchqueue import BatchQueue, BatchQueueConfig, PartitionPolicy, ThreadPolicy
policy = ThreadPolicy.cpu_cores(1.0)
config = BatchQueueConfig(threads=policy, partitions=PartitionPolicy.fixed(64))
with BatchQueue("q", config) as queue:
    print(policy.resolve(), queue.stats().thread_count)
"""


def counted(before):
    """The cores that an interpreter counts after `before`: by the policy, and in a queue."""
    ended = subprocess.run(
        [sys.executable, "-c", before + COUNT],
        capture_output=True,
        text=True,
        timeout=SCRIPT_S,
        check=True,
    )
    return tuple(int(word) for word in ended.stdout.split())


def test_without_a_limit_all_cores_of_the_process_are_counted():
    allowed = len(os.sched_getaffinity(0))
    by_policy, in_queue = counted("")
    assert by_policy == in_queue <= allowed  # fewer under a quota


def test_affinity_mask_is_respected():
    core = min(os.sched_getaffinity(0))
    assert counted(f"import os; os.sched_setaffinity(0, {{{core}}})\n") == (1, 1)


@contextmanager
def group_with_one_core():
    """The member file of a new control group with a quota of one core, or None."""
    with ExitStack() as removal:
        yield next(filter(None, (_made(*hierarchy, removal) for hierarchy in _hierarchies())), None)


def _made(parent, quota_file, quota, removal):
    group = parent / f"batchqueue-test-{uuid.uuid4()}"
    try:
        group.mkdir()
        removal.callback(group.rmdir)
        # Only into files of the kernel: where the controller is off, there is no such file.
        with (group / quota_file).open("r+") as existing:
            existing.write(quota)
    except OSError:
        return None
    return group / "cgroup.procs"


def _hierarchies():
    """This process's control groups of version 2 and version 1, and how each sets a quota."""
    mounted = Path("/sys/fs/cgroup")
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers:
            yield mounted / path.lstrip("/"), "cpu.max", "100000 100000"
        elif "cpu" in controllers.split(","):
            for mount in {controllers, "cpu"}:
                yield mounted / mount / path.lstrip("/"), "cpu.cfs_quota_us", "100000"  # of 100,000


def test_quota_of_the_control_group_is_respected():
    with group_with_one_core() as members:
        if members is None:
            pytest.skip(
                "this process may not make a control group; only the affinity mask is tested"
            )
        join = f"import os; open({str(members)!r}, 'w').write(str(os.getpid()))\n"
        assert counted(join) == (1, 1)
