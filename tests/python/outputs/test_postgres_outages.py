"""A server that is down, killed, restarted or full: exactly what was committed stays."""

import pytest

from batchqueue.aggregation import CountMetrics, metric_type
from batchqueue.outputs import StoreUnavailableError

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
