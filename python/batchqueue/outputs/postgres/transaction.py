"""A transaction of the PostgreSQL store. It sends sets of keys and rows: a COPY, a statement."""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, TypeVar

from psycopg import Connection, Cursor

from batchqueue.aggregation import Metrics
from batchqueue.aggregation.metrics import Row
from batchqueue.outputs.layout import (
    Layout,
    PartialKey,
    by_layout,
    check_keys,
    partials_of,
    quoted,
    table_layout,
    typed_rows,
)
from batchqueue.outputs.ledger import SqlLedger
from batchqueue.outputs.postgres.schema import (
    COLUMNS_OF,
    CREATE_KEYS,
    KEYS_COPY_TYPES,
    LEDGER_TABLES,
    LIMITS,
    LOCK_TABLES,
    PostgresTableSql,
    create_ledger,
    layout_of,
    select_rows,
    table_sql,
)
from batchqueue.outputs.reading import (
    ROWS_AT_ONCE,
    Selection,
    StoredMetric,
    name_and_table,
    stored_type,
)
from batchqueue.outputs.store import FIRST_BUCKET, StoreError

M = TypeVar("M", bound=Metrics)


class PostgresTransaction(SqlLedger):
    """A `StoreTransaction` on an open connection."""

    def __init__(
        self,
        connection: Connection[Any],
        schema: str,
        sink_id: str,
        errors: Callable[[], AbstractContextManager[None]],
        kept_summaries: int,
    ) -> None:
        """Make the transaction of a sink.

        Args:
            connection: A connection in a transaction, which its owner commits.
            schema: The quoted name of the schema of the tables.
            sink_id: The sink whose rows to read and write.
            errors: Turns the errors of psycopg into `StoreError`.
            kept_summaries: Number of summaries to keep for the sink.
        """
        super().__init__(sink_id, kept_summaries, f"{schema}.")
        self._connection = connection
        self._schema = schema
        self._errors = errors
        self._tables: set[str] = set()
        self._staged: set[str] = set()

    def lock(self, timeout_s: float) -> None:
        """Exclude other writers of this sink until the transaction ends.

        Args:
            timeout_s: Seconds to wait for another writer, for this lock and for each later lock.
        """
        with self._statements() as cursor:
            run(cursor, LIMITS, milliseconds(timeout_s))
            sinks = f"{self._schema}.batchqueue_sinks"
            run(
                cursor,
                f"INSERT INTO {sinks} (sink) VALUES (%s) ON CONFLICT DO NOTHING",
                self._sink_id,
            )
            run(cursor, f"SELECT 1 FROM {sinks} WHERE sink = %s FOR UPDATE", self._sink_id)

    def load(self, metric_type: type[M], keys: Iterable[tuple[str, int]]) -> list[M]:
        """Return the stored partials of the given keys."""
        with self._statements() as cursor:
            sql = table_sql(self._schema, table_layout(metric_type))
            if not self._has_table(cursor, sql):
                return []
            wanted = dict.fromkeys(keys)
            check_keys(metric_type.name, wanted)
            self._stage_keys(cursor, ((metric_type.name, *key) for key in wanted))
            rows = run(cursor, sql.select_keys, self._sink_id)
            return partials_of(metric_type, rows)

    def save(self, metrics: Sequence[Metrics]) -> None:
        """Store partials, replacing those of the same type and key."""
        with self._statements() as cursor:
            for layout, partials in by_layout(metrics).items():
                replaced = partials if layout.multi_row else ()
                self._upsert(cursor, layout, typed_rows(layout, partials), replaced)

    def save_rows(self, metric_type: type[Metrics], rows: Sequence[Row]) -> None:
        """Store partials given as rows, under keys that the store does not have."""
        with self._statements() as cursor:
            layout = table_layout(metric_type)
            self._upsert(cursor, layout, ((metric_type.name, *row) for row in rows))

    def rows(self, selection: Selection) -> Iterator[Row]:
        """Yield the rows of a selection of this sink, with the columns of `read_table`."""
        with self._statements() as cursor:
            layout = table_layout(selection.metric_type)
            if not self._has_table(cursor, table_sql(self._schema, layout)):
                return
        sql, values = select_rows(self._schema, selection)
        # The server keeps the rows that were not fetched yet.
        with (
            self.guarded(),
            self._errors(),
            self._connection.cursor("batchqueue_rows", binary=True) as found,
        ):
            found.itersize = ROWS_AT_ONCE
            yield from found.execute(sql.encode(), values)

    def delete(
        self, before: int, *, since: int = FIRST_BUCKET, keep: Collection[type[Metrics]] = ()
    ) -> int:
        """Delete the metrics of this sink in a range of time buckets."""
        with self._statements() as cursor:
            deleted = 0
            kept: dict[str, list[str]] = {}
            for metric_type in keep:
                table = quoted(table_layout(metric_type).table)
                kept.setdefault(table, []).append(metric_type.name)
            for table in tables_of_metrics(cursor, self._schema):
                sql = (
                    f"DELETE FROM {self._schema}.{table} "
                    "WHERE sink = %s AND time_bucket >= %s AND time_bucket < %s "
                    "AND metric <> ALL(%s)"
                )
                deleted += run(
                    cursor, sql, self._sink_id, since, before, kept.get(table, [])
                ).rowcount
            return deleted

    def clear(self) -> None:
        """Delete everything that this sink wrote."""
        with self._statements() as cursor:
            tables = tables_of_metrics(cursor, self._schema)
            for table in [*tables, "batchqueue_epochs", "batchqueue_marks"]:
                run(cursor, f"DELETE FROM {self._schema}.{table} WHERE sink = %s", self._sink_id)
            sql = f"UPDATE {self._schema}.batchqueue_sinks SET description = NULL WHERE sink = %s"
            run(cursor, sql, self._sink_id)

    @contextmanager
    def _statements(self) -> Iterator[Cursor[Any]]:
        with self.guarded(), self._errors(), self._connection.cursor(binary=True) as cursor:
            yield cursor

    @contextmanager
    def _ran(self, sql: str, *values: object) -> Iterator[Cursor[Any]]:
        with self._statements() as cursor:
            yield run(cursor, sql.replace("?", "%s"), *values)

    def _has_table(self, cursor: Cursor[Any], sql: PostgresTableSql) -> bool:
        if sql.name not in self._tables:
            columns = dict(run(cursor, COLUMNS_OF, sql.name).fetchall())
            if not columns:
                return False
            if not columns.items() >= sql.column_types.items():  # the owner may add columns
                raise StoreError(
                    f"table {sql.name} has the columns {columns}, and not {sql.column_types}: "
                    "give the kind of metrics another table, or the store another schema"
                )
            self._tables.add(sql.name)
        return True

    def _need_table(self, cursor: Cursor[Any], layout: Layout, sql: PostgresTableSql) -> None:
        if self._has_table(cursor, sql):
            return
        run(cursor, LOCK_TABLES, self._schema)
        if not self._has_table(cursor, sql):
            run(cursor, sql.create)
            run(cursor, f"INSERT INTO {self._schema}.batchqueue_tables VALUES (%s)", layout.table)
            self._tables.add(sql.name)

    def _stage_keys(self, cursor: Cursor[Any], keys: Iterable[PartialKey]) -> None:
        self._stage(cursor, CREATE_KEYS, "pg_temp.batchqueue_keys", KEYS_COPY_TYPES, keys)
        # Autovacuum skips temporary tables, and without statistics the join might read all rows.
        run(cursor, "ANALYZE pg_temp.batchqueue_keys")

    def _upsert(
        self,
        cursor: Cursor[Any],
        layout: Layout,
        rows: Iterable[Row],
        replaced: Collection[PartialKey] = (),
    ) -> None:
        """Store rows in a table, replacing those with the same key.

        Args:
            cursor: A cursor of the connection.
            layout: The table.
            rows: The rows.
            replaced: Keys whose other rows are deleted, as a partial may have fewer rows than
                before.
        """
        sql = table_sql(self._schema, layout)
        self._need_table(cursor, layout, sql)
        self._stage(cursor, sql.create_staging, sql.staging, sql.copy_types, rows)
        if replaced:
            self._stage_keys(cursor, replaced)
            run(cursor, sql.delete_keys, self._sink_id)
        run(cursor, sql.upsert, self._sink_id)

    def _stage(
        self,
        cursor: Cursor[Any],
        create: str,
        table: str,
        types: Sequence[str],
        rows: Iterable[tuple[Any, ...]],
    ) -> None:
        """Replace the content of a temporary table with rows."""
        run(cursor, f"TRUNCATE {table}" if table in self._staged else create)
        self._staged.add(table)
        with cursor.copy(f"COPY {table} FROM STDIN (FORMAT BINARY)".encode()) as copy:
            copy.set_types(types)
            for row in rows:
                copy.write_row(row)


# The tables of a PostgreSQL store: listing and creating them.


def has_ledger(connection: Connection[Any], schema: str) -> bool:
    """Return whether all tables of the ledger exist.

    Args:
        connection: The connection to use.
        schema: The quoted name of the schema.
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
        schema: The quoted name of the schema, which has a ledger.
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
        schema: The quoted name of the schema, which has a ledger.
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
        schema: The quoted name of the schema.
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
    """Check that this user may write to the ledger, with statements that change nothing.

    Args:
        connection: The connection to use.
        schema: The quoted name of the schema.
    """
    with connection.cursor() as cursor:
        run(cursor, f"UPDATE {schema}.batchqueue_sinks SET description = NULL WHERE false")
        for table in ("batchqueue_marks", "batchqueue_epochs"):
            run(cursor, f"DELETE FROM {schema}.{table} WHERE false")


def milliseconds(timeout_s: float) -> str:
    """Return a timeout in the form that the server takes."""
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
