"""Insertion of many rows: a statement costs as much as several rows, so each inserts many."""

import sqlite3
from collections.abc import Iterable
from itertools import chain
from typing import Any

_MOST_VALUES = 999
"""What a statement may have in SQLite before 3.32."""

_MOST_ROWS = 100
"""More make it no quicker."""


def insert_rows(
    connection: sqlite3.Connection,
    insert: str,
    rows: Iterable[tuple[Any, ...]],
    head: tuple[Any, ...] = (),
) -> None:
    """Insert rows, all of the same length.

    Args:
        connection: Inside a transaction: a row that fails may follow others.
        insert: A statement up to the values.
        rows: The rows.
        head: Values that come first in each row; none by default.
    """
    rows = list(rows)
    if not rows:
        return
    width = len(rows[0])
    at_once = max(1, min(_MOST_ROWS, (_MOST_VALUES - len(head)) // width))
    whole = len(rows) // at_once * at_once
    for count, some in ((at_once, rows[:whole]), (1, rows[whole:])):
        # The head is bound once for all rows of a statement.
        columns = [*"?" * len(head), *(f"column{number + 1}" for number in range(width))]
        values = ", ".join([f"({', '.join('?' * width)})"] * count)
        connection.executemany(
            f"{insert} SELECT {', '.join(columns)} FROM (VALUES {values})",
            (
                [*head, *chain.from_iterable(some[first : first + count])]
                for first in range(0, len(some), count)
            ),
        )
