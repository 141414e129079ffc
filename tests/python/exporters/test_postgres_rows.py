"""Rows in PostgreSQL: what the server refuses, restarts and outages; sent = stored + dead."""

import logging
import os
from datetime import UTC, datetime
from decimal import Decimal
from typing import NamedTuple
from uuid import UUID

import psycopg
import pytest

from batchqueue import BatchQueue, ConfigError, RetryPolicy
from batchqueue.exporters import PostgresRows
from core_support.proxy import Proxy
from core_support.queues import config
from core_support.threads import in_background, join
from core_support.waits import WAIT_S, eventually
from exporters_support.orders import Order, execute, ids, stored
from exporters_support.points import AtPoint
from exporters_support.queues import QUICK, exporting, send


class Pair(NamedTuple):
    """A row with two of the three columns."""

    id: int
    name: str


# What an item may be.


@pytest.mark.parametrize(
    ("items", "options"),
    [
        ([Order(1, "a", 5), Order(2, "b", 6)], {}),
        ([(1, "a", 5), (2, "b", 6)], {"columns": ["id", "name", "cents"]}),
        ([{"id": 1, "name": "a", "cents": 5}, {"cents": 6, "name": "b", "id": 2}], {}),
        ([[1, 5], [2, 6]], {"row": lambda x: Order(x[0], "ab"[x[0] - 1], x[1])}),
        (
            [Order(1, "a", "x"), Order(2, "b", "x")],
            {"columns": ["cents", "id", "name"], "row": lambda x: (x.id + 4, x.id, x.name)},
        ),
    ],
)
def test_columns_come_from_the_item_or_a_function(postgres_server, orders, items, options):
    letters = send(type(items[0]), PostgresRows(orders, "public.orders", **options), items)
    assert not letters
    assert stored(postgres_server) == [(1, "a", 5), (2, "b", 6)]


def test_columns_that_an_item_leaves_out_have_their_default(postgres_server, orders):
    execute(postgres_server, "ALTER TABLE orders ALTER cents SET DEFAULT 7")
    send(Pair, PostgresRows(orders, "orders"), [Pair(1, "a"), Pair(2, "b")])
    assert stored(postgres_server) == [(1, "a", 7), (2, "b", 7)]


def test_dicts_with_other_keys_are_written_in_their_order(postgres_server, orders):
    items = [
        {"id": 1, "name": "old"},
        {"id": 1, "name": "new", "cents": 3},
        {"id": 1, "name": "newest"},
        {"id": 2, "cents": 9},
    ]
    send(dict, PostgresRows(orders, "orders", on_conflict="id"), items)
    assert stored(postgres_server) == [(1, "newest", 3), (2, None, 9)]


def test_values_of_all_kinds_arrive_as_they_are(postgres_server, orders):
    execute(
        postgres_server,
        "DROP TABLE orders",
        'CREATE TABLE orders (id int, "odd ""name" text, at timestamptz, price numeric,'
        " tags text[], raw bytea, extra jsonb)",
    )
    at = datetime(2024, 2, 29, 12, tzinfo=UTC)
    item = {
        "id": 1,
        'odd "name': 'tab\t, \\N, "quote" and\nline',
        "at": at,
        "price": Decimal("1.10"),
        "tags": ["a,b", None],
        "raw": b"\0\xff",
        "extra": {"nested": [1, None]},
    }
    assert not send(dict, PostgresRows(orders, "orders"), [item])
    assert stored(postgres_server, "*") == [tuple(item.values())]


def test_dict_in_a_column_is_encoded_as_items_over_http_are(postgres_server, orders):
    execute(postgres_server, "DROP TABLE orders", "CREATE TABLE orders (id int, extra jsonb)")
    at = datetime(2024, 2, 29, tzinfo=UTC)
    extra = {"at": at, "id": UUID(int=1), "price": Decimal("1.10"), "pair": Pair(1, "ä")}
    items = [{"id": 1, "extra": extra}, {"id": 2, "extra": {"rate": float("nan")}}]
    letters = send(dict, PostgresRows(orders, "orders"), items)
    assert [letter.item["id"] for letter in letters] == [2]
    expected = {
        "at": "2024-02-29T00:00:00+00:00",
        "id": "00000000-0000-0000-0000-000000000001",
        "price": "1.10",
        "pair": [1, "ä"],
    }
    assert stored(postgres_server, "*") == [(1, expected)]


@pytest.mark.parametrize("name", ["a\0b", "\ud800", object()], ids=["nul", "surrogate", "object"])
def test_value_that_cannot_be_sent_is_a_dead_letter_alone(postgres_server, orders, name):
    items = [Order(1), Order(2, name), Order(3)]
    letters = send(Order, PostgresRows(orders, "orders"), items)
    assert [letter.item for letter in letters] == items[1:2]
    assert ids(postgres_server) == [1, 3]


# Keys.


def test_last_row_of_a_key_in_a_batch_counts_and_the_batch_is_one_statement(
    postgres_server, orders
):
    items = [Order(1, "a", 1), Order(2, "b", 2), Order(1, "c", 3), Order(1, "d", 4)]
    exporter = PostgresRows(orders, "orders", on_conflict=("id",))
    sent = []
    exporter._store = counted(exporter._store, sent)
    assert not send(Order, exporter, items)
    assert stored(postgres_server) == [(1, "d", 4), (2, "b", 2)]
    assert len(sent) == 1


def test_row_before_a_bad_one_of_its_key_is_stored(postgres_server, orders):
    items = [Order(1, "good", 1), Order(2, "b", 2), Order(1, "bad", 3)]
    letters = send(Order, PostgresRows(orders, "orders", on_conflict=("id",)), items)
    assert [letter.item for letter in letters] == items[2:]
    assert stored(postgres_server) == [(1, "good", 1), (2, "b", 2)]


def test_keys_that_only_the_server_finds_equal_are_updated_one_after_the_other(
    postgres_server, orders
):
    items = [Order("1", "a", 1), Order(1, "b", 2), Order(" 1", "c", 3), Order(2, "d", 4)]
    assert not send(Order, PostgresRows(orders, "orders", on_conflict=("id",)), items)
    assert stored(postgres_server) == [(1, "c", 3), (2, "d", 4)]


def test_rows_with_a_null_in_their_key_are_all_kept(postgres_server, orders):
    execute(
        postgres_server,
        "ALTER TABLE orders DROP CONSTRAINT orders_pkey",
        "ALTER TABLE orders ALTER id DROP NOT NULL",
        "CREATE UNIQUE INDEX ON orders (id)",
    )
    items = [Order(None, "a", 1), Order(None, "b", 2)]
    assert not send(Order, PostgresRows(orders, "orders", on_conflict=("id",)), items)
    assert sorted(stored(postgres_server, "id, name")) == [(None, "a"), (None, "b")]


@pytest.mark.parametrize(
    ("update", "expected"),
    [
        (True, [(1, "new", 2), (2, "b", 3)]),
        (("cents",), [(1, "old", 2), (2, "b", 3)]),
        (False, [(1, "old", 1), (2, "a", 2)]),
    ],
)
def test_update_names_the_columns_that_change(postgres_server, orders, update, expected):
    execute(postgres_server, "INSERT INTO orders VALUES (1, 'old', 1)")
    items = [Order(1, "new", 2), Order(2, "a", 2), Order(2, "b", 3)]
    exporter = PostgresRows(orders, "orders", on_conflict=("id",), update=update)
    assert not send(Order, exporter, items)
    assert stored(postgres_server) == expected


def test_exporters_side_by_side_update_the_same_keys(postgres_server, orders):
    failures = []

    class Watched(PostgresRows):
        def export(self, items):
            outcomes = super().export(items)
            failures.extend(filter(None, outcomes))
            return outcomes

    items = [Order(number % 97, "x", number) for number in range(6_000)]
    settings = config(4, max_batch_items=100, retry=QUICK)
    letters = []
    with BatchQueue("side by side", settings) as queue:
        queue.add_handler_factory(
            Order,
            lambda: Watched(orders, "orders", on_conflict=("id",)),
            partitions=4,
            dead_letter=letters.extend,
        )
        queue.produce_many(items)
    assert not letters
    assert not failures  # such as deadlocks
    assert queue.stats().consumed == 6_000
    assert ids(postgres_server) == list(range(97))


# Bad rows.


def test_bad_rows_alone_are_dead_letters(postgres_server, orders):
    execute(postgres_server, "INSERT INTO orders VALUES (13, 'there', 0)")
    items = [Order(number, "x", number) for number in range(100)]
    items[40] = Order(40, "bad")
    items[41] = Order(41, "x", "not a number")
    items[77] = Order(77, "nul \0")
    items[99] = Order(99, "x", object())

    letters = send(Order, PostgresRows(orders, "orders"), items)

    bad = [13, 40, 41, 77, 99]
    assert [letter.item.id for letter in letters] == bad
    assert {letter.attempts for letter in letters} == {1}
    assert [type(letter.error).__name__ for letter in letters] == [
        "UniqueViolation",
        "CheckViolation",
        "InvalidTextRepresentation",
        "DataError",
        "ProgrammingError",
    ]
    assert ids(postgres_server) == [number for number in range(100) if number not in bad[1:]]


@pytest.mark.parametrize("on_conflict", [None, ("id",)])
def test_twenty_thousand_rows_are_stored_or_dead(postgres_server, orders, on_conflict):
    items = [
        Order(number, "bad" if number % 4_999 == 1 else "x", number) for number in range(20_000)
    ]
    exporter = PostgresRows(orders, "orders", on_conflict=on_conflict)
    letters = send(Order, exporter, items, max_batch_items=5_000)
    dead = [letter.item.id for letter in letters]
    assert dead == [item.id for item in items if item.name == "bad"]
    assert sorted([*dead, *ids(postgres_server)]) == list(range(20_000))


def test_item_without_a_column_is_a_dead_letter(postgres_server, orders):
    exporter = PostgresRows(orders, "orders", columns=("id", "name"))
    letters = send(dict, exporter, [{"id": 1}, {"id": 2, "name": "b", "more": 1}])
    assert [(letter.item, type(letter.error)) for letter in letters] == [({"id": 1}, KeyError)]
    assert stored(postgres_server, "id, name") == [(2, "b")]


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ("DROP TABLE orders", "UndefinedTable"),
        ("ALTER TABLE orders DROP cents", "UndefinedColumn"),
        ("ALTER TABLE orders DROP CONSTRAINT orders_pkey", "InvalidColumnReference"),
    ],
)
def test_statement_that_is_refused_makes_dead_letters_without_halving(
    postgres_server, orders, change, error
):
    execute(postgres_server, change)
    exporter = PostgresRows(orders, "orders", on_conflict=("id",))
    sent = []
    exporter._store = counted(exporter._store, sent)
    letters = send(Order, exporter, [Order(number) for number in range(50)])
    assert {type(letter.error).__name__ for letter in letters} == {error}
    assert (len(letters), len(sent)) == (50, 1)


def counted(function, calls):
    def call(*arguments):
        calls.append(arguments)
        return function(*arguments)

    return call


# Servers that stop, and take long.


@pytest.mark.parametrize("mode", ["immediate", "fast"])
def test_no_row_is_lost_or_stored_twice_when_the_server_is_restarted_under_load(
    postgres_server, orders, mode
):
    exporter = PostgresRows(orders, "orders", on_conflict=("id",), connect_timeout=5)
    with exporting(Order, exporter, max_batch_items=100) as (queue, letters):
        queue.produce_many(Order(number) for number in range(2_000))
        eventually(lambda: queue.stats().consumed > 0)
        producer, _ = in_background(
            lambda: queue.produce_many(Order(number) for number in range(2_000, 12_000))
        )
        postgres_server.stop(mode)
        consumed = queue.stats().consumed
        postgres_server.start()
        eventually(lambda: queue.stats().consumed > consumed)
        join(producer)
    assert not letters
    assert ids(postgres_server) == list(range(12_000))


def test_connection_that_the_server_closed_at_rest_costs_no_attempt(postgres_server, orders):
    retry = RetryPolicy(attempts=1)
    with exporting(Order, PostgresRows(orders, "orders"), retry) as (queue, letters):
        queue.produce(Order(1))
        queue.flush(WAIT_S)
        postgres_server.stop("fast")
        postgres_server.start()
        queue.produce(Order(2))
    assert not letters
    assert ids(postgres_server) == [1, 2]


@pytest.mark.parametrize("count", [2, 500])
def test_lost_answer_to_a_commit_stores_no_row_twice_with_a_key(postgres_server, orders, count):
    proxy = Proxy(postgres_server.port)
    conninfo = f"{orders} port={proxy.port}"
    exporter = PostgresRows(conninfo, "orders", on_conflict=("id",))
    with exporting(Order, exporter) as (queue, letters):
        queue.produce(Order(0))
        queue.flush(WAIT_S)
        proxy.stall()  # both ways: the server gets what was sent before the cut only
        queue.produce_many(Order(number) for number in range(1, count))
        eventually(lambda: queue.stats().in_flight)
        proxy.cut()
        proxy.wake()
        eventually(lambda: queue.stats().held)
        proxy.restore()
    proxy.close()
    assert not letters
    assert ids(postgres_server) == list(range(count))


@pytest.mark.parametrize(
    ("state", "is_retried"),
    [
        *((state, True) for state in ("08006", "40001", "40P01", "53100", "53300", "57P01")),
        *((state, True) for state in ("57014", "55P03", "58030")),
        *((state, False) for state in ("22003", "23505", "42501", "P0001", "0A000")),
    ],
)
def test_state_of_an_error_decides_whether_it_is_tried_again(
    postgres_server, orders, state, is_retried
):
    execute(
        postgres_server,
        "CREATE OR REPLACE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        f" RAISE EXCEPTION 'as if' USING ERRCODE = '{state}'; END $$",
        "CREATE TRIGGER fail BEFORE INSERT ON orders FOR EACH STATEMENT EXECUTE FUNCTION fail()",
    )
    exporter = PostgresRows(orders, "orders")
    letters = send(
        Order, exporter, [Order(1), Order(2)], retry=RetryPolicy(attempts=2, backoff_ms=1)
    )
    assert {letter.attempts for letter in letters} == {2 if is_retried else 1}
    assert {letter.error.sqlstate for letter in letters} == {state}
    assert not ids(postgres_server)


def test_statement_that_waits_too_long_is_tried_again(postgres_server, orders):
    exporter = PostgresRows(orders, "orders", timeout=0.1)
    with psycopg.connect(orders) as other, exporting(Order, exporter) as (queue, letters):
        other.execute("LOCK TABLE orders")
        queue.produce(Order(1))
        eventually(lambda: queue.stats().held)
        other.rollback()
    assert not letters
    assert ids(postgres_server) == [1]


def test_rows_after_one_that_is_tried_again_do_not_overtake_it(postgres_server, orders):
    exporter = PostgresRows(orders, "orders", on_conflict=("id",))
    store, calls = exporter._store, []

    def store_once_refused(columns, rows):
        calls.append(len(rows))
        if len(calls) == 2:
            postgres_server.stop("immediate")
        outcomes = store(columns, rows)
        if len(calls) == 2:
            postgres_server.start()
        return outcomes

    exporter._store = store_once_refused
    items = [Order(1, "old"), Order(2, "bad"), Order(1, "new"), Order(3)]
    letters = send(Order, exporter, items)
    assert [letter.item for letter in letters] == [items[1]]
    assert stored(postgres_server, "id, name") == [(1, "new"), (3, "x")]


@pytest.mark.parametrize("keys", [None, ("id",)], ids=["append", "update"])
@pytest.mark.parametrize("point", ["copy", "write", "end"])
def test_interrupted_transaction_leaves_nothing_for_the_next_one(
    postgres_server, orders, point, keys
):
    """As Ctrl-C does in a queue without threads."""

    def interrupt():
        raise KeyboardInterrupt

    exporter = PostgresRows(orders, "orders", on_conflict=keys)
    exporter.consume([Order(1)])
    AtPoint(exporter, point, interrupt)
    with pytest.raises(KeyboardInterrupt):
        exporter.consume([Order(2), Order(3)])
    del exporter._copy
    assert exporter.export([Order(3), Order(4)]) == [None, None]
    exporter.close()
    assert ids(postgres_server) == [1, 3, 4]


# Processes, passwords, ends.


def test_child_of_a_fork_leaves_the_connection_of_its_parent_open(postgres_server, orders):
    exporter = PostgresRows(orders, "orders")
    exporter.consume([Order(1)])
    child = os.fork()
    if child == 0:
        code = 1
        try:
            exporter.consume([Order(2)])
            exporter.close()
            code = 7
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 7
    connection = exporter._connection
    exporter.consume([Order(3)])
    assert exporter._connection is connection
    exporter.close()
    assert ids(postgres_server) == [1, 2, 3]


def test_end_of_the_queue_closes_the_connection(postgres_server, orders):
    exporter = PostgresRows(orders, "orders")
    with exporting(Order, exporter) as (queue, _):
        queue.produce(Order(1))
        queue.flush(WAIT_S)
        connection = exporter._connection
    assert connection.closed
    assert ids(postgres_server) == [1]


def test_dead_letters_are_kept_when_the_server_is_away_at_the_end(postgres_server, orders):
    postgres_server.stop("fast")
    letters = []
    queue = BatchQueue("end", config(retry=QUICK))
    queue.add_handler(Order, PostgresRows(orders, "orders"), dead_letter=letters.extend)
    queue.produce_many(Order(number) for number in range(1_000))
    assert queue.shutdown(2) == 0
    assert [letter.item.id for letter in letters] == list(range(1_000))


def test_password_is_never_shown(postgres_server, orders, caplog):
    secret = "very secret"
    wrong = postgres_server.conninfo(password=secret)
    exporter = PostgresRows(wrong, "orders")
    with caplog.at_level(logging.DEBUG):
        letters = send(Order, exporter, [Order(1)], retry=RetryPolicy(attempts=2, backoff_ms=1))
    (letter,) = letters
    shown = f"{exporter!r} {letter!r} {letter.error} {caplog.text}"
    assert "port" in repr(exporter)
    assert secret not in shown
    with pytest.raises(ConfigError) as refused:
        PostgresRows(f"host=x password='{secret}", "orders")
    assert secret not in str(refused.value)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"table": ""}, "table"),
        ({"table": None}, "table"),
        ({"table": ("shop", 3)}, "table"),
        ({"columns": 3}, "columns"),
        ({"on_conflict": True}, "on_conflict"),
        ({"on_conflict": ("id",), "update": None}, "update"),
        ({"columns": []}, "columns"),
        ({"on_conflict": ()}, "on_conflict"),
        ({"update": ("a",)}, "update is given without on_conflict"),
        ({"timeout": 0}, "timeout"),
        ({"connect_timeout": -1}, "connect_timeout"),
        ({"row": 3}, "row"),
    ],
)
def test_invalid_argument_is_refused(options, words):
    with pytest.raises(ConfigError, match=words):
        PostgresRows("", **{"table": "orders", **options})
