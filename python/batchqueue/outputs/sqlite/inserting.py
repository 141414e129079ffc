"""Insertion of many rows: a statement costs as much as several rows, so each inserts many."""

import sqlite3
from collections.abc import Iterable
from itertools import chain
from typing import Any

_MOST_VALUES = 999
"""What a statement may have in SQLite before 3.32."""

_MOST_ROWS = 100
"""More rows would not be faster."""


def insert_rows(
    connection: sqlite3.Connection,
    insert: str,
    rows: Iterable[tuple[Any, ...]],
    head: tuple[Any, ...] = (),
) -> None:
    """Insert rows.

    Args:
        connection: Inside a transaction: a row that fails may follow others.
        insert: A statement up to the values.
        rows: The rows, all of the same length.
        head: Values that come first in each row; none by default.
    """
    rows = list(rows)
    if not rows:
        return
    width = len(rows[0])
    at_once = max(1, min(_MOST_ROWS, (_MOST_VALUES - len(head)) // width))
    if len(set(map(len, rows))) > 1:
        at_once = 1  # SQLite refuses the row of another length, instead of shifting values
    whole = len(rows) // at_once * at_once
    columns = ", ".join([*"?" * len(head), "*"])  # the head is bound once for all rows
    for count, some in ((at_once, rows[:whole]), (1, rows[whole:])):
        if not some:
            continue
        values = ", ".join([f"({', '.join('?' * width)})"] * count)
        connection.executemany(
            f"{insert} SELECT {columns} FROM (VALUES {values})",
            (
                [*head, *chain.from_iterable(some[first : first + count])]
                for first in range(0, len(some), count)
            ),
        )
