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
    connection: sqlite3.Connection, insert: str, rows: Iterable[tuple[Any, ...]]
) -> None:
    """Insert rows, all of the same length.

    Args:
        connection: Inside a transaction: a row that fails may follow others.
        insert: A statement up to VALUES.
        rows: The rows.
    """
    rows = list(rows)
    if not rows:
        return
    width = len(rows[0])
    at_once = min(_MOST_ROWS, _MOST_VALUES // width)
    whole = len(rows) // at_once * at_once if at_once else 0
    one = f"({', '.join('?' * width)})"
    if whole:
        values = list(chain.from_iterable(rows[:whole]))
        step = at_once * width
        connection.executemany(
            f"{insert} VALUES {', '.join([one] * at_once)}",
            (values[first : first + step] for first in range(0, len(values), step)),
        )
    connection.executemany(f"{insert} VALUES {one}", rows[whole:])
