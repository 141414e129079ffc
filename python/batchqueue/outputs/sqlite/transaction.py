"""A transaction of the SQLite store."""

import json
import sqlite3
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from itertools import groupby
from operator import itemgetter
from typing import Any, TypeVar

from batchqueue.aggregation import Metrics
from batchqueue.aggregation.metrics import Row
from batchqueue.outputs.layout import KEY_COLUMNS, Layout, check_keys, is_name, quoted
from batchqueue.outputs.reading import (
    StoredMetric,
    grouped_partials,
    name_and_table,
    stored_type,
)
from batchqueue.outputs.sqlite.inserting import insert_rows
from batchqueue.outputs.sqlite.schema import (
    CREATE_LEDGER,
    CREATE_MARKS,
    CREATE_WANTED_KEYS,
    DELETE_WANTED_KEYS,
    EPOCHS_TABLE,
    INSERT_WANTED_KEYS,
    MARKS_TABLE,
    SINK_TABLES,
    TableSql,
    table_sql,
)
from batchqueue.outputs.sqlite.state import CREATE_STATE
from batchqueue.outputs.sqlite.values import all_from_sql, rows_to_sql, stored_rows
from batchqueue.outputs.store import FIRST_BUCKET, Epoch, StoreTransaction, to_json

M = TypeVar("M", bound=Metrics)


class SqliteTransaction(StoreTransaction):
    """A `StoreTransaction` on an open connection.

    Wanted keys are in a temporary table, because the number of values of a statement has a limit.
    """

    rows_at_once = 2_000  # what is made of them stays in the cache of a core

    def __init__(
        self,
        connection: sqlite3.Connection,
        sink_id: str,
        errors: Callable[[], AbstractContextManager[None]],
        kept_summaries: int,
    ) -> None:
        """Make the transaction of a sink.

        Args:
            connection: Inside a transaction, which its owner commits.
            sink_id: The sink whose rows to read and write.
            errors: Turns the errors of SQLite into `StoreError`.
            kept_summaries: Summaries to keep for the sink.
        """
        self._connection = connection
        self._sink_id = sink_id
        self._errors = errors
        self._kept_summaries = kept_summaries
        self._tables: set[str] = set()
        self._wanted = 0  # changes of the temporary table

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
        """Combine partials that come as rows with what is stored."""
        with self.guarded():
            # In the order of the table, neighbours are on the same pages.
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
        """Store partials that come as rows under keys that the store does not have."""
        with self._statements():
            sql = self._table(metric_type)
            head = (self._sink_id, metric_type.name)
            insert_rows(self._connection, sql.insert, rows_to_sql(metric_type, rows), head)

    def raise_mark(self, query_id: str, batch_id: int) -> None:
        """Set the mark of a query."""
        with self._statements():
            self._connection.execute(
                f"INSERT OR REPLACE INTO {MARKS_TABLE} (sink, query_id, batch_id) VALUES (?, ?, ?)",
                (self._sink_id, query_id, batch_id),
            )

    def add_summary(self, query_id: str, batch_id: int, summary: str) -> None:
        """Keep the summary of an epoch, and delete the oldest if there are too many."""
        with self._statements():
            self._connection.execute(
                f"INSERT INTO {EPOCHS_TABLE} (sink, query_id, batch_id, summary) "
                "VALUES (?, ?, ?, ?)",
                (self._sink_id, query_id, batch_id, summary),
            )
            self._connection.execute(
                f"DELETE FROM {EPOCHS_TABLE} WHERE sink = ? AND seq <= "
                f"(SELECT seq FROM {EPOCHS_TABLE} WHERE sink = ? "
                "ORDER BY seq DESC LIMIT 1 OFFSET ?)",
                (self._sink_id, self._sink_id, self._kept_summaries),
            )

    def last_batch(self, query_id: str) -> int | None:
        """Return the mark of a query; `None` without a mark."""
        sql = f"SELECT batch_id FROM {MARKS_TABLE} WHERE sink = ? AND query_id = ?"
        with self._statements():
            row = self._connection.execute(sql, (self._sink_id, query_id)).fetchone()
        return None if row is None else row[0]

    def known_queries(self) -> set[str]:
        """Return the ids of the queries with a mark."""
        sql = f"SELECT query_id FROM {MARKS_TABLE} WHERE sink = ?"
        with self._statements():
            return {query_id for (query_id,) in self._connection.execute(sql, (self._sink_id,))}

    def summaries(self, newest: int | None = None) -> list[Epoch]:
        """Return the newest summaries that are kept, in the order in which they were recorded."""
        sql = (
            f"SELECT query_id, batch_id, summary FROM {EPOCHS_TABLE} WHERE sink = ? "
            "ORDER BY seq DESC LIMIT ?"
        )
        with self._statements():
            rows = self._connection.execute(
                sql, (self._sink_id, -1 if newest is None else newest)
            ).fetchall()
        return [
            Epoch(query_id, batch_id, json.loads(text))
            for query_id, batch_id, text in reversed(rows)
        ]

    def description(self) -> dict[str, Any] | None:
        """Return the description of the job that wrote last; `None` without a description."""
        sql = "SELECT description FROM batchqueue_sinks WHERE sink = ?"
        with self._statements():
            row = self._connection.execute(sql, (self._sink_id,)).fetchone()
        return None if row is None else json.loads(row[0])

    def describe(self, description: Mapping[str, Any]) -> None:
        """Store a description of the job that writes."""
        with self._statements():
            self._connection.execute(
                "INSERT OR REPLACE INTO batchqueue_sinks (sink, description) VALUES (?, ?)",
                (self._sink_id, to_json(description)),
            )

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

    def _tables_of_metrics(self) -> list[str]:
        found = self._connection.execute("SELECT name FROM batchqueue_tables")
        return [name for (name,) in found.fetchall()]

    def _table(self, metric_type: type[Metrics]) -> TableSql:
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
"""The type that holds all values of a column, by the largest of their types."""


def _type(item: Metrics) -> type[Metrics]:
    return type(item)
