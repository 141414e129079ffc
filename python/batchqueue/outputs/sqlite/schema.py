"""The SQL of the SQLite store. Values are bound; table and column names are checked and quoted."""

from datetime import date
from functools import cache
from typing import NamedTuple

from batchqueue.aggregation import Metrics
from batchqueue.aggregation.metrics import KeyValue
from batchqueue.outputs.layout import check_names, quoted
from batchqueue.outputs.reading import Selection

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
    # An older version kept every epoch and no marks: the epochs of its files must not be applied
    # again.
    f"INSERT INTO {MARKS_TABLE} SELECT sink, query_id, max(batch_id) FROM {EPOCHS_TABLE} "
    "GROUP BY sink, query_id",
)

NEED_WRITABLE = f"DELETE FROM {EPOCHS_TABLE} WHERE 0"
"""Changes nothing, and fails if the file is read-only; BEGIN IMMEDIATE alone would succeed."""


def wanted_values(selection: Selection) -> list[tuple[str, list[str | int]]]:
    """Return the columns of which a selection wants some values only, each with these values."""
    wanted: list[tuple[str, list[str | int]]] = [
        (quoted(column), list(map(key_in_sql, values))) for column, values in selection.keys
    ]
    if selection.entities is not None:
        wanted.append(("entity", list(selection.entities)))
    return wanted


def wanted_table(number: int) -> tuple[str, str]:
    """Return the statements that make a temporary table of wanted values, and add to it.

    The second one ends before its values.
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


class TableSql(NamedTuple):
    """The statements for the table of a kind of metrics; `insert` ends before its values."""

    create: str
    select_wanted: str
    select: str
    delete_key: str
    insert: str


@cache
def table_sql(metric_type: type[Metrics]) -> TableSql:
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
    return TableSql(
        create=f"CREATE TABLE IF NOT EXISTS {table} (sink TEXT NOT NULL, metric TEXT NOT NULL, "
        f"entity TEXT NOT NULL, time_bucket INTEGER NOT NULL, {rank_column}"
        f"{', '.join([*keyed, *values])}, "
        f"PRIMARY KEY ({', '.join(keys)})) WITHOUT ROWID",
        # A CROSS JOIN, so that each wanted key is looked up, and not each row of the metric.
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

    Its columns are those of `read_table` without the key columns, which are known by the entity.
    Wanted values are in temporary tables, because the number of values of a statement has a limit.
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
