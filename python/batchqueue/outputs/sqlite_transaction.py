"""A transaction of the SQLite store."""

import json
import sqlite3
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import date
from decimal import Decimal
from functools import cache
from itertools import chain, groupby
from operator import eq, itemgetter
from typing import Any, NamedTuple, TypeVar

from batchqueue.aggregation import Metrics
from batchqueue.aggregation.metrics import KeyValue, Row
from batchqueue.outputs.layout import (
    FITTING,
    KEY_COLUMNS,
    Layout,
    check_keys,
    check_names,
    grouped_partials,
    is_name,
    quoted,
    rows_of,
    shown,
)
from batchqueue.outputs.ledger import SqlLedger
from batchqueue.outputs.reading import (
    Selection,
    StoredMetric,
    name_and_table,
    stored_type,
)
from batchqueue.outputs.sqlite_connection import CREATE_STATE
from batchqueue.outputs.store import FIRST_BUCKET, StoreError

# The SQL of the SQLite store. Values are bound; table and column names are checked and quoted.


EPOCHS_TABLE = "batchqueue_epochs"
CREATE_LEDGER = (
    # seq keeps the order of the summaries; AUTOINCREMENT, so that clear() does not restart it.
    f"CREATE TABLE IF NOT EXISTS {EPOCHS_TABLE} (seq INTEGER PRIMARY KEY AUTOINCREMENT, "
    "sink TEXT NOT NULL, query_id TEXT NOT NULL, batch_id INTEGER NOT NULL, summary TEXT NOT NULL)",
    f"CREATE INDEX IF NOT EXISTS batchqueue_epochs_of_sink ON {EPOCHS_TABLE} (sink, seq)",
    "CREATE TABLE IF NOT EXISTS batchqueue_sinks (sink TEXT PRIMARY KEY, description TEXT) "
    "WITHOUT ROWID",
    # The tables that hold metrics. The owner of the file may have others, which clear() must not
    # touch.
    "CREATE TABLE IF NOT EXISTS batchqueue_tables (name TEXT PRIMARY KEY) WITHOUT ROWID",
)
MARKS_TABLE = "batchqueue_marks"
SINK_TABLES = (MARKS_TABLE, EPOCHS_TABLE, "batchqueue_sinks")
"""The tables of the ledger, each with a column `sink`."""
CREATE_MARKS = (
    f"CREATE TABLE {MARKS_TABLE} (sink TEXT NOT NULL, query_id TEXT NOT NULL, "
    "batch_id INTEGER NOT NULL, PRIMARY KEY (sink, query_id)) WITHOUT ROWID",
    # An older version kept every epoch but no marks; the epochs in its files must not be applied
    # again.
    f"INSERT INTO {MARKS_TABLE} SELECT sink, query_id, max(batch_id) FROM {EPOCHS_TABLE} "
    "GROUP BY sink, query_id",
)

NEED_WRITABLE = f"DELETE FROM {EPOCHS_TABLE} WHERE 0"
"""Changes nothing, and fails if the file is read-only; BEGIN IMMEDIATE alone would succeed."""


def wanted_values(selection: Selection) -> list[tuple[str, list[str | int]]]:
    """Return the columns that a selection restricts, each with its wanted values."""
    wanted: list[tuple[str, list[str | int]]] = [
        (quoted(column), list(map(key_in_sql, values))) for column, values in selection.keys
    ]
    if selection.entities is not None:
        wanted.append(("entity", list(selection.entities)))
    return wanted


def wanted_table(number: int) -> tuple[str, str]:
    """Return the statements that create a temporary table of wanted values, and insert into it.

    The second statement ends before its values.
    """
    table = f"{_WANTED_TABLE}_{number}"
    create = f"CREATE TEMP TABLE {table} (value PRIMARY KEY) WITHOUT ROWID"
    return create, f"INSERT OR IGNORE INTO {table}"


_WANTED_TABLE = "batchqueue_wanted"

_WANTED_KEYS = "temp.batchqueue_wanted_keys"
CREATE_WANTED_KEYS = (
    f"CREATE TABLE IF NOT EXISTS {_WANTED_KEYS} (entity TEXT, time_bucket INTEGER, "
    "PRIMARY KEY (entity, time_bucket)) WITHOUT ROWID"
)
DELETE_WANTED_KEYS = f"DELETE FROM {_WANTED_KEYS}"
INSERT_WANTED_KEYS = f"INSERT OR IGNORE INTO {_WANTED_KEYS}"


class SqliteTableSql(NamedTuple):
    """The statements for the table of a kind of metrics; `insert` ends before its values."""

    create: str
    select_wanted: str
    select: str
    delete_key: str
    insert: str


@cache
def table_sql(metric_type: type[Metrics]) -> SqliteTableSql:
    """Return the statements for a metric type.

    Value columns have no SQL type, so that SQLite keeps values as they are: it would turn ints into
    floats in a REAL column, and floats into ints in a NUMERIC column.

    Raises:
        ConfigError: The name of the table or of a column is invalid.
    """
    check_names(metric_type)
    table = quoted(metric_type.table)
    keyed = [quoted(column) for column in metric_type.key_columns]
    values = [quoted(column) for column in metric_type.columns]
    keys = ["sink", "metric", "entity", "time_bucket", *(["rank"] if metric_type.multi_row else [])]
    rank_column = "rank INTEGER NOT NULL, " if metric_type.multi_row else ""
    order = ", ".join(keys[2:])
    same_key = "sink = ? AND metric = ? AND entity = ? AND time_bucket = ?"
    columns = ", ".join(values)
    stored = "stored.entity, stored.time_bucket"
    return SqliteTableSql(
        create=f"CREATE TABLE IF NOT EXISTS {table} (sink TEXT NOT NULL, metric TEXT NOT NULL, "
        f"entity TEXT NOT NULL, time_bucket INTEGER NOT NULL, {rank_column}"
        f"{', '.join([*keyed, *values])}, "
        f"PRIMARY KEY ({', '.join(keys)})) WITHOUT ROWID",
        # A CROSS JOIN looks up each wanted key, instead of reading each row of the metric.
        select_wanted=f"SELECT {stored}, {', '.join(f'stored.{value}' for value in values)} "
        f"FROM {_WANTED_KEYS} AS wanted CROSS JOIN {table} AS stored "
        "WHERE stored.sink = ? AND stored.metric = ? "
        "AND stored.entity = wanted.entity AND stored.time_bucket = wanted.time_bucket "
        "ORDER BY wanted.entity, wanted.time_bucket"
        f"{', stored.rank' if metric_type.multi_row else ''}",
        select=f"SELECT {order}, {columns} FROM {table} WHERE sink = ? AND metric = ?",
        delete_key=f"DELETE FROM {table} WHERE {same_key}",
        insert=f"INSERT OR REPLACE INTO {table} ({', '.join([*keys, *keyed, *values])})",
    )


def key_in_sql(value: KeyValue) -> str | int:
    """Return a value of a key column as SQLite holds it: dates as text, bools as 0 and 1."""
    if isinstance(value, date):
        return value.isoformat()
    return int(value) if isinstance(value, bool) else value


def select_rows(selection: Selection) -> tuple[str, list[str | int]]:
    """Return the statement for the rows of a selection, in order, and its values.

    Its columns are those of `read_table` without the key columns, which follow from the entity.
    Wanted values are in temporary tables, because a statement can bind only a limited number of
    values.
    """
    sql = table_sql(selection.metric_type).select
    values: list[str | int] = [selection.sink_id, selection.metric_type.name]
    for number, (column, _) in enumerate(wanted_values(selection)):
        sql += f" AND {column} IN (SELECT value FROM temp.{_WANTED_TABLE}_{number})"
    if selection.since is not None:
        sql += " AND time_bucket >= ?"
        values.append(selection.since)
    if selection.before is not None:
        sql += " AND time_bucket < ?"
        values.append(selection.before)
    rank = ", rank" if selection.metric_type.multi_row else ""
    return f"{sql} ORDER BY entity, time_bucket{rank}", values


M = TypeVar("M", bound=Metrics)


class SqliteTransaction(SqlLedger):
    """A `StoreTransaction` on an open connection.

    Wanted keys are in a temporary table, because a statement can bind only a limited number of
    values.
    """

    rows_at_once = 2_000  # their objects fit into the cache of a core

    def __init__(
        self,
        connection: sqlite3.Connection,
        sink_id: str,
        errors: Callable[[], AbstractContextManager[None]],
        kept_summaries: int,
    ) -> None:
        """Make the transaction of a sink.

        Args:
            connection: A connection in a transaction, which its owner commits.
            sink_id: The sink whose rows to read and write.
            errors: Turns the errors of SQLite into `StoreError`.
            kept_summaries: Number of summaries to keep for the sink.
        """
        super().__init__(sink_id, kept_summaries)
        self._connection = connection
        self._errors = errors
        self._tables: set[str] = set()
        self._wanted = 0  # changes to the temporary table

    @property
    def has_changes(self) -> bool:
        """Whether it has changed what is stored."""
        return self._connection.total_changes > self._wanted

    def load(self, metric_type: type[M], keys: Iterable[tuple[str, int]]) -> list[M]:
        """Return the stored partials of the given keys."""
        with self._statements():
            wanted = list(keys)
            check_keys(metric_type.name, wanted)
            sql = self._table(metric_type)
            execute = self._connection.execute
            execute(CREATE_WANTED_KEYS)
            before = self._connection.total_changes
            execute(DELETE_WANTED_KEYS)
            insert_rows(self._connection, INSERT_WANTED_KEYS, wanted)
            self._wanted += self._connection.total_changes - before
            rows = execute(sql.select_wanted, (self._sink_id, metric_type.name)).fetchall()
            return grouped_partials(metric_type, all_from_sql(rows, metric_type), 2)

    def save(self, metrics: Sequence[Metrics]) -> None:
        """Store partials, replacing those of the same type and key."""
        with self._statements():
            for metric_type, group in groupby(metrics, key=_type):
                sql = self._table(metric_type)
                latest = {item.key: item for item in group}
                head = (self._sink_id, metric_type.name)
                if metric_type.multi_row:  # a partial may have fewer rows than before
                    self._connection.executemany(sql.delete_key, ((*head, *key) for key in latest))
                insert_rows(self._connection, sql.insert, stored_rows(metric_type, latest), head)

    def merge_rows(self, metric_type: type[Metrics], rows: Sequence[Row]) -> None:
        """Combine partials given as rows with what is stored."""
        with self.guarded():
            # Sorted like the table, adjacent rows are on the same pages.
            super().merge_rows(metric_type, sorted(rows, key=itemgetter(0)))

    def may_have(self, metric_type: type[Metrics]) -> bool:
        """Return whether the sink has a partial of a metric."""
        with self._statements():
            self._table(metric_type)
            found = self._connection.execute(
                f"SELECT 1 FROM {quoted(metric_type.table)} WHERE sink = ? AND metric = ? LIMIT 1",
                (self._sink_id, metric_type.name),
            )
            return found.fetchone() is not None

    def save_rows(self, metric_type: type[Metrics], rows: Sequence[Row]) -> None:
        """Store partials given as rows, under keys that the store does not have."""
        with self._statements():
            sql = self._table(metric_type)
            head = (self._sink_id, metric_type.name)
            insert_rows(self._connection, sql.insert, rows_to_sql(metric_type, rows), head)

    def delete(
        self, before: int, *, since: int = FIRST_BUCKET, keep: Collection[type[Metrics]] = ()
    ) -> int:
        """Delete the metrics of this sink in a range of time buckets."""
        kept: dict[str, list[str]] = {}
        for metric_type in keep:
            kept.setdefault(metric_type.table, []).append(metric_type.name)
        with self._statements():
            return sum(
                self._connection.execute(
                    f"DELETE FROM {quoted(table)} WHERE sink = ? AND time_bucket >= ? "
                    "AND time_bucket < ? AND metric NOT IN (SELECT value FROM json_each(?))",
                    (self._sink_id, since, before, json.dumps(kept.get(table, []))),
                ).rowcount
                for table in self._tables_of_metrics()
            )

    def clear(self) -> None:
        """Delete everything that this sink wrote."""
        with self._statements():
            tables = self._tables_of_metrics()
            for table in [*tables, EPOCHS_TABLE, MARKS_TABLE, "batchqueue_sinks"]:
                self._connection.execute(
                    f"DELETE FROM {quoted(table)} WHERE sink = ?", (self._sink_id,)
                )

    @contextmanager
    def _statements(self) -> Iterator[None]:
        with self.guarded(), self._errors():
            # After some errors, such as a full disk, SQLite has rolled back on its own and would
            # commit each further statement.
            if not self._connection.in_transaction:
                raise sqlite3.OperationalError(
                    "the transaction was rolled back after an earlier error"
                )
            yield

    @contextmanager
    def _ran(self, sql: str, *values: object) -> Iterator[sqlite3.Cursor]:
        with self._statements():
            yield self._connection.execute(sql, values)

    def _tables_of_metrics(self) -> list[str]:
        found = self._connection.execute("SELECT name FROM batchqueue_tables")
        return [name for (name,) in found.fetchall()]

    def _table(self, metric_type: type[Metrics]) -> SqliteTableSql:
        sql = table_sql(metric_type)
        if metric_type.table not in self._tables:
            self._connection.execute(sql.create)
            self._connection.execute(
                "INSERT OR IGNORE INTO batchqueue_tables VALUES (?)", (metric_type.table,)
            )
            self._tables.add(metric_type.table)
        return sql


def create_ledger(connection: sqlite3.Connection) -> None:
    """Create the tables of the ledger that are missing."""
    for statement in (*CREATE_LEDGER, *CREATE_STATE):
        connection.execute(statement)
    if not has_table(connection, MARKS_TABLE):
        for statement in CREATE_MARKS:
            connection.execute(statement)


def has_table(connection: sqlite3.Connection, table: str) -> bool:
    """Return whether the database has a table with this name."""
    sql = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?"
    return connection.execute(sql, (table,)).fetchone() is not None


def sinks_of(connection: sqlite3.Connection) -> list[str]:
    """Return the ids of the sinks that have metrics, marks, summaries or a description."""
    tables = [table for table in SINK_TABLES if has_table(connection, table)]
    if has_table(connection, "batchqueue_tables"):
        tables += [name for (name,) in connection.execute("SELECT name FROM batchqueue_tables")]
    found = {
        sink
        for table in tables
        for (sink,) in connection.execute(f"SELECT DISTINCT sink FROM {quoted(table)}")
    }
    return sorted(found)


def metrics_of(connection: sqlite3.Connection, sink_id: str) -> list[StoredMetric]:
    """Return the metrics of a sink, ordered by their names."""
    if not has_table(connection, "batchqueue_tables"):
        return []
    found = []
    for (table,) in connection.execute("SELECT name FROM batchqueue_tables").fetchall():
        names = [column[1] for column in connection.execute(f"PRAGMA table_info({quoted(table)})")]
        values = [name for name in names if name not in KEY_COLUMNS and is_name(name)]
        largest = "".join(f", max({_ORDER_OF_TYPES.format(quoted(name))})" for name in values)
        for name, rows, first, last, *types in connection.execute(
            f"SELECT metric, count(*), min(time_bucket), max(time_bucket){largest} "
            f"FROM {quoted(table)} WHERE sink = ? GROUP BY metric",
            (sink_id,),
        ):
            kinds = [_KINDS[kind] for kind in types]
            layout = Layout(table, tuple(zip(values, kinds, strict=True)), "rank" in names)
            found.append(StoredMetric(stored_type(name, layout), rows, first, last))
    return sorted(found, key=name_and_table)


_ORDER_OF_TYPES = (
    "CASE typeof({}) WHEN 'text' THEN 3 WHEN 'null' THEN 0 WHEN 'integer' THEN 1 ELSE 2 END"
)
_KINDS = (float, int, float, str)
"""The type that holds all values of a column, by the largest of their `_ORDER_OF_TYPES`."""


def _type(item: Metrics) -> type[Metrics]:
    return type(item)


# Insertion of many rows: a statement costs as much as several rows, so each inserts many.


_MOST_VALUES = 999
"""The most values that a statement can bind in SQLite before 3.32."""

_MOST_ROWS = 100
"""The most rows of a statement; more would not be faster."""


def insert_rows(
    connection: sqlite3.Connection,
    insert: str,
    rows: Iterable[tuple[Any, ...]],
    head: tuple[Any, ...] = (),
) -> None:
    """Insert rows.

    Args:
        connection: A connection in a transaction, because a row may fail after others.
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
        at_once = 1  # SQLite refuses a row of another length, instead of shifting values
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


# Values as SQLite holds them: decimals as text, bools as 0 and 1, NaN as a blob.


# SQLite silently turns NaN into NULL. This blob stands for NaN; no other value is stored as a blob.
_NAN = b"NaN"
_KEPT = {int, float, str, type(None)}


def stored_rows(
    metric_type: type[Metrics], metrics: Mapping[tuple[str, int], Metrics]
) -> Iterator[Row]:
    """Convert partials, given by key, to rows with the columns of `read_table`, as SQLite has them.

    Raises:
        StoreError: A key or a value has another type.
    """
    check_keys(metric_type.name, metrics)
    heads, rows = rows_of(metrics, multi_row=metric_type.multi_row)
    if metric_type.key_columns:
        first = len(heads[0]) - len(metric_type.key_columns) if heads else 0
        heads = [(*head[:first], *map(key_in_sql, head[first:])) for head in heads]
    if not _are_kept(metric_type, rows):
        rows = [
            _stored_values(metric_type, row, head[:2])
            for head, row in zip(heads, rows, strict=True)
        ]
    return ((*head, *row) for head, row in zip(heads, rows, strict=True))


def rows_to_sql(metric_type: type[Metrics], rows: Sequence[Row]) -> Sequence[Row]:
    """Convert rows with the columns of `read_table`, and values of their types, to SQLite's.

    Raises:
        StoreError: A value does not fit its column.
    """
    kinds = metric_type.columns.values()
    floats = [position for position, kind in enumerate(kinds, 2) if kind is float]
    if not (
        metric_type.key_columns
        or _kinds_unlike_sql(metric_type)
        or any(_has_nan([row[position] for row in rows]) for position in floats)
    ):
        return rows
    first = 2 + len(metric_type.key_columns)
    return [
        (
            *row[:2],
            *map(key_in_sql, row[2:first]),
            *_stored_values(metric_type, row[first:], row[:2]),
        )
        for row in rows
    ]


def _are_kept(metric_type: type[Metrics], rows: Sequence[Row]) -> bool:
    """Return whether SQLite keeps all values unchanged."""
    values = list(chain.from_iterable(rows))
    is_plain = set(map(type, values)) <= _KEPT and not _has_nan(values)
    return is_plain and not _kinds_unlike_sql(metric_type)


def _has_nan(values: Sequence[Any]) -> bool:
    return not all(map(eq, values, values))


def _stored_values(metric_type: type[Metrics], row: Row, key: tuple[Any, ...]) -> Row:
    """Return the values of a row as SQLite holds them."""
    odd = _kinds_unlike_sql(metric_type)
    return tuple(
        value
        if type(value) in _KEPT and value == value  # noqa: PLR0124 - false for NaN
        else _checked(value, metric_type, key)
        for value in (_in_sql(metric_type, row, odd) if odd else row)
    )


@cache
def _kinds_unlike_sql(metric_type: type[Metrics]) -> dict[int, type]:
    """Return the value column types that SQLite lacks, by position from the end."""
    kinds = metric_type.columns.values()
    return {
        position - len(kinds): kind
        for position, kind in enumerate(kinds)
        if kind in (bool, Decimal)
    }


def _in_sql(metric_type: type[Metrics], row: Row, odd: Mapping[int, type]) -> Row:
    """Return the values of a row, with decimals as text and bools as 0 and 1."""
    values = list(row)
    for position, kind in odd.items():
        if values[position] is not None:
            try:
                value = FITTING[kind](values[position])
            except (TypeError, OverflowError) as error:
                column = list(metric_type.columns)[position]
                raise StoreError(
                    f"{row!r} of metric {metric_type.name} does not fit the column {column} "
                    f"{shown(kind)}: {error}; check the metrics, or give metric_type other columns="
                ) from error
            values[position] = str(value) if kind is Decimal else int(value)
    return tuple(values)


def _checked(value: Any, metric_type: type[Metrics], key: tuple[Any, ...]) -> Any:
    """Return the stored form of NaN, or of a value whose type is a subclass of a plain type."""
    if not isinstance(value, int | float | str):
        raise StoreError(
            f"metric {metric_type.name} has the value {value!r} under {key}; "
            "check the metrics: values are int, float, str or None, and Decimal or bool where "
            "metric_type has such columns="
        )
    return _NAN if value != value else value  # noqa: PLR0124


def all_from_sql(rows: list[Row], metric_type: type[Metrics]) -> list[Row]:
    """Return stored rows, whose last columns are the value columns, with their original values."""
    if not _kinds_unlike_sql(metric_type) and bytes not in set(map(type, chain(*rows))):
        return rows
    return [from_sql(row, metric_type) for row in rows]


def from_sql(row: Row, metric_type: type[Metrics]) -> Row:
    """Return a stored row, whose last columns are the value columns, with its original values."""
    values = [float(value) if type(value) is bytes else value for value in row]
    for position, kind in _kinds_unlike_sql(metric_type).items():
        value = values[position]
        if value is not None:
            if type(value) is not (str if kind is Decimal else int):
                raise StoreError(
                    f"metric {metric_type.name} was stored with {value!r} in a column that is now "
                    f"of {shown(kind)}: keep the types of its columns, or give the metric another "
                    "name"
                )
            values[position] = kind(value)
    return tuple(values)
