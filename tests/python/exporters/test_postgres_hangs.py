"""A server that hangs and a network that is silent: an export ends, and is tried again."""

import socket

import psycopg
import pytest

from batchqueue import RetryPolicy
from batchqueue.exporters import PostgresRows
from core_support.proxy import Proxy
from core_support.waits import WAIT_S, eventually
from exporters_support.orders import Order, execute, ids, stored
from exporters_support.points import POINTS, AtPoint
from exporters_support.queues import exporting, send

LARGE = [Order(number, "x" * 10_000) for number in range(1, 1_000)]
"""These do not fit into the buffers of a connection."""

SMALL = [Order(number) for number in range(1, 10)]

EACH_POINT = pytest.mark.parametrize("point", POINTS)
ON_CONFLICT = pytest.mark.parametrize("keys", [None, ("id",)], ids=["append", "update"])


@ON_CONFLICT
@EACH_POINT
def test_export_to_a_frozen_server_ends_and_is_tried_again(postgres_server, orders, point, keys):
    items, timeout = (LARGE, 3) if point == "write" else (SMALL, 1)
    exporter = PostgresRows(orders, "orders", on_conflict=keys, timeout=timeout, connect_timeout=2)
    with exporting(Order, exporter, max_batch_items=len(items)) as (queue, letters):
        queue.produce(Order(0))
        assert queue.flush(WAIT_S)
        hang = AtPoint(exporter, point, postgres_server.freeze)
        try:
            queue.produce_many(items)
            eventually(lambda: hang.is_reached and queue.stats().held, "the end of an attempt")
        finally:
            postgres_server.thaw()
    assert not letters
    assert stored(postgres_server, "id, name") == [(0, "x"), *((it.id, it.name) for it in items)]


@ON_CONFLICT
@EACH_POINT
def test_export_through_a_silent_network_ends_and_is_tried_again(
    postgres_server, orders, point, keys
):
    proxy = Proxy(postgres_server.port)
    conninfo = f"{orders} port={proxy.port}"
    items, timeout = (LARGE, 3) if point == "write" else (SMALL, 1)
    exporter = PostgresRows(
        conninfo, "orders", on_conflict=keys, timeout=timeout, connect_timeout=2
    )
    with exporting(Order, exporter, max_batch_items=len(items)) as (queue, letters):
        queue.produce(Order(0))
        assert queue.flush(WAIT_S)
        hang = AtPoint(exporter, point, proxy.stall)
        try:
            queue.produce_many(items)
            eventually(lambda: hang.is_reached and queue.stats().held, "the end of an attempt")
        finally:
            proxy.cut()  # what was held back is lost
            proxy.wake()
            proxy.restore()
    proxy.close()
    assert not letters
    assert stored(postgres_server, "id, name") == [(0, "x"), *((it.id, it.name) for it in items)]


def test_error_of_a_server_that_hangs_names_the_limit(postgres_server, orders):
    exporter = PostgresRows(orders, "orders", timeout=1, connect_timeout=1)
    AtPoint(exporter, "write", postgres_server.freeze)
    try:
        letters = send(Order, exporter, LARGE, retry=RetryPolicy(attempts=1))
    finally:
        postgres_server.thaw()
    assert {str(letter.error) for letter in letters} == {"the server did not answer within 2 s"}
    assert {type(letter.error) for letter in letters} == {psycopg.OperationalError}
    assert not ids(postgres_server)


def test_transaction_that_was_given_up_does_not_overwrite_later_rows(postgres_server, orders):
    """The network delivers its last statement when later rows of the same key are stored."""
    proxy = Proxy(postgres_server.port)
    conninfo = f"{orders} host=127.0.0.1,127.0.0.1 port={proxy.port},{postgres_server.port}"
    conninfo += " application_name=late"
    sessions = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'late'"
    exporter = PostgresRows(conninfo, "orders", on_conflict=("id",), timeout=0.5, connect_timeout=1)
    AtPoint(exporter, "end", proxy.stall)
    with exporting(Order, exporter) as (queue, letters):
        queue.produce(Order(1, "old"))
        assert queue.flush(WAIT_S)
        queue.produce(Order(1, "new"))
        assert queue.flush(WAIT_S)
        assert stored(postgres_server, "name") == [("new",)]
        proxy.wake()
        eventually(lambda: execute(postgres_server, sessions) == [(1,)], "the end of the session")
    proxy.close()
    assert not letters
    assert stored(postgres_server, "name") == [("new",)]


def test_server_that_does_not_answer_is_tried_again(postgres_server, orders):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        exporter = PostgresRows(f"host=127.0.0.1 port={port} user=x", "orders", connect_timeout=1)
        letters = send(Order, exporter, [Order(1)], retry=RetryPolicy(attempts=1))
    assert [type(letter.error) for letter in letters] == [psycopg.errors.ConnectionTimeout]
