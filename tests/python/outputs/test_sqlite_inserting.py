"""Rows of any number and width are inserted, each once, within the limits of an old SQLite."""

import sqlite3
from contextlib import closing

import pytest

from batchqueue.outputs.sqlite_store import insert_rows


@pytest.mark.parametrize("count", [0, 1, 99, 100, 101, 250])
@pytest.mark.parametrize("width", [1, 7, 499, 501, 997])
@pytest.mark.parametrize("head", [(), ("a", "b")])
def test_rows_are_inserted_once_and_in_order(count, width, head):
    names = [f"c{number}" for number in range(len(head) + width)]
    rows = [tuple(range(first, first + width)) for first in range(count)]
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.setlimit(sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER, 999)
        connection.execute(f"CREATE TABLE t ({', '.join(names)})")
        statements = []
        connection.set_trace_callback(statements.append)
        insert_rows(connection, "INSERT INTO t", iter(rows), head)
        connection.set_trace_callback(None)
        assert connection.execute("SELECT * FROM t ORDER BY rowid").fetchall() == [
            (*head, *row) for row in rows
        ]
    inserts = [each for each in statements if each.startswith("INSERT")]
    at_once = min(100, (999 - len(head)) // width)
    assert len(inserts) == count // at_once + count % at_once


def test_later_row_replaces_an_earlier_one():
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.execute("CREATE TABLE t (k PRIMARY KEY, v)")
        rows = [(number % 7, number) for number in range(250)]
        insert_rows(connection, "INSERT OR REPLACE INTO t", rows)
        assert dict(connection.execute("SELECT * FROM t")) == dict(rows)


def test_row_of_another_length_is_refused():
    """Its values must not shift into other rows, where another row lacks as many."""
    rows = [(0, 0)] * 10 + [(1,), (2, 2, 2)] + [(0, 0)] * 200
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.execute("CREATE TABLE t (a, b)")
        with pytest.raises(sqlite3.ProgrammingError, match="Incorrect number of bindings"):
            insert_rows(connection, "INSERT INTO t", rows)
