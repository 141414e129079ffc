"""Concurrent writers, in threads and processes, on a store that does not exist yet, and readers."""

import pickle
import signal
import subprocess
import sys
import threading

import pytest

from batchqueue.aggregation import CountMetrics, metric_type
from batchqueue.outputs import CommittingStoreWriter, StoreUnavailableError

COUNT = metric_type("test.count", CountMetrics)

WRITER = """
import pickle, sys
from batchqueue.aggregation import CountMetrics, metric_type
from batchqueue.outputs import CommittingStoreWriter
count = metric_type("test.count", CountMetrics)
writer = CommittingStoreWriter(pickle.loads(bytes.fromhex(sys.argv[1])))
sys.stdin.readline()
for _ in range(50):
    writer.consume([count("shared", 0), count(sys.argv[2], 0)])
"""

HOLDER = """
import pickle, sys
from batchqueue.aggregation import CountMetrics, metric_type
count = metric_type("test.count", CountMetrics)
with pickle.loads(bytes.fromhex(sys.argv[1])).transaction() as transaction:
    transaction.merge([count("a", 0)])
    print("written", flush=True)
    sys.stdin.readline()
"""


def started(script, store, *arguments):
    return subprocess.Popen(
        [sys.executable, "-c", script, pickle.dumps(store).hex(), *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


@pytest.fixture(params=["sqlite", "postgres", "parquet"])
def open_waiting(request):
    """Returns a function that describes a store whose writers in other processes wait."""
    return request.getfixturevalue(f"open_{request.param}")


def test_no_loss_two_concurrent_processes_both_count(open_waiting):
    store = open_waiting()
    writers = [started(WRITER, store, name) for name in ("one", "two")]
    for writer in writers:
        writer.stdin.write(b"go\n")
        writer.stdin.flush()
    for writer in writers:
        errors = writer.communicate(timeout=120)[1]
        assert writer.returncode == 0, errors.decode()
    found = {item.entity: item.count for item in store.read(COUNT)}
    assert found == {"shared": 100, "one": 50, "two": 50}


@pytest.mark.parametrize("round_number", range(5))
def test_no_loss_concurrent_threads_may_create_the_store(store, round_number):
    barrier, errors = threading.Barrier(4), []

    def write():
        barrier.wait()
        try:
            for _ in range(5):
                CommittingStoreWriter(store).consume([COUNT("shared", 0)])
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=write) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert store.read(COUNT) == [COUNT("shared", 0, 20)]


def test_no_duplication_epoch_applied_concurrently_is_applied_once(store):
    barrier, applied = threading.Barrier(4), []

    def apply():
        barrier.wait()
        with store.transaction() as transaction:
            if not transaction.applied("query", 0):
                transaction.merge([COUNT("a", 0)])
                transaction.record("query", 0, {})
                applied.append(True)

    threads = [threading.Thread(target=apply) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert applied == [True]
    assert store.read(COUNT) == [COUNT("a", 0)]


def test_readers_beside_a_writer_see_whole_transactions(store):
    """Each transaction adds 1 to two metrics and to the mark; no reader sees only some of them."""
    store.prepare()
    done, torn, seen = threading.Event(), [], []

    def read():
        while not done.is_set():
            counts = {item.entity: item.count for item in store.read(COUNT)}
            if counts.get("a") != counts.get("b"):
                torn.append(counts)
            seen.append(len(store.summaries()))

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    for number in range(30):
        with store.transaction() as transaction:
            transaction.merge([COUNT("a", 0)])
            transaction.merge([COUNT("b", 86_400)])
            transaction.record("query", number, {})
    done.set()
    for reader in readers:
        reader.join()
    assert torn == []
    assert seen == [] or max(seen) <= 30
    assert store.read(COUNT) == [COUNT("a", 0, 30), COUNT("b", 86_400, 30)]


def test_killed_writer_leaves_nothing_and_no_lock(store):
    with store.transaction() as transaction:
        transaction.merge([COUNT("a", 0, 10)])
    holder = started(HOLDER, store)
    assert holder.stdout.readline() == b"written\n"
    assert store.read(COUNT) == [COUNT("a", 0, 10)]
    holder.send_signal(signal.SIGKILL)
    holder.communicate()
    with store.transaction() as transaction:
        assert transaction.load(COUNT, [("a", 0)]) == [COUNT("a", 0, 10)]
        transaction.merge([COUNT("a", 0)])
    assert store.read(COUNT) == [COUNT("a", 0, 11)]


def test_writer_waits_for_another_process_as_long_as_configured(open_waiting, request):
    timeout = "busy_timeout_s" if "sqlite" in request.node.name else "lock_timeout_s"
    holder = started(HOLDER, open_waiting())
    assert holder.stdout.readline() == b"written\n"

    def write(store):
        with store.transaction() as transaction:
            transaction.merge([COUNT("a", 0)])

    with pytest.raises(StoreUnavailableError, match=f"lock.*raise {timeout}"):
        write(open_waiting(**{timeout: 0.05}))
    patient = threading.Thread(target=write, args=(open_waiting(),))
    patient.start()
    assert holder.communicate(b"commit\n", timeout=60)[1] == b""
    patient.join()
    assert open_waiting().read(COUNT) == [COUNT("a", 0, 2)]
