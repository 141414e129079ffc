"""A restore of a SQLite store: beside programs that use it, over damage, killed, without room."""

import os
import pickle
import shutil
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from batchqueue.aggregation import CountMetrics, metric_type
from batchqueue.exceptions import ConfigError
from batchqueue.outputs import SqliteStore, StoreError, StoreUnavailableError
from batchqueue.outputs.sqlite_store import backup_sqlite, restore_sqlite

COUNT = metric_type("test.count", CountMetrics)
KEYS = 400
"""Rows of an epoch: dozens of pages."""

WRITER = """
import pickle, sys
from pathlib import Path
from batchqueue.aggregation import CountMetrics, metric_type
count = metric_type("test.count", CountMetrics)
store, stop = pickle.loads(bytes.fromhex(sys.argv[1])), Path(sys.argv[2])
number = 0
while not stop.exists():
    with store.transaction() as transaction:
        transaction.merge([count("left", 0), count("right", 0)])
    number += 1
    print(number, flush=True)
"""
"""Each of its transactions adds 1 to two metrics."""

READER = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("BEGIN")
read = f"SELECT count(*) FROM {sys.argv[2]}"
print(*connection.execute(read).fetchone(), flush=True)
sys.stdin.readline()
print(*connection.execute(read).fetchone(), flush=True)
connection.execute("COMMIT")
print(*connection.execute(read).fetchone(), flush=True)
sys.stdin.readline()
"""
"""Begins to read, and reads on; then reads anew."""

HOLDER = """
import pickle, sys
with pickle.loads(bytes.fromhex(sys.argv[1])).transaction() as transaction:
    print("inside", flush=True)
    sys.stdin.readline()
"""

OPENER = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1])
connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
print("open", flush=True)
sys.stdin.readline()
"""

KILLED = """
import os, signal, sys
from pathlib import Path
from batchqueue.outputs import sqlite_store as copies
copy, database, left = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
def count(frame, event, argument):
    global left
    if event in ("call", "c_call") and frame.f_code.co_filename == copies.__file__:
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
sys.setprofile(count)
copies.restore_sqlite(copy, database)
sys.setprofile(None)
print(int(sys.argv[3]) - left)
"""
"""Is killed before one of the calls that a restore makes."""

LIMITED = """
import resource, signal, sys
from pathlib import Path
from batchqueue.outputs import StoreError
from batchqueue.outputs.sqlite_store import restore_sqlite
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[3]), resource.RLIM_INFINITY))
try:
    restore_sqlite(Path(sys.argv[1]), Path(sys.argv[2]))
except StoreError as error:
    print("StoreError", error)
else:
    print("restored")
"""


def python(script, *arguments):
    return subprocess.Popen(
        [sys.executable, "-c", script, *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def answer(process):
    process.stdin.write("\n")
    process.stdin.flush()


def run(script, *arguments):
    """Returns the exit code and the output; in a process that opens the files anew."""
    with python(script, *arguments) as process:
        printed, _ = process.communicate()
    return process.returncode, printed


def fill(path, epochs, keys=KEYS):
    store = SqliteStore(path)
    for _ in range(epochs):
        with store.transaction() as transaction:
            last = transaction.last_batch("query")
            transaction.merge([COUNT(f"key {key:04}", 0) for key in range(keys)])
            transaction.record("query", 0 if last is None else last + 1, {"rows": keys})
    return store


def content(path):
    """What a process reads that checks the log, and SQLite's opinion of the file."""
    store = SqliteStore(path)
    counts = {item.entity: item.count for item in store.read(COUNT)}
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    return counts, [epoch.batch_id for epoch in store.summaries()]


def log_of(path):
    return Path(f"{path}-wal")


def left_over(path):
    """Files beside a store that are neither those of SQLite nor put aside."""
    return [each.name for each in path.parent.glob(f"{path.name}.partial-*")]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "metrics.db"


@pytest.fixture
def copy(tmp_path):
    """A copy of a store after two epochs."""
    fill(tmp_path / "source.db", 2)
    backup_sqlite(tmp_path / "source.db", tmp_path / "copy.db")
    return tmp_path / "copy.db"


@pytest.mark.parametrize("keys", [1, KEYS, 5 * KEYS], ids=["smaller", "as large", "larger"])
def test_the_store_is_what_the_copy_was_and_its_former_content_is_put_aside(path, copy, keys):
    fill(path, 3, keys)
    before = content(path)
    (aside,) = restore_sqlite(copy, path)
    assert content(path) == content(copy)
    assert content(aside) == before
    assert path.stat().st_size == copy.stat().st_size
    assert left_over(path) == []
    fill(path, 1)
    assert content(path)[0]["key 0001"] == 3


def test_a_reader_reads_on_what_it_has_begun_to_read(path, copy):
    fill(path, 3, 5)
    with python(READER, path, f'"{COUNT.table}"') as reader:
        assert reader.stdout.readline() == "5\n"
        restore_sqlite(copy, path)
        assert log_of(path).stat().st_size > 0
        assert content(path) == content(copy)  # a new reader checks the log
        fill(path, 1)
        assert content(path)[0]["key 0001"] == 3
        answer(reader)
        assert (reader.stdout.readline(), reader.stdout.readline()) == ("5\n", f"{KEYS}\n")
        answer(reader)
    assert content(path)[0]["key 0001"] == 3


def test_a_log_that_a_restore_filled_continues_the_file_whatever_state_that_has(path, copy):
    """A writer may commit, and SQLite put all of its log into the file, just before."""
    fill(path, 3, 5)
    with python(READER, path, f'"{COUNT.table}"') as reader:
        reader.stdout.readline()
        restore_sqlite(copy, path)
        shutil.copy(log_of(path), path.with_name("log"))
        answer(reader)
        answer(reader)
    other = fill(path.with_name("other.db"), 1, 7)
    shutil.copy(path.with_name("log"), log_of(other.path))
    assert content(other.path) == content(copy)


def test_a_log_without_the_last_page_of_a_restore_is_not_whole(path, copy):
    fill(path, 3, 5)
    with python(READER, path, f'"{COUNT.table}"') as reader:
        reader.stdout.readline()
        restore_sqlite(copy, path)
        fill(path, 1, 1)
        log = log_of(path).read_bytes()
        answer(reader)
        answer(reader)
    other = fill(path.with_name("other.db"), 1, 7)
    frame = 24 + 4_096
    at = 32 + 3 * frame  # the beginning of the frame of another page: as if it had been left out
    log_of(other.path).write_bytes(log[:at] + log[at - frame : at - frame + 8] + log[at + 8 :])
    with pytest.raises(StoreError, match="does not continue"):
        other.summaries()


def test_no_commit_of_a_writer_is_lost_between_what_is_put_aside_and_what_follows(path, copy):
    restored = 3
    store = fill(path, 1)
    stop = path.with_name("stop")
    found = []
    with python(WRITER, pickle.dumps(store).hex(), stop) as writer:
        for _ in range(restored):
            assert writer.stdout.readline()
            found.append(restore_sqlite(copy, path)[0])
            content(path)
        assert writer.stdout.readline()
        stop.touch()
        *_, last = ["0", *writer.stdout.read().split()]
    assert writer.returncode == 0
    counted = [content(each)[0] for each in (*found, path)]
    assert all(counts.get("left") == counts.get("right") for counts in counted)
    assert sum(counts.get("left", 0) for counts in counted) == int(last) > restored


def test_a_transaction_is_waited_for_and_names_itself_if_it_takes_too_long(path, copy):
    store = fill(path, 1)
    before = content(path)
    with python(HOLDER, pickle.dumps(store).hex()) as writer:
        writer.stdout.readline()
        with pytest.raises(StoreUnavailableError, match=r"kept it busy for 0 s; stop the programs"):
            restore_sqlite(copy, path, writer_wait_s=0)
        assert content(path) == before
        assert [each.name for each in path.parent.glob("metrics.db.*")] == []
        waiting = python(
            "import sys; from pathlib import Path;"
            "from batchqueue.outputs.sqlite_store import restore_sqlite;"
            "print('restoring', flush=True); restore_sqlite(*map(Path, sys.argv[1:]))",
            *(copy, path),
        )
        with waiting:
            waiting.stdout.readline()
            answer(writer)
    assert waiting.returncode == 0
    assert content(path) == content(copy)


def in_rollback_mode(path):
    fill(path, 3, 5)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA journal_mode = DELETE")


def with_other_pages(path):
    in_rollback_mode(path)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA page_size = 1024")
        connection.execute("VACUUM")


def with_a_log(path):
    """As a writer leaves it that is killed."""
    fill(path, 1, 5)
    with python(READER, path, f'"{COUNT.table}"') as reader:
        reader.stdout.readline()
        fill(path, 1, 5)
        files = {each: each.read_bytes() for each in (path, log_of(path))}
        reader.kill()
    for each, data in files.items():
        each.write_bytes(data)


def beside_the_log_of_another(path):
    with_a_log(path)
    other = fill(path.with_name("other.db"), 1, 9)
    shutil.copy(other.path, path)


def with_a_bad_page(path):
    fill(path, 1)
    with path.open("r+b") as file:
        file.seek(2 * 4_096)
        file.write(b"\xff" * 4_096)


def cut_short(path):
    fill(path, 1)
    os.truncate(path, path.stat().st_size // 2 + 100)


def not_a_database(path):
    path.write_bytes(b"Dear diary, " * 5_000)


def empty(path):
    path.touch()


def missing(path):
    """There is nothing."""


def missing_but_for_its_log(path):
    with_a_log(path)
    path.unlink()


TARGETS = [
    *(in_rollback_mode, with_other_pages, with_a_log, beside_the_log_of_another, with_a_bad_page),
    *(cut_short, not_a_database, empty, missing, missing_but_for_its_log),
]


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.__name__)
def test_a_store_is_restored_whatever_is_there(path, copy, target):
    target(path)
    before = path.read_bytes() if path.exists() else None
    log = log_of(path).read_bytes() if log_of(path).exists() else b""
    aside = restore_sqlite(copy, path)
    assert content(path) == content(copy)
    assert left_over(path) == []
    if target in (beside_the_log_of_another, not_a_database):
        assert aside[0].read_bytes() == before
    if target in (beside_the_log_of_another, missing_but_for_its_log):
        assert aside[-1].read_bytes() == log
        assert aside[-1].name.endswith("-wal")
    fill(path, 1)
    assert content(path)[0]["key 0001"] == 3


def test_a_file_that_sqlite_cannot_open_is_kept_while_another_process_has_it_open(path, copy):
    fill(path, 1, 5)
    with python(OPENER, path) as opener:
        opener.stdout.readline()
        with path.open("r+b") as file:
            file.write(b"not a database")
        before = path.read_bytes()
        with pytest.raises(StoreUnavailableError, match="another process has it open"):
            restore_sqlite(copy, path)
        assert path.read_bytes() == before
        opener.kill()
    restore_sqlite(copy, path)
    assert content(path) == content(copy)


def test_the_store_itself_and_what_is_not_a_store_are_refused(path, copy):
    fill(path, 1)
    before = content(path)
    with pytest.raises(ConfigError, match="is the store itself"):
        restore_sqlite(path, path)
    for make, message in ((not_a_database, "not a database"), (empty, "has no ledger")):
        odd = path.with_name(make.__name__)
        make(odd)
        with pytest.raises(StoreError, match=message):
            restore_sqlite(odd, path)
    with_a_bad_page(path.with_name("bad.db"))
    with pytest.raises(StoreError, match=r"damaged|malformed"):
        restore_sqlite(path.with_name("bad.db"), path)
    assert content(path) == before


def calls_of_a_restore(copy, path):
    code, printed = run(KILLED, copy, path, 10**9)
    assert code == 0
    return int(printed)


REFUSED = {
    with_a_log: (),
    beside_the_log_of_another: ("does not continue", "not a database"),
    missing: ("no such file",),
}
"""What an open says of what a killed restore left, where SQLite could not open the store before."""


@pytest.mark.matrix(3)
@pytest.mark.parametrize("target", REFUSED)
def test_a_restore_that_is_killed_leaves_the_store_or_what_was_restored(path, copy, target):
    """And then it can be repeated. Where SQLite must not open the store, it still must not."""
    folder = path.parent / "measured"
    folder.mkdir()
    target(folder / path.name)
    calls = calls_of_a_restore(copy, folder / path.name)
    assert calls > 20
    expected = content(copy)
    before, refused = expected, REFUSED[target]
    if not refused:
        target(folder / "before.db")
        before = content(folder / "before.db")
    # Every call at the beginning and the end; in between most of them copy a page.
    between = range(25, calls, max(1, calls // 6))
    points = {*range(1, 25, 2), *between, *range(max(1, calls - 10), calls + 1)}
    for point in sorted(points):
        for each in path.parent.glob("metrics.db*"):
            each.unlink()
        target(path)
        code, _ = run(KILLED, copy, path, point)
        assert code == -signal.SIGKILL, point
        try:
            found = content(path)
        except StoreError as error:
            found = next((each for each in refused if each in str(error)), error)
        assert found in (before, expected, *refused), point
        restore_sqlite(copy, path)
        assert content(path) == expected, point


def test_a_restore_without_room_leaves_the_store_as_it_was(path, copy):
    """Of the files that it writes, the log is the largest."""
    fill(path, 3, 5)
    before = content(path)
    size, done = copy.stat().st_size, []
    for limit in (4_096, size // 2, size - 1, size, size + 4_096, size + size // 100, 2 * size):
        _, printed = run(LIMITED, copy, path, limit)
        if printed == "restored\n":
            done.append(limit)
            continue
        assert printed.startswith("StoreError"), printed
        assert not done
        assert content(path) == before
        assert [each.name for each in path.parent.glob("metrics.db.*")] == []
    assert done
    assert min(done) > size
    assert content(path) == content(copy)
