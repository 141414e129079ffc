"""A SQLite file that was replaced beside a log that a killed writer left: refused, never mixed."""

import pickle
import shutil
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from batchqueue.aggregation import CountMetrics, metric_type
from batchqueue.outputs import SqliteStore, StoreError, StoreUnavailableError
from batchqueue.outputs.sqlite_store import check_log

COUNT = metric_type("test.count", CountMetrics)
KEYS = [str(number) for number in range(3_000)]

KILLED = """
import os, pickle, signal, sqlite3, sys
from batchqueue.aggregation import CountMetrics, metric_type
count = metric_type("test.count", CountMetrics)
store = pickle.loads(bytes.fromhex(sys.argv[1]))
reader = sqlite3.connect(store.path)  # such as a dashboard: it keeps the log from being removed
reader.execute("SELECT count(*) FROM sqlite_master").fetchall()
for batch_id in map(int, sys.argv[2].split(",")):
    with store.transaction() as transaction:
        transaction.merge([count(str(key), 0) for key in range(batch_id, 3_000, 50)])
        transaction.record("query", batch_id, {"rows": 60})
os.kill(os.getpid(), signal.SIGKILL)
"""


DAMAGE = """
import sys
with open(sys.argv[1], "r+b") as file:
    file.truncate(file.seek(0, 2) // 8_192 * 4_096)
"""
"""It is shorter than it says, as while a checkpoint runs."""

TRY_LOCK = """
import fcntl, os, sys
try:
    fcntl.lockf(os.open(sys.argv[1], os.O_RDWR), fcntl.LOCK_EX | fcntl.LOCK_NB, 510, 0x40000002)
    print("free")
except BlockingIOError:
    print("locked")
"""


def run_python(script, *arguments):
    """Runs a script in another process, since this one must not close the file."""
    command = [sys.executable, "-c", script, *map(str, arguments)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def epoch(store, batch_id):
    with store.transaction() as transaction:
        transaction.merge([COUNT(key, 0) for key in KEYS])
        transaction.record("query", batch_id, {"rows": len(KEYS)})


def killed_writer(store, *batch_ids):
    """Apply some epochs in a process that is killed before it can put them into the file."""
    text = ",".join(map(str, batch_ids))
    ended = subprocess.run(
        [sys.executable, "-c", KILLED, pickle.dumps(store).hex(), text],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    assert log_of(store).stat().st_size > 0


def log_of(store):
    return Path(f"{store.path}-wal")


def files(store):
    return {path.name: path.read_bytes() for path in store.path.parent.glob("metrics.db*")}


def counts(store):
    return {item.entity: item.count for item in store.read(COUNT)}


def mark(store):
    with store.transaction() as transaction:
        return transaction.last_batch("query")


@pytest.fixture
def store(open_sqlite):
    return open_sqlite()


@pytest.fixture
def older(store, tmp_path):
    """A copy after epoch 0. The store continues to epoch 3, and epoch 4 is in its log only."""
    copy = tmp_path / "older"
    epoch(store, 0)
    shutil.copy(store.path, copy)
    for batch_id in (1, 2, 3):
        epoch(store, batch_id)
    killed_writer(store, 4)
    return copy


REFUSED = (
    r"metrics\.db: the file has state [0-9a-f]{8}, which the log metrics\.db-wal does not continue"
    r".*batchqueue store restore"
)


def test_older_copy_beside_the_log_of_a_newer_state_is_refused_and_left_as_it_is(store, older):
    """SQLite would put the pages of the log into the copy, and count three epochs for few keys."""
    shutil.copy(older, store.path)
    before = files(store)
    for use in (store.prepare, lambda: store.read(COUNT), store.summaries, lambda: mark(store)):
        with pytest.raises(StoreError, match=REFUSED) as raised:
            use()
        assert not isinstance(raised.value, StoreUnavailableError)
    assert {name: before[name] for name in ("metrics.db", "metrics.db-wal")} == {
        name: content for name, content in files(store).items() if not name.endswith("-shm")
    }
    for name in ("-wal", "-shm"):
        Path(f"{store.path}{name}").unlink(missing_ok=True)
    assert (mark(store), set(counts(store).values())) == (0, {1})


def test_log_that_a_killed_writer_left_is_continued(store, older):
    assert counts(store)["4"] == 5
    assert counts(store)["5"] == 4
    assert mark(store) == 4
    assert not log_of(store).exists()
    epoch(store, 5)
    assert (mark(store), counts(store)["4"]) == (5, 6)


def test_file_and_log_that_were_copied_together_are_opened(store, older, tmp_path):
    copy = SqliteStore(tmp_path / "copy.db")
    shutil.copy(store.path, copy.path)
    shutil.copy(log_of(store), log_of(copy))
    assert (mark(copy), counts(copy)["4"]) == (4, 5)


def test_newer_file_beside_an_older_log_is_refused(store, older, tmp_path):
    left = tmp_path / "left"
    shutil.copy(log_of(store), left)
    epoch(store, 5)
    shutil.copy(left, log_of(store))
    with pytest.raises(StoreError, match=REFUSED):
        store.read(COUNT)


def test_file_that_is_opened_by_a_link_is_checked_where_it_is(store, older, tmp_path):
    (tmp_path / "links").mkdir()
    link = tmp_path / "links" / "metrics.db"
    link.symlink_to(store.path)
    shutil.copy(older, store.path)
    with pytest.raises(StoreError, match=REFUSED):
        SqliteStore(link).read(COUNT)


def test_file_of_another_store_beside_a_log_is_refused(store, older, tmp_path):
    other = SqliteStore(tmp_path / "other.db")
    for batch_id in range(4):
        epoch(other, batch_id)
    shutil.copy(other.path, store.path)
    with pytest.raises(StoreError, match=REFUSED):
        store.prepare()


def test_file_with_a_part_of_its_log_is_opened(store, older):
    """A checkpoint puts the log into the file, and a reader keeps the log from beginning anew."""
    holder = sqlite3.connect(store.path)
    holder.execute("BEGIN")
    holder.execute("SELECT count(*) FROM batchqueue_marks").fetchall()
    checkpointer = sqlite3.connect(store.path)
    checkpointer.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
    epoch(store, 5)
    copied = files(store)
    holder.close()
    checkpointer.close()
    for name in ("metrics.db", "metrics.db-wal"):
        (store.path.parent / name).write_bytes(copied[name])
    assert (mark(store), counts(store)["4"]) == (5, 6)


def test_file_of_a_checkpoint_that_was_killed_is_opened(store):
    """It begins with the new number of pages, and ends before the last ones.

    SQLite takes it for damaged if it reads it alone, and repairs it with the log.
    """
    epoch(store, 0)
    reader = sqlite3.connect(store.path)  # it keeps the log from being removed
    reader.execute("SELECT count(*) FROM sqlite_master").fetchall()
    with store.transaction() as transaction:
        transaction.merge([COUNT(f"new {key}", 0) for key in KEYS])
        transaction.record("query", 1, {"rows": len(KEYS)})
    before, log = store.path.read_bytes(), log_of(store).read_bytes()
    reader.close()
    assert mark(store) == 1
    assert not log_of(store).exists()
    after = store.path.read_bytes()
    page_bytes = 4_096
    added = (len(after) - len(before)) // page_bytes
    assert added > 20
    for pages in (1, 2, len(before) // page_bytes, len(before) // page_bytes + added // 2):
        written = pages * page_bytes
        store.path.write_bytes(after[:written] + before[written:])
        log_of(store).write_bytes(log)
        assert (mark(store), len(counts(store))) == (1, 2 * len(KEYS))


def test_check_of_a_log_keeps_the_locks_of_other_threads(store):
    """A process loses all its locks on a file when it closes any descriptor of the file."""
    epoch(store, 0)
    holder = sqlite3.connect(store.path)
    holder.execute("BEGIN")
    holder.execute("SELECT count(*) FROM batchqueue_marks").fetchall()
    epoch(store, 1)
    assert log_of(store).stat().st_size > 0
    run_python(DAMAGE, store.path)
    check_log(store.path)
    assert run_python(TRY_LOCK, store.path) == "locked\n"
    holder.close()


def test_log_of_a_store_that_was_never_in_its_file_is_opened(store):
    with sqlite3.connect(store.path) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("CREATE TABLE mine (x)")
    connection.close()
    killed_writer(store, 0, 1)
    assert (mark(store), counts(store)["0"]) == (1, 1)


def test_log_with_a_vacuum_is_continued(store):
    epoch(store, 0)
    reader = sqlite3.connect(store.path)
    reader.execute("SELECT count(*) FROM sqlite_master").fetchall()
    epoch(store, 1)
    sqlite3.connect(store.path, isolation_level=None).execute("VACUUM")
    epoch(store, 2)
    assert log_of(store).stat().st_size > 0
    assert (mark(store), counts(store)["0"]) == (2, 3)
    reader.close()


def test_transaction_that_changes_nothing_writes_nothing(store):
    epoch(store, 0)
    before = files(store)
    store.prepare()
    assert mark(store) == 0
    assert files(store) == before


def test_store_of_an_earlier_version_gets_its_first_state(store):
    epoch(store, 0)
    with sqlite3.connect(store.path) as connection:
        connection.execute("DROP TABLE IF EXISTS batchqueue_store")
    connection.close()
    killed_writer(store, 1, 2)
    assert mark(store) == 2
