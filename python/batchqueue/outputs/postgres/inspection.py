"""What a PostgreSQL store has, and whether its tables and its ledger are whole."""

from typing import Any

from psycopg import Connection

from batchqueue.outputs.layout import quoted
from batchqueue.outputs.postgres.schema import COLUMNS_OF
from batchqueue.outputs.postgres.store import PostgresStore
from batchqueue.outputs.postgres.transaction import has_ledger
from batchqueue.outputs.store import StoreReport


def check_postgres(store: PostgresStore) -> StoreReport:
    """Read a whole store, and report what it has and what is wrong.

    Raises:
        StoreError: It cannot be read.
        StoreUnavailableError: The server is down or out of reach.
    """
    report = StoreReport()
    schema = quoted(store.schema)
    with store.snapshot() as connection:
        if not has_ledger(connection, schema):
            report.problems.append(
                f"schema {store.schema} has no ledger, or a part of one: it is not a store of "
                "metrics, or was not restored as a whole"
            )
        else:
            _add_ledger(report, connection, schema)
            _add_rows(report, connection, schema)
    return report


def _add_ledger(report: StoreReport, connection: Connection[Any], schema: str) -> None:
    marks = _rows(connection, f"SELECT sink, query_id, batch_id FROM {schema}.batchqueue_marks")
    newest = _rows(
        connection,
        f"SELECT sink, query_id, max(batch_id) FROM {schema}.batchqueue_epochs GROUP BY 1, 2",
    )
    report.add_ledger(
        {(sink, query): mark for sink, query, mark in marks},
        {(sink, query): batch_id for sink, query, batch_id in newest},
    )
    last = (
        f"SELECT DISTINCT ON (sink) sink, summary FROM {schema}.batchqueue_epochs "
        "ORDER BY sink, seq DESC"
    )
    for sink, summary in _rows(connection, last):
        report.add_newest(sink, summary)


def _add_rows(report: StoreReport, connection: Connection[Any], schema: str) -> None:
    for (table,) in _rows(connection, f"SELECT name FROM {schema}.batchqueue_tables"):
        name = f"{schema}.{quoted(table)}"
        if not connection.execute(COLUMNS_OF, (name,)).fetchall():
            report.problems.append(f"table {name}, which holds metrics, is missing")
            continue
        for sink, rows in _rows(connection, f"SELECT sink, count(*) FROM {name} GROUP BY sink"):
            report.sink(sink).rows += rows


def _rows(connection: Connection[Any], sql: str) -> list[tuple[Any, ...]]:
    return connection.execute(sql.encode()).fetchall()
