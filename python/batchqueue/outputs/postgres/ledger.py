"""The tables of a PostgreSQL store: which there are, and their creation."""

from typing import Any

from psycopg import Connection, Cursor

from batchqueue.outputs.layout import quoted
from batchqueue.outputs.postgres.schema import (
    COLUMNS_OF,
    LEDGER_TABLES,
    LIMITS,
    LOCK_TABLES,
    create_ledger,
    layout_of,
)
from batchqueue.outputs.reading import StoredMetric, name_and_table, stored_type


def has_ledger(connection: Connection[Any], schema: str) -> bool:
    """Return whether all tables of the ledger exist.

    Args:
        connection: The connection to use.
        schema: Its quoted name.
    """
    tables = ", ".join("to_regclass(%s)" for _ in LEDGER_TABLES)
    with connection.cursor() as cursor:
        found = run(
            cursor, f"SELECT {tables}", *(f"{schema}.{table}" for table in LEDGER_TABLES)
        ).fetchone()
    return found is not None and None not in found


def sinks_of(connection: Connection[Any], schema: str) -> list[str]:
    """Return the ids of the sinks that have metrics, marks, summaries or a description.

    Args:
        connection: The connection to use.
        schema: Its quoted name. It has a ledger.
    """
    with connection.cursor() as cursor:
        of_metrics = map(quoted, _readable_tables(cursor, schema))
        tables = ["batchqueue_marks", "batchqueue_epochs", *of_metrics]
        # A sink that was cleared, or only opened, has a row without a description.
        every = f"SELECT sink FROM {schema}.batchqueue_sinks WHERE description IS NOT NULL"
        for table in tables:
            every += f" UNION SELECT sink FROM {schema}.{table}"
        return sorted(sink for (sink,) in run(cursor, every).fetchall())


def metrics_of(connection: Connection[Any], schema: str, sink_id: str) -> list[StoredMetric]:
    """Return the metrics of a sink, ordered by their names.

    Args:
        connection: The connection to use.
        schema: Its quoted name. It has a ledger.
        sink_id: The sink.
    """
    metrics = []
    with connection.cursor() as cursor:
        for table in _readable_tables(cursor, schema):
            name = f"{schema}.{quoted(table)}"
            columns = run(cursor, COLUMNS_OF, name).fetchall()
            layout = layout_of(table, columns)
            found = run(
                cursor,
                "SELECT metric, count(*), min(time_bucket), max(time_bucket) "
                f"FROM {name} WHERE sink = %s GROUP BY metric",
                sink_id,
            )
            metrics += [
                StoredMetric(stored_type(name, layout), *numbers) for name, *numbers in found
            ]
    return sorted(metrics, key=name_and_table)


def need_ledger(connection: Connection[Any], schema: str, timeout_s: float) -> None:
    """Create the schema and the tables of the ledger that are missing, and commit.

    Args:
        connection: The connection to use.
        schema: Its quoted name.
        timeout_s: Seconds to wait for another connection that does the same.
    """
    if not has_ledger(connection, schema):
        with connection.cursor() as cursor:
            run(cursor, LIMITS, milliseconds(timeout_s))
            run(cursor, LOCK_TABLES, schema)
            # Only if missing: CREATE SCHEMA needs a right that this user may not have.
            if run(cursor, "SELECT to_regnamespace(%s)", schema).fetchone() == (None,):
                run(cursor, f"CREATE SCHEMA {schema}")
            for statement in create_ledger(schema):
                run(cursor, statement)
    connection.commit()


def need_rights(connection: Connection[Any], schema: str) -> None:
    """Check that this user may write to the ledger, by statements that change nothing.

    Args:
        connection: The connection to use.
        schema: Its quoted name.
    """
    with connection.cursor() as cursor:
        run(cursor, f"UPDATE {schema}.batchqueue_sinks SET description = NULL WHERE false")
        for table in ("batchqueue_marks", "batchqueue_epochs"):
            run(cursor, f"DELETE FROM {schema}.{table} WHERE false")


def milliseconds(timeout_s: float) -> str:
    """Return a timeout as the server takes it."""
    return str(max(1, round(timeout_s * 1_000)))  # 0 would disable the timeout


def tables_of_metrics(cursor: Cursor[Any], schema: str) -> list[str]:
    """Return the quoted names of the tables that hold metrics."""
    found = run(cursor, f"SELECT name FROM {schema}.batchqueue_tables").fetchall()
    return [quoted(name) for (name,) in found]


def _readable_tables(cursor: Cursor[Any], schema: str) -> list[str]:
    """Return the names of the tables of metrics that this user may read."""
    sql = (
        f"SELECT name FROM {schema}.batchqueue_tables "
        "WHERE has_table_privilege(%s || '.' || quote_ident(name), 'SELECT')"
    )
    return [name for (name,) in run(cursor, sql, schema).fetchall()]


def run(cursor: Cursor[Any], sql: str, *values: object) -> Cursor[Any]:
    """Run a statement with its values."""
    return cursor.execute(sql.encode(), values)
