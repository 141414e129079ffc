"""Children of `multiprocessing` and `billiard` deliver what they accepted.

Most of them end without the exit of an interpreter. Celery's workers are those of `billiard`.
"""

import subprocess
import sys
from itertools import product

import pytest

from core_support.scripts import SCRIPT_S

PROGRAM = """
import importlib, os, sys, threading
from batchqueue import BatchQueue, BatchQueueConfig, ThreadPolicy

def write(*words):
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())

def make(name):
    # No batch becomes full, or is due before a minute.
    made = BatchQueue(
        name,
        BatchQueueConfig(
            threads=ThreadPolicy.fixed(1),
            max_batch_items=1_000,
            max_delay_ms=60_000,
            restart_after_fork=True,
        ),
    )
    made.add_handler(int, lambda batch: write(name, *batch))
    return made

queue = make("early")

def produce(which):
    global queue
    if which == "late":
        queue = make("late")
    for number in range(6):
        assert queue.produce(number)
"""

PROCESS = """
if __name__ == "__main__":
    context = importlib.import_module("{library}").get_context("{method}")
    process = context.Process(target=produce, args=("{which}",))
    process.start()
    process.join()
    assert process.exitcode == 0
"""

POOL = """
if __name__ == "__main__":
    context = importlib.import_module("{library}").get_context("{method}")
    pool = context.Pool(1)
    pool.map(produce, ["{which}"])
    pool.close()
    pool.join()
"""

CHILDREN = [
    pytest.param(*child, id="-".join(child))
    for child in product(
        ("multiprocessing", "billiard"),
        ("fork", "forkserver", "spawn"),
        ("process", "pool"),
        ("early", "late"),
    )
]


def run(folder, program):
    """Runs a program in a file, which children import. Returns the lines of its output."""
    path = folder / "program.py"
    path.write_text(PROGRAM + program, encoding="utf-8")
    ended = subprocess.run(
        [sys.executable, "-W", "ignore", path],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=SCRIPT_S,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr == ""
    return ended.stdout.splitlines()


def delivered(lines):
    return sorted(int(number) for line in lines for number in line.split()[1:])


@pytest.mark.matrix(4)
@pytest.mark.parametrize(("library", "method", "kind", "which"), CHILDREN)
def test_children_deliver_what_they_accepted(tmp_path, library, method, kind, which):
    pytest.importorskip(library)
    body = PROCESS if kind == "process" else POOL
    out = run(tmp_path, body.format(library=library, method=method, which=which))
    assert delivered(out) == list(range(6))
    assert {line.split()[0] for line in out} == {which}


@pytest.mark.parametrize("outer", ["multiprocessing", "billiard"])
def test_child_of_one_library_that_starts_one_of_the_other(tmp_path, outer):
    pytest.importorskip("billiard")
    out = run(
        tmp_path,
        f"""
import billiard, multiprocessing

def nest(inner):
    queue.produce(10)
    process = inner.get_context("fork").Process(target=produce, args=("early",))
    process.start()
    process.join()
    assert process.exitcode == 0

if __name__ == "__main__":
    outer = {outer}
    inner = billiard if outer is multiprocessing else multiprocessing
    process = outer.get_context("fork").Process(target=nest, args=(inner,))
    process.start()
    process.join()
    assert process.exitcode == 0
""",
    )
    assert delivered(out) == [*range(6), 10]


def test_worker_of_a_pool_starts_a_process(tmp_path):
    """Whose process object is not that of the worker, which has the hook of the pool."""
    pytest.importorskip("billiard")
    out = run(
        tmp_path,
        """
import billiard, multiprocessing

def nest(number):
    queue.produce(number)
    billiard.process.current_process().daemon = False
    for library in (billiard, multiprocessing):
        process = library.get_context("fork").Process(target=produce, args=("early",))
        process.start()
        process.join()
        assert process.exitcode == 0

if __name__ == "__main__":
    pool = billiard.get_context("fork").Pool(1)
    pool.map(nest, [10])
    pool.close()
    pool.join()
""",
    )
    assert delivered(out) == sorted([*range(6), *range(6), 10])


def test_last_call_of_a_pool_may_produce(tmp_path):
    """As `worker_process_shutdown` of Celery may; its error does not stop the delivery."""
    pytest.importorskip("billiard")
    out = run(
        tmp_path,
        """
import billiard.pool

def last(pid, exit_code):
    assert pid == os.getpid() and exit_code == 0
    assert queue.produce(20)
    assert queue.produce(21)
    raise SystemExit

if __name__ == "__main__":
    pool = billiard.pool.Pool(
        1, on_process_exit=last, context=billiard.get_context("fork")
    )
    pool.map(produce, ["early"])
    pool.close()
    pool.join()
""",
    )
    assert delivered(out) == [*range(6), 20, 21]


@pytest.mark.parametrize("library", ["multiprocessing", "billiard"])
def test_finalizers_of_others_may_produce(tmp_path, library):
    pytest.importorskip(library)
    out = run(
        tmp_path,
        f"""
import importlib, multiprocessing.util

def late():
    assert queue.produce(30)
    assert queue.produce(31)

def with_finalizer(which):
    produce(which)
    multiprocessing.util.Finalize(None, late, exitpriority=-10)

if __name__ == "__main__":
    context = importlib.import_module("{library}").get_context("fork")
    process = context.Process(target=with_finalizer, args=("early",))
    process.start()
    process.join()
    assert process.exitcode == 0
""",
    )
    assert delivered(out) == [*range(6), 30, 31]


def test_threads_of_a_spawned_child_produce_after_its_target_has_returned(tmp_path):
    """It has the exit of an interpreter, which waits for them."""
    out = run(
        tmp_path,
        """
import multiprocessing

def in_a_thread():
    main_ended = threading.main_thread().join
    def late():
        main_ended()
        for number in range(500):
            assert queue.produce(number)
    threading.Thread(target=late).start()

if __name__ == "__main__":
    process = multiprocessing.get_context("spawn").Process(target=in_a_thread)
    process.start()
    process.join()
    assert process.exitcode == 0
""",
    )
    assert delivered(out) == list(range(500))
