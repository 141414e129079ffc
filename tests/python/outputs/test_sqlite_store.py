"""The SQLite store: merged values come back, transactions are whole, errors are clear."""

import os
import sqlite3
import tempfile
import traceback
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import strategies as st

from batchqueue import BatchQueueError, ConfigError
from batchqueue.aggregation import CountMetrics, MaxMetrics, Ranking, SumMetrics, metric_type
from batchqueue.outputs import (
    SqliteStore,
    StoreError,
    StoreUnavailableError,
)
from outputs_support.users import give_up_root

COUNT = metric_type("test.count", CountMetrics)
OTHER_COUNT = metric_type("test.other_count", CountMetrics)
TOTAL = metric_type("test.total", SumMetrics, columns={"total": int})
WORST = metric_type("test.worst", Ranking, limit=3)

ITEMS = st.lists(
    st.tuples(st.sampled_from(["a", "b", "ä'; DROP"]), st.sampled_from([0, 60]), st.integers(-5, 5))
)


@pytest.fixture
def store(tmp_path):
    return SqliteStore(tmp_path / "metrics.db")


def merge(store, metrics, sink_id="default"):
    with store.transaction(sink_id) as transaction:
        transaction.merge(metrics)


def tables(store):
    with sqlite3.connect(store.path) as connection:
        return {
            name
            for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        }


def test_values_keep_their_types_in_columns_of_any_type(store):
    """SQLite's columns have no types: an int in a float column stays an exact int."""
    merge(
        store,
        [SumMetrics("a", 0, 2**60 + 1), MaxMetrics("text", 0, "NaN"), MaxMetrics("int", 0, 5)],
    )
    assert store.read(SumMetrics)[0].total == 2**60 + 1
    assert [(item.value, type(item.value)) for item in store.read(MaxMetrics)] == [
        (5, int),
        ("NaN", str),
    ]


@pytest.mark.parametrize("value", [b"x", b"NaN", Decimal(1), datetime(2026, 1, 31, tzinfo=UTC)])
def test_value_of_a_type_that_could_not_be_read_back_is_rejected(store, value):
    with pytest.raises(
        StoreError, match=r"metric MaxMetrics has the value .* values are int, float, str or None"
    ):
        merge(store, [MaxMetrics("a", 0, value)])
    assert store.read(MaxMetrics) == []


def test_load_takes_more_keys_than_sqlite_has_variables(store):
    with store.transaction() as transaction:
        assert transaction.load(COUNT, [(str(number), 0) for number in range(300_000)]) == []


def test_clear_leaves_the_tables_of_the_files_owner_alone(store):
    merge(store, [COUNT("a", 0), WORST("a", 0, 1, "x")], "first")
    merge(store, [COUNT("a", 0)], "second")
    with sqlite3.connect(store.path) as connection:
        connection.execute("CREATE TABLE mine (sink TEXT)")
        connection.execute("INSERT INTO mine VALUES ('first')")
    for sink in ("first", "second"):
        with store.transaction(sink) as transaction:
            transaction.record("query", 0, {})
    with store.transaction("first") as transaction:
        transaction.clear()
        assert transaction.known_queries() == set()
    assert (store.read(COUNT, "first"), store.read(WORST, "first")) == ([], [])
    assert store.read(COUNT, "second") == [COUNT("a", 0)]
    assert len(store.summaries("second")) == 1
    with sqlite3.connect(store.path) as connection:
        assert connection.execute("SELECT * FROM mine").fetchall() == [("first",)]


def test_file_with_epochs_but_no_marks_gets_its_marks_from_the_epochs(store):
    """Files of earlier versions: without marks, their epochs would be applied again."""
    with sqlite3.connect(store.path) as connection:
        connection.execute(
            "CREATE TABLE batchqueue_epochs (seq INTEGER PRIMARY KEY AUTOINCREMENT,"
            " sink TEXT NOT NULL, query_id TEXT NOT NULL, batch_id INTEGER NOT NULL,"
            " summary TEXT NOT NULL, UNIQUE (sink, query_id, batch_id))"
        )
        for batch_id in range(3):
            connection.execute(
                "INSERT INTO batchqueue_epochs (sink, query_id, batch_id, summary)"
                " VALUES ('s', 'q', ?, '{}')",
                (batch_id,),
            )
    with store.transaction("s") as transaction:
        assert transaction.last_batch("q") == 2
        transaction.record("q", 3, {})
    with store.transaction("s") as transaction:
        assert transaction.last_batch("q") == 3
    assert [epoch.batch_id for epoch in store.summaries("s")] == [0, 1, 2, 3]


def test_transaction_rolled_back_by_sqlite_writes_nothing_more(store):
    """As on a full disk: each following statement would otherwise be committed alone."""

    def attempt():
        with store.transaction() as transaction:
            transaction.merge([COUNT("a", 0)])
            transaction._connection.execute("ROLLBACK")
            transaction.merge([COUNT("b", 0)])

    with pytest.raises(StoreError, match="rolled back after an earlier error"):
        attempt()
    assert store.read(COUNT) == []


def test_connections_wait_as_configured_and_let_readers_work(store):
    with SqliteStore(store.path, busy_timeout_s=7).transaction() as transaction:
        assert transaction._connection.execute("PRAGMA busy_timeout").fetchone() == (7_000,)
        assert transaction._connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)


def test_relative_path_means_the_same_file_from_any_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert SqliteStore("metrics.db").path == tmp_path / "metrics.db"


def test_reading_a_missing_file_is_an_error(store):
    with pytest.raises(StoreError, match="no such file; write to it first"):
        store.read(COUNT)
    assert not store.path.exists()
    store.prepare()
    assert store.read(COUNT) == []
    assert store.summaries() == []


@pytest.mark.parametrize(
    ("path", "message"),
    [
        (
            "absent/metrics.db",
            r"absent/metrics\.db: unable to open database file; its directory must exist",
        ),
        ("a-file/metrics.db", "unable to open database file; its directory must exist"),
        ("a-file", "not a database; the file belongs to something else"),
        ("/proc/metrics.db", "unable to open database file; .*must be able to write"),
    ],
)
def test_store_that_cannot_be_written_is_reported_with_path_reason_and_remedy(
    tmp_path, path, message
):
    (tmp_path / "a-file").write_text("this is not a database" * 100)
    store = SqliteStore(tmp_path / path)
    with pytest.raises(StoreError, match=message) as raised:
        store.prepare()
    assert isinstance(raised.value, BatchQueueError)
    assert str(store.path) in str(raised.value)


def test_read_only_file_is_reported(store):
    merge(store, [COUNT("a", 0)])

    def attempt():
        with store.transaction() as transaction:
            transaction._connection.execute("PRAGMA query_only = ON")
            transaction.merge([COUNT("a", 0)])

    with pytest.raises(StoreError, match="readonly database; let this user write"):
        attempt()


def test_unwritable_file_is_reported():
    """Root may write everywhere, so a child process gives up its rights first."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        store = SqliteStore(Path(folder) / "metrics.db")
        merge(store, [COUNT("a", 0)])
        os.chmod(store.path, 0o444)
        os.chmod(folder, 0o555)
        child = os.fork()
        if child == 0:
            try:
                give_up_root()
                with pytest.raises(
                    StoreError, match=r"; let this user write|must be able to write"
                ) as raised:
                    merge(store, [COUNT("a", 0)])
                assert not isinstance(raised.value, StoreUnavailableError)
                os._exit(0)
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(1)
        assert os.waitpid(child, 0)[1] == 0
        assert store.read(COUNT) == [COUNT("a", 0)]
        os.chmod(folder, 0o755)


def test_full_disk_is_reported_and_leaves_the_old_state(store):
    merge(store, [COUNT("a", 0)])

    def attempt():
        with store.transaction() as transaction:
            transaction._connection.execute("PRAGMA max_page_count = 1")
            transaction.merge([COUNT(str(number), 0) for number in range(10_000)])

    with pytest.raises(StoreError, match="full; make room") as raised:
        attempt()
    assert not isinstance(raised.value, StoreUnavailableError)
    assert store.read(COUNT) == [COUNT("a", 0)]


def test_locked_database_is_an_error_after_the_time_out(store):
    impatient = SqliteStore(store.path, busy_timeout_s=0.01)
    with store.transaction() as transaction:
        transaction.merge([COUNT("a", 0)])
        with pytest.raises(
            StoreUnavailableError,
            match="locked; another process kept it busy: raise busy_timeout_s",
        ):
            impatient.prepare()
        assert store.summaries() == []  # a reader does not wait
    assert impatient.read(COUNT) == [COUNT("a", 0)]


def test_memory_database_is_rejected():
    with pytest.raises(ConfigError, match="give it a file"):
        SqliteStore(":memory:")
    assert not Path(":memory:").exists()


def test_transaction_that_only_loads_changes_nothing(store):
    def state():
        with sqlite3.connect(store.path) as connection:
            return connection.execute("SELECT * FROM batchqueue_store").fetchall()

    merge(store, [COUNT("a", 0, 2)])
    before = state()
    for _ in range(2):
        with store.transaction() as transaction:
            (found,) = transaction.load(COUNT, [("a", 0), ("b", 0)])
        assert (found.count, state()) == (2, before)
    merge(store, [COUNT("a", 0)])
    assert state() != before
