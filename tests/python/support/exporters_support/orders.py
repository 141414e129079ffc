"""Orders, the table that stores them, and what is in it."""

from dataclasses import dataclass

import psycopg


@dataclass(frozen=True)
class Order:
    """A row."""

    id: int
    name: str = "x"
    cents: object = 0


def order(number, has_bad=False):
    """Returns an order whose values all follow from its number; one in 97 may be refused."""
    name = "bad" if has_bad and number % 97 == 13 else f"order {number} " + number % 50 * "x"
    return Order(number, name, 3 * number)


def make_orders(server):
    """Makes an empty table `orders`, on a server that a test may have stopped."""
    if not server.running():
        server.start()
    execute(
        server,
        "DROP TABLE IF EXISTS orders",
        "CREATE TABLE orders (id int PRIMARY KEY, name text CHECK (name <> 'bad'), cents bigint)",
    )


def execute(server, *statements):
    """Runs statements; returns the rows of the last one, if it has any."""
    with psycopg.connect(server.conninfo(), autocommit=True) as database:
        for statement in statements:
            cursor = database.execute(statement)
        return cursor.fetchall() if cursor.description else None


def stored(server, columns="id, name, cents"):
    """Returns the rows, by id."""
    return execute(server, f"SELECT {columns} FROM orders ORDER BY id")


def ids(server):
    """Returns the ids of the rows."""
    return [row[0] for row in stored(server)]
