"""The PostgreSQL store: its tables, rights and secrets, and concurrent writers of one sink."""

import pickle
import subprocess
import sys
import threading
import traceback

import psycopg
import pytest

from batchqueue import ConfigError
from batchqueue.aggregation import CountMetrics, MaxMetrics, Ranking, SumMetrics, metric_type
from batchqueue.outputs import PostgresStore, StoreError, StoreUnavailableError

COUNT = metric_type("test.count", CountMetrics)
TOTAL = metric_type("test.total", SumMetrics, columns={"total": int})
TEXT = metric_type("test.text", MaxMetrics, columns={"value": str})
WORST = metric_type("test.worst", Ranking, limit=3)


@pytest.fixture
def store(open_postgres):
    return open_postgres()


@pytest.fixture
def sql(postgres_server, store):
    """Returns a function that runs a statement in the store's schema and returns its rows."""

    def run(statement, *values):
        with psycopg.connect(postgres_server.conninfo()) as connection:
            connection.execute(f"SET search_path TO {store.schema}")
            cursor = connection.execute(statement, values)
            return cursor.fetchall() if cursor.description else None

    return run


def merge(store, metrics, sink_id="default"):
    with store.transaction(sink_id) as transaction:
        transaction.merge(metrics)


def test_tables_can_be_queried_with_sql(store, sql):
    with store.transaction("shop") as transaction:
        transaction.merge([COUNT("a", 60, 3), TOTAL("a", 60, 7), SumMetrics("a", 60, 0.5)])
        transaction.merge(
            [WORST("a", 60, 9, "x", "label"), WORST("a", 60, 8, "y"), TEXT("a", 60, "t")]
        )
        transaction.record("query", 4, {"rows": 3})
        transaction.describe({"job": "shop"})
    assert sql("SELECT * FROM count_metrics") == [("shop", "test.count", "a", 60, 3)]
    assert sql("SELECT * FROM sum_metrics") == [("shop", "SumMetrics", "a", 60, 0.5, 0.0)]
    assert sql("SELECT * FROM sum_metrics_total_int") == [("shop", "test.total", "a", 60, 7, 0.0)]
    assert sql("SELECT * FROM max_metrics_value_str") == [("shop", "test.text", "a", 60, "t")]
    assert sql("SELECT * FROM ranking_metrics") == [
        ("shop", "test.worst", "a", 60, 1, 9.0, "x", "label"),
        ("shop", "test.worst", "a", 60, 2, 8.0, "y", ""),
    ]
    assert sql("SELECT * FROM batchqueue_marks") == [("shop", "query", 4)]
    assert sql("SELECT sink, query_id, batch_id, summary ->> 'rows' FROM batchqueue_epochs") == [
        ("shop", "query", 4, "3")
    ]
    assert sql("SELECT * FROM batchqueue_sinks") == [("shop", {"job": "shop"})]


def test_clear_leaves_the_tables_of_the_schemas_owner_alone(store, sql):
    merge(store, [COUNT("a", 0)])
    sql("CREATE TABLE mine (sink text)")
    sql("INSERT INTO mine VALUES ('default')")
    with store.transaction() as transaction:
        transaction.clear()
    assert sql("SELECT count(*) FROM mine") == [(1,)]
    assert sql("SELECT count(*) FROM count_metrics") == [(0,)]


def test_table_with_other_columns_is_refused_and_not_written(store, sql):
    store.prepare()
    sql(
        "CREATE TABLE count_metrics"
        " (sink text, metric text, entity text, time_bucket bigint, count real)"
    )
    with pytest.raises(
        StoreError, match=r"table .*count_metrics.* has the columns .*'real'.*another table"
    ):
        merge(store, [COUNT("a", 0)])


def test_owner_may_add_columns(store, sql):
    merge(store, [COUNT("a", 0)])
    sql("ALTER TABLE count_metrics ADD COLUMN seen timestamptz DEFAULT now()")
    merge(store, [COUNT("a", 0)])
    assert store.read(COUNT) == [COUNT("a", 0, 2)]


def test_text_is_unicode_in_any_environment(store, monkeypatch):
    monkeypatch.setenv("PGCLIENTENCODING", "LATIN1")
    merge(store, [TEXT("𝄞", 0, "Ω")])
    assert [(item.entity, item.value) for item in store.read(TEXT)] == [("𝄞", "Ω")]


@pytest.mark.parametrize(
    ("item", "message"),
    [
        (COUNT("a\0b", 0), "NUL|0x00"),
        (TEXT("a", 0, "a\0b"), "NUL|0x00"),
        (
            TOTAL("a", 0, 0.5),
            r"\(0.5, 0\) of metric test.total does not fit .*total int.* not a whole number",
        ),
        (SumMetrics("a", 0, 2**53 + 1), "does not fit .*more than 53 bits"),
        (MaxMetrics("a", 0, "NaN"), "does not fit .*not a number"),
        (TEXT("a", 0, 5), "does not fit .*not a str"),
        (
            COUNT("".join(map(chr, range(1_000, 3_000))), 0),
            "index row size .*; sink, metric and entity may have",
        ),
    ],
)
def test_value_that_does_not_fit_its_column_is_rejected(store, item, message):
    with pytest.raises(StoreError, match=message) as raised:
        merge(store, [COUNT("fine", 0), item])
    assert not isinstance(raised.value, StoreUnavailableError)
    assert store.read(COUNT) == []


@pytest.mark.parametrize(
    "attempt",
    [
        lambda store: merge(store, [], "a\0b"),
        lambda store: store.read(COUNT, "a\0b"),
        lambda store: store.summaries("a\0b"),
    ],
)
def test_text_with_nul_cannot_name_a_sink(store, attempt):
    merge(store, [COUNT("a", 0)])
    with pytest.raises(StoreError, match="NUL"):
        attempt(store)


def test_writers_of_one_sink_wait_and_those_of_others_do_not(open_postgres):
    store = open_postgres(lock_timeout_s=0.05)
    store.prepare()
    merge(store, [COUNT("a", 0)], "one")
    with store.transaction("one") as transaction:
        with pytest.raises(
            StoreUnavailableError, match="lock timeout; another writer of this sink"
        ):
            merge(store, [COUNT("a", 0)], "one")
        transaction.merge([COUNT("a", 0)])
        merge(store, [COUNT("a", 0)], "two")
        assert store.read(COUNT, "one") == [COUNT("a", 0)]
    merge(store, [COUNT("a", 0)], "one")
    assert store.read(COUNT, "one") == [COUNT("a", 0, 3)]
    assert store.read(COUNT, "two") == [COUNT("a", 0)]


@pytest.mark.parametrize("round_number", range(5))
def test_sinks_may_make_the_tables_concurrently(open_postgres, round_number):
    store = open_postgres()
    barrier, errors = threading.Barrier(4), []

    def write(sink):
        barrier.wait()
        try:
            merge(store, [COUNT("a", 0), WORST("a", 0, 1, "x")], sink)
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=write, args=(str(number),)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert [store.read(COUNT, str(number)) for number in range(4)] == [[COUNT("a", 0)]] * 4


def test_committed_transaction_is_durable_even_if_the_server_would_not_wait(
    postgres_server, open_postgres
):
    lazy = open_postgres(conninfo=postgres_server.conninfo(options="-c synchronous_commit=off"))
    with lazy.transaction() as transaction:
        setting = transaction._connection.execute("SHOW synchronous_commit").fetchone()
    assert setting == ("on",)


def test_password_never_appears(postgres_server):
    secret = "do-not-show-this"
    stores = [
        PostgresStore(postgres_server.conninfo(password=secret)),
        PostgresStore(f"postgresql://tester:{secret}@127.0.0.1:{postgres_server.port}/postgres"),
    ]
    for store in stores:
        assert "user=tester" in repr(store)
        assert f"port={postgres_server.port}" in repr(pickle.loads(pickle.dumps(store)))
        with pytest.raises(StoreError, match="check host, database, user and password") as raised:
            store.prepare()
        assert not isinstance(raised.value, StoreUnavailableError)
        shown = "".join(traceback.format_exception(raised.value))
        assert secret not in shown + repr(store) + str(store)


@pytest.mark.parametrize(
    "conninfo", ["host=db secret-word", "postgresql://u:secret-word@[h/x", "secret=word"]
)
def test_invalid_connection_string_is_rejected_without_being_shown(conninfo):
    with pytest.raises(
        ConfigError, match="conninfo is not a connection string; write it as"
    ) as raised:
        PostgresStore(conninfo)
    shown = "".join(traceback.format_exception(raised.value))
    assert "secret" not in shown.replace(f"PostgresStore({conninfo!r})", "")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"schema": "a b"}, "cannot be the name"),
        ({"connect_timeout_s": 0}, "connect_timeout_s=0"),
        ({"lock_timeout_s": -1}, "lock_timeout_s=-1"),
    ],
)
def test_invalid_arguments_are_rejected(arguments, message):
    with pytest.raises(ConfigError, match=message):
        PostgresStore(**arguments)


def test_missing_database_is_not_an_outage(postgres_server):
    with pytest.raises(StoreError, match='database "absent" does not exist; check host') as raised:
        PostgresStore(postgres_server.conninfo(dbname="absent")).prepare()
    assert not isinstance(raised.value, StoreUnavailableError)


def test_prepare_does_not_wait_for_a_writer(open_postgres):
    store = open_postgres(lock_timeout_s=0.05)
    store.prepare()
    with store.transaction() as transaction:
        transaction.merge([COUNT("a", 0)])
        transaction.record("query", 0, {})
        store.prepare()


def test_read_only_database_is_reported(postgres_server, open_postgres):
    store = open_postgres()
    merge(store, [COUNT("a", 0)])
    read_only = open_postgres(
        conninfo=postgres_server.conninfo(options="-c default_transaction_read_only=on")
    )
    with pytest.raises(
        StoreError, match="read-only transaction; this is a standby or a read-only"
    ) as raised:
        merge(read_only, [COUNT("a", 0)])
    assert not isinstance(raised.value, StoreUnavailableError)
    with pytest.raises(StoreError, match="read-only transaction; this is a standby or a read-only"):
        read_only.prepare()
    assert read_only.read(COUNT) == [COUNT("a", 0)]


def test_user_needs_no_more_rights_than_those_on_the_tables(
    postgres_server, open_postgres, store, sql
):
    sql("DROP ROLE IF EXISTS clerk")
    sql("CREATE ROLE clerk LOGIN PASSWORD 'clerk'")
    clerk = open_postgres(conninfo=postgres_server.conninfo(user="clerk", password="clerk"))
    with pytest.raises(StoreError, match=r"permission denied.*; grant this user") as raised:
        clerk.prepare()
    assert not isinstance(raised.value, StoreUnavailableError)
    merge(store, [COUNT("a", 0)])
    sql(f"GRANT USAGE ON SCHEMA {store.schema} TO clerk")
    sql(f"GRANT SELECT ON ALL TABLES IN SCHEMA {store.schema} TO clerk")
    with pytest.raises(StoreError, match=r"permission denied.*; grant this user"):
        clerk.prepare()
    sql(f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {store.schema} TO clerk")
    clerk.prepare()
    with clerk.transaction() as transaction:
        transaction.merge([COUNT("a", 0)])
        transaction.record("query", 0, {})
    assert store.read(COUNT) == [COUNT("a", 0, 2)]
    with pytest.raises(StoreError, match=r"permission denied.*; grant this user"):
        merge(clerk, [WORST("a", 0, 1, "x")])


def test_reader_gets_the_advice_for_readers_and_needs_no_other_rights(
    postgres_server, open_postgres, store, sql
):
    sql("DROP ROLE IF EXISTS reader")
    sql("CREATE ROLE reader LOGIN PASSWORD 'reader'")
    reader = open_postgres(conninfo=postgres_server.conninfo(user="reader", password="reader"))
    merge(store, [COUNT("a", 0)])
    advice = r"permission denied.*; grant this user USAGE on the schema and SELECT on its tables"
    for read in (reader.metrics, reader.sinks, reader.summaries, lambda: reader.read(COUNT)):
        with pytest.raises(StoreError, match=advice):
            read()
    sql(f"GRANT USAGE ON SCHEMA {store.schema} TO reader")
    sql(f"GRANT SELECT ON ALL TABLES IN SCHEMA {store.schema} TO reader")
    merge(store, [WORST("a", 0, 1, "x")])  # into a table that the reader may not read
    assert [metric.metric_type.name for metric in reader.metrics()] == [COUNT.name]
    assert reader.sinks() == store.sinks() == ["default"]
    assert reader.read(COUNT) == [COUNT("a", 0)]
    with pytest.raises(StoreError, match=advice):
        reader.read(WORST)


def test_store_without_psycopg_says_what_to_install_and_others_work():
    script = (
        "import sys; sys.modules['psycopg'] = None\n"
        "from batchqueue.outputs import PostgresStore, SqliteStore\n"
        "PostgresStore('host=db')"
    )
    ended = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert "MissingPackageError: PostgresStore needs psycopg" in ended.stderr
    assert "pip install 'batchqueue-rs[postgres]'" in ended.stderr


def test_package_of_a_store_is_not_loaded_before_it_is_used():
    script = (
        "import sys\nfrom batchqueue.outputs import SqliteStore\n"
        "print(sorted({'psycopg', 'pyarrow'} & set(sys.modules)))"
    )
    ended = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert ended.stdout == "[]\n"
