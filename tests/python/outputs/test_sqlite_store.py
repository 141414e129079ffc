"""The SQLite store by itself: what is merged comes back, whole transactions or nothing, clear errors."""

import math
import pickle
import sqlite3
from collections import defaultdict
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from batchqueue import BatchQueueError, ConfigError
from batchqueue.aggregation import CountMetrics, MaxMetrics, MeanMetrics, Ranking, SumMetrics, metric_type
from batchqueue.outputs import (
    CommittingStoreWriter,
    SqliteStore,
    StoreError,
    StoreUnavailableError,
    StoreWriter,
)

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
        return {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(ITEMS, max_size=4))
def test_merging_batch_after_batch_gives_what_one_dict_gives(tmp_path_factory, batches):
    store = SqliteStore(tmp_path_factory.mktemp("store") / "metrics.db")
    totals, counts, rows = defaultdict(int), defaultdict(int), defaultdict(list)
    store.prepare()
    for batch in batches:
        metrics = []
        for entity, bucket, value in batch:
            totals[entity, bucket] += value
            counts[entity, bucket] += 1
            rows[entity, bucket].append((-value, entity))
            metrics += [TOTAL(entity, bucket, value), COUNT(entity, bucket), OTHER_COUNT(entity, bucket, 2)]
            metrics.append(WORST(entity, bucket, value, entity))
        merge(store, metrics)
    assert {item.key: item.total for item in store.read(TOTAL)} == totals
    assert {item.key: item.count for item in store.read(COUNT)} == counts
    assert {item.key: item.count for item in store.read(OTHER_COUNT)} == {
        key: 2 * n for key, n in counts.items()
    }
    assert {item.key: [-entry.score for entry in item.entries] for item in store.read(WORST)} == {
        key: [score for score, _ in sorted(ranked)[:3]] for key, ranked in rows.items()
    }


def test_values_come_back_as_they_were(store):
    items = [
        TOTAL("big", 0, 2**63 - 1),
        TOTAL("null", 0, None),
        SumMetrics("float", 0, 5.0),
        MaxMetrics("nan", 0, math.nan),
        MaxMetrics("infinite", 0, math.inf),
        MaxMetrics("text", 0, "NaN"),
        MaxMetrics("null", 0, None),
        MeanMetrics("null", 0, None),
    ]
    merge(store, items)
    found = {item.key: item for kind in (TOTAL, SumMetrics, MaxMetrics) for item in store.read(kind)}
    assert found["big", 0].total == 2**63 - 1
    assert type(found["float", 0].total) is float
    assert math.isnan({item.entity: item.value for item in store.read(MaxMetrics)}["nan"])
    assert {item.entity: item.value for item in store.read(MaxMetrics) if item.entity != "nan"} == {
        "infinite": math.inf,
        "text": "NaN",
        "null": None,
    }
    assert store.read(TOTAL)[1].total is None
    assert (store.read(MeanMetrics)[0].value, store.read(MeanMetrics)[0].count) == (None, 0)


def test_rounding_errors_are_kept_from_one_transaction_to_the_next(store):
    for value in (1e16, 1.0, -1e16):
        merge(store, [SumMetrics("a", 0, value)])
    assert store.read(SumMetrics)[0].total == 1.0


def test_saving_replaces_and_of_equal_keys_the_last_counts(store):
    ranking = WORST.from_rows("a", 0, [(3, "x", ""), (2, "y", ""), (1, "z", "")])
    merge(store, [ranking, COUNT("a", 0, 5)])
    with store.transaction() as transaction:
        transaction.save([COUNT("a", 0, 1), WORST("a", 0, 9, "q"), COUNT("a", 0, 2)])
        transaction.save([ranking, WORST("a", 0, 9, "q")])
    assert store.read(COUNT) == [COUNT("a", 0, 2)]
    assert store.read(WORST) == [WORST("a", 0, 9, "q")]


def test_load_takes_more_keys_than_sqlite_has_variables(store):
    items = [COUNT(str(number), 0, number) for number in range(40_000)]
    merge(store, items)
    with store.transaction() as transaction:
        found = transaction.load(COUNT, [item.key for item in items] + [("absent", 0), ("0", 60)])
    assert {item.entity: item.count for item in found} == {str(number): number for number in range(40_000)}


def test_sinks_share_a_file_and_see_only_their_own(store):
    merge(store, [COUNT("a", 0, 1), WORST("a", 0, 1, "x")], "first")
    merge(store, [COUNT("a", 0, 10)], "second")
    merge(store, [COUNT("a", 0, 10)], "second")
    assert store.read(COUNT, "first") == [COUNT("a", 0, 1)]
    assert store.read(COUNT, "second") == [COUNT("a", 0, 20)]
    assert store.read(COUNT) == []


def test_clear_deletes_what_the_sink_wrote_and_nothing_else(store):
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


def test_a_file_that_has_every_epoch_and_no_marks_gets_them_from_there(store):
    """Files of earlier versions: without marks, what they have would be applied again."""
    with sqlite3.connect(store.path) as connection:
        connection.execute(
            "CREATE TABLE batchqueue_epochs (seq INTEGER PRIMARY KEY AUTOINCREMENT, sink TEXT NOT NULL, "
            "query_id TEXT NOT NULL, batch_id INTEGER NOT NULL, summary TEXT NOT NULL, "
            "UNIQUE (sink, query_id, batch_id))"
        )
        for batch_id in range(3):
            connection.execute(
                "INSERT INTO batchqueue_epochs (sink, query_id, batch_id, summary) VALUES ('s', 'q', ?, '{}')",
                (batch_id,),
            )
    with store.transaction("s") as transaction:
        assert transaction.last_batch("q") == 2
        transaction.record("q", 3, {})
    with store.transaction("s") as transaction:
        assert transaction.last_batch("q") == 3
    assert [epoch.batch_id for epoch in store.summaries("s")] == [0, 1, 2, 3]


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_an_exception_rolls_back_metrics_tables_and_ledger(store, error):
    merge(store, [COUNT("a", 0)])

    def attempt():
        with store.transaction() as transaction:
            transaction.merge([COUNT("a", 0), WORST("a", 0, 1, "x")])
            transaction.record("query", 0, {})
            raise error

    with pytest.raises(error):
        attempt()
    assert store.read(COUNT) == [COUNT("a", 0)]
    assert "ranking_metrics" not in tables(store)
    assert store.summaries() == []


def test_after_a_rollback_by_sqlite_itself_nothing_more_is_written(store):
    """As on a full disk: the statements that follow would be committed one by one."""

    def attempt():
        with store.transaction() as transaction:
            transaction.merge([COUNT("a", 0)])
            transaction._connection.execute("ROLLBACK")
            transaction.merge([COUNT("b", 0)])

    with pytest.raises(StoreError, match="rolled back after an earlier error"):
        attempt()
    assert store.read(COUNT) == []


def test_connections_wait_as_told_and_let_readers_work(store):
    with SqliteStore(store.path, busy_timeout_s=7).transaction() as transaction:
        assert transaction._connection.execute("PRAGMA busy_timeout").fetchone() == (7_000,)
        assert transaction._connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)


def test_a_store_pickles_and_opens_again(store):
    merge(store, [COUNT("a", 0)])
    again = pickle.loads(pickle.dumps(store))
    merge(again, [COUNT("a", 0)])
    assert again.read(COUNT) == store.read(COUNT) == [COUNT("a", 0, 2)]


def test_a_relative_path_means_the_same_file_from_any_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert SqliteStore("metrics.db").path == tmp_path / "metrics.db"


def test_a_committing_writer_commits_each_batch_and_another_does_not(store):
    CommittingStoreWriter(store).consume([COUNT("a", 0)])

    def attempt():
        with store.transaction() as transaction:
            StoreWriter(transaction).consume([COUNT("a", 0)])
            raise RuntimeError

    with pytest.raises(RuntimeError):
        attempt()
    assert store.read(COUNT) == [COUNT("a", 0)]


def test_reading_what_is_not_there(store):
    with pytest.raises(StoreError, match="no such file; write to it first"):
        store.read(COUNT)
    assert not store.path.exists()
    store.prepare()
    assert store.read(COUNT) == []
    assert store.summaries() == []


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("absent/metrics.db", r"absent/metrics\.db: unable to open database file; its directory must exist"),
        ("a-file/metrics.db", "unable to open database file; its directory must exist"),
        ("a-file", "not a database; the file belongs to something else"),
        ("/proc/metrics.db", "unable to open database file; .*must be able to write"),
    ],
)
def test_a_store_that_cannot_be_written_says_path_reason_and_remedy(tmp_path, path, message):
    (tmp_path / "a-file").write_text("this is not a database" * 100)
    store = SqliteStore(tmp_path / path)
    with pytest.raises(StoreError, match=message) as raised:
        store.prepare()
    assert isinstance(raised.value, BatchQueueError)
    assert str(store.path) in str(raised.value)


def test_a_read_only_file_says_so(store):
    merge(store, [COUNT("a", 0)])

    def attempt():
        with store.transaction() as transaction:
            transaction._connection.execute("PRAGMA query_only = ON")
            transaction.merge([COUNT("a", 0)])

    with pytest.raises(StoreError, match="readonly database; let this user write"):
        attempt()


def test_a_full_disk_says_so_and_leaves_what_was_there(store):
    merge(store, [COUNT("a", 0)])

    def attempt():
        with store.transaction() as transaction:
            transaction._connection.execute("PRAGMA max_page_count = 1")
            transaction.merge([COUNT(str(number), 0) for number in range(10_000)])

    with pytest.raises(StoreError, match="full; make room") as raised:
        attempt()
    assert not isinstance(raised.value, StoreUnavailableError)
    assert store.read(COUNT) == [COUNT("a", 0)]


def test_a_database_that_another_keeps_locked_is_an_error_after_the_time_out(store):
    impatient = SqliteStore(store.path, busy_timeout_s=0.01)
    with store.transaction() as transaction:
        transaction.merge([COUNT("a", 0)])
        with pytest.raises(
            StoreUnavailableError, match="locked; another process kept it busy: raise busy_timeout_s"
        ):
            impatient.prepare()
        assert store.summaries() == []  # a reader does not wait
    assert impatient.read(COUNT) == [COUNT("a", 0)]


@pytest.mark.parametrize(
    ("item", "message"),
    [
        (TOTAL("a", 0, 2**63), "too large.*; SQLite keeps ints of 64 bits"),
        (MaxMetrics("a", 0, [1]), "not supported; check the metrics"),
        (COUNT(None, 0), "has the key.*; check the metrics"),
        (COUNT("\ud800", 0), "surrogates.*; check the metrics"),
    ],
)
def test_a_value_that_cannot_be_stored_is_an_error_and_nothing_is_written(store, item, message):
    with pytest.raises(StoreError, match=message):
        merge(store, [COUNT("fine", 0), item])
    assert store.read(COUNT) == []


@pytest.mark.parametrize(
    ("table", "column", "message"),
    [
        ('x"; DROP TABLE y; --', "value", "cannot be the name of a table or column"),
        ("fine", "a b", "cannot be the name"),
        ("fine", "", "cannot be the name"),
        ("fine", "Sink", "reserved"),
        ("batchqueue_tables", "value", "reserved"),
        ("sqlite_master", "value", "reserved"),
    ],
)
def test_names_that_are_no_identifiers_are_refused(store, table, column, message):
    kind = type("Kind", (CountMetrics,), {"table": table, "columns": {column: int}})
    with pytest.raises(ConfigError, match=message):
        merge(store, [kind("a", 0)])


def test_sql_keywords_are_fine_as_names(store):
    class Select(CountMetrics):
        table = "select"
        columns = {"group": int}  # noqa: RUF012

    merge(store, [Select("a", 0, 3)])
    assert store.read(Select) == [Select("a", 0, 3)]


def test_memory_is_refused():
    with pytest.raises(ConfigError, match="give it a file"):
        SqliteStore(":memory:")
    assert not Path(":memory:").exists()
