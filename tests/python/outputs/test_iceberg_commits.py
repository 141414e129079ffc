"""Commits into an Iceberg table: beside others, with answers that are lost, and killed."""

import itertools
import os
import pickle
import shutil
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

pytest.importorskip("pyiceberg", reason="pyiceberg is not installed")

from pyiceberg.catalog.sql import IcebergNamespaceProperties, IcebergTables, SqlCatalog
from pyiceberg.exceptions import (
    CommitFailedException,
    CommitStateUnknownException,
    ForbiddenError,
)
from pyiceberg.expressions.visitors import _ManifestEvalVisitor
from pyiceberg.utils.concurrent import ExecutorFactory
from requests.exceptions import ConnectTimeout
from sqlalchemy.dialects.sqlite.base import SQLiteDialect
from sqlalchemy.exc import OperationalError

from batchqueue.outputs import StoreError, StoreUnavailableError
from outputs_support.epochs import COUNT, DAY, add, state


@pytest.fixture
def store(open_iceberg):
    return open_iceberg()


def data_files(folder: Path) -> set[str]:
    return {str(path) for path in folder.glob("warehouse/**/*.parquet")}


ADDER = """
import pickle, sys
import pyiceberg.catalog.sql
from batchqueue.aggregation import CountMetrics, metric_type
from batchqueue.outputs import StoreUnavailableError
count = metric_type("test.count", CountMetrics)
store, failed = pickle.loads(bytes.fromhex(sys.argv[1])), 0
print("ready", flush=True)
sys.stdin.readline()
for batch_id in range(int(sys.argv[2])):
    while True:
        try:
            with store.transaction() as transaction:
                if not transaction.applied(sys.argv[3], batch_id):
                    transaction.merge([count("shared", 0), count(sys.argv[3], 0)])
                    transaction.record(sys.argv[3], batch_id, {})
            break
        except StoreUnavailableError:
            failed += 1
print(failed)
"""


def adder(store, times, name):
    """Returns a process that adds once its standard input has a line, or is closed."""
    process = subprocess.Popen(
        [sys.executable, "-c", ADDER, pickle.dumps(store).hex(), str(times), name],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout.readline() == "ready\n", process.communicate()[1]
    return process


def test_commit_of_another_process_meanwhile_makes_it_fail_and_leaves_nothing(store, tmp_path):
    add(store, 0)

    def write():
        with store.transaction() as transaction:
            transaction.merge([COUNT("a", 0)])
            assert adder(store, 1, "other").communicate(timeout=120)[0] == "0\n"
            there.update(data_files(tmp_path))

    there = set()
    with pytest.raises(
        StoreUnavailableError, match=r"another snapshot than at the beg.*start anot"
    ):
        write()
    assert data_files(tmp_path) == there
    assert state(store)[0] == {"a": 1, "b": 1, "other": 1, "shared": 1}


def test_files_to_replace_are_found_by_several_threads(store, monkeypatch):
    """pyiceberg's evaluator has the manifest in hand as an attribute, and threads share it."""
    writer, overtaken = threading.current_thread(), threading.Event()

    class Overtaken(_ManifestEvalVisitor):
        def __setattr__(self, name, value):
            super().__setattr__(name, value)
            if name == "partition_fields" and threading.current_thread() is not writer:
                day = int.from_bytes(value[1].lower_bound, "little") // DAY
                if day == 1:
                    overtaken.wait()
                elif day == 0:
                    overtaken.set()

    days = [COUNT("a", day * DAY) for day in range(8)]
    for partial in days:
        with store.transaction() as transaction:
            transaction.merge([partial])
    with ThreadPoolExecutor(2) as threads, monkeypatch.context() as patch:
        patch.setattr(ExecutorFactory, "_instance", threads)
        patch.setattr(ExecutorFactory, "_instance_pid", os.getpid())
        patch.setattr("pyiceberg.expressions.visitors._ManifestEvalVisitor", Overtaken)
        with store.transaction() as transaction:
            transaction.merge([COUNT("a", DAY)])
    assert overtaken.is_set()
    assert store.read(COUNT) == [days[0], COUNT("a", DAY, 2), *days[2:]]


def test_no_loss_two_concurrent_processes_that_repeat_both_count(store):
    names = ["one", "two"]
    writers = [adder(store, 12, name) for name in names]
    for writer in writers:
        writer.stdin.write("go\n")
        writer.stdin.flush()
    for writer in writers:
        errors = writer.communicate(timeout=240)[1]
        assert writer.returncode == 0, errors
    assert state(store)[0] == {"shared": 24, "one": 12, "two": 12}


def test_namespace_that_another_process_creates_meanwhile_is_used(store, lake, monkeypatch):
    def exists(catalog, namespace):
        return not missing.pop() if missing else there(catalog, namespace)

    lake.create_namespace("metrics")
    there, missing = SqlCatalog.namespace_exists, [True, True]
    monkeypatch.setattr(SqlCatalog, "namespace_exists", exists)
    add(store, 0)
    assert missing == []
    assert state(store)[0] == {"a": 1, "b": 1}


def test_namespace_that_cannot_be_created_is_an_error(store, monkeypatch):
    def refuse(*_):
        raise ForbiddenError("no right")

    monkeypatch.setattr(SqlCatalog, "create_namespace", refuse)
    with pytest.raises(StoreError, match=r"no right; check .* what this user may do"):
        store.prepare()


def test_catalog_whose_tables_another_process_creates_meanwhile_is_used(store, monkeypatch):
    def exists(dialect, connection, table, **arguments):
        return table != creating and has_table(dialect, connection, table, **arguments)

    def create(catalog):
        nonlocal creating
        creating = tables[0].name
        tables.pop(0).create(catalog.engine)
        create_tables(catalog)

    tables = [IcebergTables.__table__, IcebergNamespaceProperties.__table__]
    creating = ""
    has_table, create_tables = SQLiteDialect.has_table, SqlCatalog.create_tables
    monkeypatch.setattr(SQLiteDialect, "has_table", exists)
    monkeypatch.setattr(SqlCatalog, "create_tables", create)
    add(store, 0)
    assert tables == []
    assert state(store)[0] == {"a": 1, "b": 1}


def test_writers_in_one_process_wait_for_each_other_as_long_as_configured(open_iceberg):
    store, done = open_iceberg(), threading.Event()
    with store.transaction() as transaction:
        transaction.merge([COUNT("a", 0)])
        with (
            pytest.raises(
                StoreUnavailableError, match=r"sink 'default' stayed locked .*raise lock"
            ),
            open_iceberg(lock_timeout_s=0.01).transaction(),
        ):
            pass
        waiting = threading.Thread(target=lambda: (add(store, 0), done.set()))
        waiting.start()
        assert not done.is_set()
    waiting.join()
    assert state(store)[0] == {"a": 2, "b": 1}


class TestAnswers:
    """Of a catalog, to a commit."""

    @pytest.fixture
    def answer(self, monkeypatch):
        """Make the catalog raise this error behind the commit, once."""
        commit_table = SqlCatalog.commit_table

        def raising(error):
            left = [error]

            def commit(*arguments):
                done = commit_table(*arguments)
                if left and arguments[1].metadata.snapshots:
                    raise left.pop()
                return done

            monkeypatch.setattr(SqlCatalog, "commit_table", commit)

        return raising

    def test_lost_answer_of_a_commit_that_was_applied_is_not_a_failure(self, store, answer):
        add(store, 0)
        answer(CommitFailedException("a retry of the transport found it changed"))
        add(store, 1)
        add(store, 2)
        assert state(store) == ({"a": 3, "b": 3}, 2, [0, 1, 2])

    def test_lost_answer_is_looked_up_where_commits_are_not_repeated(self, store, answer, lake):
        add(store, 0)
        with lake.load_table(store.table()).transaction() as opened:
            opened.set_properties({"commit.retry.num-retries": "0"})
        answer(CommitFailedException("a retry of the transport found it changed"))
        add(store, 1)
        assert state(store) == ({"a": 2, "b": 2}, 1, [0, 1])

    @pytest.mark.parametrize("error", [ConnectTimeout("slow"), OperationalError("", {}, None)])
    def test_lost_connection_in_a_commit_is_named_as_well(self, store, answer, error):
        add(store, 0)
        answer(error)
        with pytest.raises(StoreUnavailableError, match=r"try again.*may have been applied"):
            add(store, 1)
        add(store, 1)
        assert state(store) == ({"a": 2, "b": 2}, 1, [0, 1])

    def test_unknown_outcome_is_named_and_a_repeated_epoch_counts_once(self, store, answer):
        add(store, 0)
        answer(CommitStateUnknownException("500"))
        with pytest.raises(StoreUnavailableError, match=r"500; .*may have been applied: see what"):
            add(store, 1)
        add(store, 1)
        assert state(store) == ({"a": 2, "b": 2}, 1, [0, 1])


KILLED = """
import os, pickle, signal, sys
import pyarrow.compute, pyiceberg.io.pyarrow
from batchqueue.aggregation import CountMetrics, metric_type
from batchqueue.outputs.iceberg import store as _, transaction as _
from pyiceberg.catalog.sql import IcebergNamespaceProperties, IcebergTables, SqlCatalog
from pyiceberg.io.pyarrow import PyArrowFile
count = metric_type("test.count", CountMetrics)
store, epoch = pickle.loads(bytes.fromhex(sys.argv[1])), int(sys.argv[2])

def kill_at(fatal):
    left = [fatal]

    def step():
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        left[0] -= 1

    def around(owner, name):
        call = getattr(owner, name)
        def stepping(*arguments, **options):
            step()
            done = call(*arguments, **options)
            step()
            return done
        setattr(owner, name, stepping)

    around(PyArrowFile, "create")
    around(SqlCatalog, "commit_table")
    around(SqlCatalog, "create_table")
    with store.transaction() as transaction:
        transaction.merge([count("a", 0), count("b", 86_400)])
        transaction.record("query", epoch, {})

for line in sys.stdin:  # a child for each, because the imports take a second
    child = os.fork()
    if child == 0:
        kill_at(int(line))
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


@pytest.mark.matrix(4, name="stores in Iceberg")
@pytest.mark.timeout(900)  # starts a process for each step of a commit
@pytest.mark.parametrize("epoch", [0, 1])
def test_kill_at_any_step_leaves_the_old_or_the_new_state(open_iceberg, tmp_path, epoch):
    """In the first epoch it also creates the table and its columns."""
    store = open_iceberg()
    for batch_id in range(epoch):
        add(store, batch_id)
    store.prepare()
    places, saved = (tmp_path / "catalog.db", tmp_path / "warehouse"), tmp_path / "saved"
    saved.mkdir()
    shutil.copy(places[0], saved)
    if epoch:
        shutil.copytree(places[1], saved / "warehouse")
    old = state(store)
    found = []
    command = [sys.executable, "-c", KILLED, pickle.dumps(store).hex(), str(epoch)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, bufsize=1) as writers:
        for fatal in itertools.count():
            shutil.copy(saved / "catalog.db", places[0])
            shutil.rmtree(places[1], ignore_errors=True)
            if epoch:
                shutil.copytree(saved / "warehouse", places[1])
            print(fatal, file=writers.stdin)
            ended = int(writers.stdout.readline())
            store = open_iceberg()  # with another connection, as the file is another one
            found.append(state(store))
            if ended == 0:
                break
            assert ended == -signal.SIGKILL
            add(store, epoch)  # as a replay would
            assert state(store) == found[-1] or found[-1] == old
            assert state(store)[0] == {"a": epoch + 1, "b": epoch + 1}
        writers.stdin.close()
    assert found[0] == old
    assert found[-1] == ({"a": epoch + 1, "b": epoch + 1}, epoch, list(range(epoch + 1)))
    assert len(found) > 8
    assert found == sorted(found, key=lambda outcome: outcome == found[-1])  # one step commits
