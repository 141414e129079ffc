"""Several writers at once, in threads and in processes, on a file that none of them has made yet."""

import subprocess
import sys
import threading

import pytest

from batchqueue.aggregation import CountMetrics, metric_type
from batchqueue.outputs import CommittingStoreWriter, SqliteStore

COUNT = metric_type("test.count", CountMetrics)

WRITER = """
import sys
from batchqueue.aggregation import CountMetrics, metric_type
from batchqueue.outputs import CommittingStoreWriter, SqliteStore
count = metric_type("test.count", CountMetrics)
writer = CommittingStoreWriter(SqliteStore(sys.argv[1]))
sys.stdin.readline()
for _ in range(50):
    writer.consume([count("shared", 0), count(sys.argv[2], 0)])
"""


def test_no_loss_two_processes_that_write_at_once_both_count(tmp_path):
    path = tmp_path / "metrics.db"
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, str(path), name], stdin=subprocess.PIPE, stderr=subprocess.PIPE
        )
        for name in ("one", "two")
    ]
    for writer in writers:
        writer.stdin.write(b"go\n")
        writer.stdin.flush()
    for writer in writers:
        errors = writer.communicate(timeout=120)[1]
        assert writer.returncode == 0, errors.decode()
    found = {item.entity: item.count for item in SqliteStore(path).read(COUNT)}
    assert found == {"shared": 100, "one": 50, "two": 50}


@pytest.mark.parametrize("round_number", range(5))
def test_no_loss_threads_that_create_the_file_at_once(tmp_path, round_number):
    store = SqliteStore(tmp_path / "metrics.db")
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


def test_a_transaction_may_be_used_from_another_thread(tmp_path):
    store = SqliteStore(tmp_path / "metrics.db")
    with store.transaction() as transaction:
        thread = threading.Thread(target=transaction.merge, args=([COUNT("a", 0)],))
        thread.start()
        thread.join()
    assert store.read(COUNT) == [COUNT("a", 0)]
