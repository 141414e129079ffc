"""A server that is down, killed, restarted or full: exactly what was committed stays."""

import time

import psycopg
import pytest

from batchqueue.aggregation import CountMetrics, metric_type
from batchqueue.outputs import StoreError, StoreUnavailableError

COUNT = metric_type("test.count", CountMetrics)


@pytest.fixture
def store(open_postgres, postgres_server):
    store = open_postgres()
    with store.transaction() as transaction:
        transaction.merge([COUNT("before", 0)])
        transaction.record("query", 0, {})
    yield store
    if not postgres_server.running():
        postgres_server.start()


def write(store, meanwhile=lambda: None, afterwards=lambda: None):
    with store.transaction() as transaction:
        transaction.merge([COUNT("first", 0)])
        meanwhile()
        transaction.merge([COUNT("second", 0)])
        transaction.record("query", 1, {})
        afterwards()


def assert_only_what_was_committed(store):
    assert store.read(COUNT) == [COUNT("before", 0)]
    with store.transaction() as transaction:
        assert transaction.last_batch("query") == 0
    write(store)
    assert {item.entity: item.count for item in store.read(COUNT)} == {
        "before": 1,
        "first": 1,
        "second": 1,
    }


def test_stopped_server_is_an_outage_and_the_store_works_when_it_is_back(store, postgres_server):
    postgres_server.stop()
    for attempt in (
        store.prepare,
        lambda: store.read(COUNT),
        store.summaries,
        lambda: write(store),
    ):
        with pytest.raises(
            StoreUnavailableError, match=r"Connection refused.*; the server is down"
        ):
            attempt()
    postgres_server.start()
    assert_only_what_was_committed(store)


@pytest.mark.parametrize("mode", ["immediate", "fast"])
def test_server_that_ends_in_mid_transaction_leaves_nothing_of_it(store, postgres_server, mode):
    with pytest.raises(StoreUnavailableError, match="; the server is down"):
        write(store, meanwhile=lambda: postgres_server.stop(mode))
    postgres_server.start()
    assert_only_what_was_committed(store)


def test_server_that_ends_before_the_commit_leaves_the_outcome_open_and_nothing_stored(
    store, postgres_server
):
    with pytest.raises(StoreUnavailableError, match="this commit may have been applied"):
        write(store, afterwards=lambda: postgres_server.stop("immediate"))
    postgres_server.start()
    assert_only_what_was_committed(store)


def test_server_restarted_in_mid_transaction_has_rolled_it_back(store, postgres_server):
    def restart():
        postgres_server.stop("immediate")
        postgres_server.start()

    with pytest.raises(StoreUnavailableError):
        write(store, meanwhile=restart)
    assert_only_what_was_committed(store)


def test_committed_data_survives_a_crash(store, postgres_server):
    write(store)
    postgres_server.stop("immediate")
    postgres_server.start()
    with store.transaction() as transaction:
        assert transaction.applied("query", 1)
    assert {item.entity: item.count for item in store.read(COUNT)} == {
        "before": 1,
        "first": 1,
        "second": 1,
    }


def test_connection_ended_by_an_administrator_is_an_outage(store, postgres_server):
    def terminate():
        with other.transaction("administrator") as transaction:
            transaction._connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE application_name = 'batchqueue' AND pid <> pg_backend_pid()"
            )

    other = store
    with pytest.raises(StoreUnavailableError):
        write(store, meanwhile=terminate)
    assert_only_what_was_committed(store)


def test_server_without_free_connections_is_an_outage(store, postgres_server, open_postgres):
    with store.transaction("administrator") as transaction:
        transaction._connection.execute(
            "CREATE ROLE crowd LOGIN PASSWORD 'crowd' CONNECTION LIMIT 0"
        )
    crowded = open_postgres(conninfo=postgres_server.conninfo(user="crowd", password="crowd"))
    with pytest.raises(
        StoreUnavailableError, match=r"too many connections.*out of connections: try again"
    ):
        crowded.prepare()


@pytest.mark.parametrize(
    ("state", "setting", "remedy"),
    [
        ("57P01", "", "the server is down"),  # an administrator
        ("25P03", "idle_in_transaction_session_timeout", "raise its idle_in_transaction_session"),
        ("25P04", "transaction_timeout", "raise its transaction_timeout"),
        ("57P05", "idle_session_timeout", "raise its idle_session_timeout"),
    ],
)
def test_connection_that_the_server_ends_is_an_outage(
    store, postgres_server, state, setting, remedy
):
    def lose(connection):
        if state == "25P04" and connection.info.server_version < 170_000:
            pytest.skip("transaction_timeout came with PostgreSQL 17")
        pid = connection.info.backend_pid
        with psycopg.connect(postgres_server.conninfo(), autocommit=True) as other:
            if state == "57P01":
                other.execute("SELECT pg_terminate_backend(%s)", [pid])
            else:
                # A session that is idle in a transaction has another timeout.
                end = "ROLLBACK; " if state == "57P05" else ""
                connection.execute(f"{end}SET {setting} = '1ms'")
            wait_for_the_end(other, pid)

    def write_and_lose():
        with store.transaction() as transaction:
            transaction.merge([COUNT("first", 0)])
            lose(transaction._connection)
            transaction.merge([COUNT("second", 0)])

    with pytest.raises(StoreUnavailableError, match=rf"{remedy}|the server is down") as caught:
        write_and_lose()
    # libpq drops the reason if it comes before the next statement, or behind a reset.
    assert caught.value.__cause__.sqlstate in (state, None)
    assert_only_what_was_committed(store)


def wait_for_the_end(connection, pid):
    deadline = time.monotonic() + 60
    while connection.execute("SELECT 1 FROM pg_stat_activity WHERE pid = %s", [pid]).fetchone():
        assert time.monotonic() < deadline
        time.sleep(0.01)


PASSING = {
    *("08000", "08001", "08003", "08004", "08006", "08007", "08P01"),
    *("25P03", "25P04"),
    *("40000", "40001", "40003", "40P01"),
    *("53000", "53200", "53300"),
    *("55P03",),
    *("57000", "57014", "57P01", "57P02", "57P03", "57P05"),
    *("72000",),
}
CLASSES = ("08", "25", "40", "53", "55", "57", "58", "72", "XX")


def states():
    """Returns the SQL states of these classes that psycopg knows, which are those of the manual."""
    found = {getattr(kind, "sqlstate", None) for kind in vars(psycopg.errors).values()}
    return sorted(state for state in found if isinstance(state, str) and state[:2] in CLASSES)


def test_every_error_of_the_server_is_an_outage_or_is_not(store):
    """The server raises each code; so it is as if it had come for its own reason."""
    assert set(states()) >= PASSING
    found = set()
    for state in states():
        raised = f"DO $$ BEGIN RAISE 'for a test' USING ERRCODE = '{state}'; END $$"
        with (
            pytest.raises(StoreError) as caught,
            store.transaction() as transaction,
            transaction._statements() as cursor,
        ):
            cursor.execute(raised)
        assert caught.value.__cause__.sqlstate == state
        if isinstance(caught.value, StoreUnavailableError):
            found.add(state)
    assert found == PASSING
    assert_only_what_was_committed(store)


def test_user_who_may_not_log_in_is_not_an_outage(store, postgres_server, open_postgres):
    with psycopg.connect(postgres_server.conninfo()) as connection:
        connection.execute("CREATE ROLE visitor PASSWORD 'visitor'")
    visitor = open_postgres(conninfo=postgres_server.conninfo(user="visitor", password="visitor"))
    with pytest.raises(StoreError, match="not permitted to log in; check host") as caught:
        visitor.prepare()
    assert not isinstance(caught.value, StoreUnavailableError)
