"""What a SQLite store has, and whether its file and its ledger are whole."""

import json
import sqlite3
from pathlib import Path

from batchqueue.outputs.layout import quoted
from batchqueue.outputs.report import StoreReport
from batchqueue.outputs.sqlite.connection import connected_for_reading, sqlite_errors
from batchqueue.outputs.sqlite.schema import EPOCHS_TABLE, MARKS_TABLE
from batchqueue.outputs.sqlite.transaction import has_table

_MOST_PROBLEMS = 10


def check_sqlite(database: Path) -> StoreReport:
    """Read a whole store, and report what it has and what is wrong.

    Raises:
        StoreError: It cannot be opened, or the log beside it continues another file.
    """
    report = StoreReport()
    with connected_for_reading(database) as connection:
        with sqlite_errors(database):
            connection.execute("BEGIN")
            found = connection.execute(f"PRAGMA integrity_check({_MOST_PROBLEMS})").fetchall()
            report.problems += [text for (text,) in found if text != "ok"]
            for table in (MARKS_TABLE, EPOCHS_TABLE, "batchqueue_tables"):
                if not has_table(connection, table):
                    report.problems.append(f"it has no table {table}: it is not a store of metrics")
        if not report.problems:
            with sqlite_errors(database):
                _add_ledger(report, connection)
                _add_rows(report, connection)
    return report


def _add_ledger(report: StoreReport, connection: sqlite3.Connection) -> None:
    marks = connection.execute(f"SELECT sink, query_id, batch_id FROM {MARKS_TABLE}").fetchall()
    newest = connection.execute(
        f"SELECT sink, query_id, max(batch_id) FROM {EPOCHS_TABLE} GROUP BY sink, query_id"
    ).fetchall()
    report.add_ledger(
        {(sink, query): mark for sink, query, mark in marks},
        {(sink, query): batch_id for sink, query, batch_id in newest},
    )
    last = connection.execute(
        f"SELECT sink, summary FROM {EPOCHS_TABLE} "
        f"WHERE seq IN (SELECT max(seq) FROM {EPOCHS_TABLE} GROUP BY sink)"
    )
    for sink, summary in last:
        report.add_newest(sink, json.loads(summary))


def _add_rows(report: StoreReport, connection: sqlite3.Connection) -> None:
    for (table,) in connection.execute("SELECT name FROM batchqueue_tables").fetchall():
        if not has_table(connection, table):
            report.problems.append(f"table {table}, which holds metrics, is missing")
            continue
        for sink, rows in connection.execute(
            f"SELECT sink, count(*) FROM {quoted(table)} GROUP BY sink"
        ):
            report.sink(sink).rows += rows
