"""The SQL of the PostgreSQL store. Values are bound; table and column names are quoted."""

from collections.abc import Sequence
from datetime import date
from decimal import Decimal
from functools import cache
from hashlib import sha256
from typing import NamedTuple

from batchqueue.outputs.layout import KEY_COLUMNS, Layout, is_name, quoted, table_layout
from batchqueue.outputs.reading import Selection

_SQL_TYPES = {
    int: "bigint",
    float: "double precision",
    str: "text",
    bool: "boolean",
    Decimal: "numeric",
    date: "date",
}
_COPY_TYPES = {
    int: "int8",
    float: "float8",
    str: "text",
    bool: "bool",
    Decimal: "numeric",
    date: "date",
}

# Byte order is the same on every server, and the fastest.
_TEXT = 'text COLLATE "C"'

LEDGER_TABLES = ("batchqueue_sinks", "batchqueue_marks", "batchqueue_epochs", "batchqueue_tables")

KEYS_COPY_TYPES = ("text", "text", "int8")
CREATE_KEYS = (
    f"CREATE TEMPORARY TABLE batchqueue_keys (metric {_TEXT}, entity {_TEXT}, time_bucket bigint) "
    "ON COMMIT DROP"
)

LIMITS = (
    "SELECT set_config('lock_timeout', %s, true), set_config('synchronous_commit', "
    # A commit that Spark relies on must survive a crash, which every setting but `off` ensures.
    "CASE current_setting('synchronous_commit') WHEN 'off' THEN 'on' "
    "ELSE current_setting('synchronous_commit') END, true)"
)
"""Set in each transaction, not once per connection: there may be a pooler in between."""

LOCK_TABLES = "SELECT pg_advisory_xact_lock(hashtextextended('batchqueue tables of ' || %s, 0))"
"""One transaction at a time creates tables in a schema: concurrent IF NOT EXISTS may fail."""

COLUMNS_OF = (
    "SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute "
    "WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped"
)


def create_ledger(schema: str) -> list[str]:
    """Return the statements that create the ledger.

    Args:
        schema: The quoted name of the schema.
    """
    sink = f"sink {_TEXT} NOT NULL"
    return [
        # The writer of a sink locks its row, so the row exists before its description.
        f"CREATE TABLE IF NOT EXISTS {schema}.batchqueue_sinks "
        f"(sink {_TEXT} PRIMARY KEY, description json)",
        f"CREATE TABLE IF NOT EXISTS {schema}.batchqueue_marks ({sink}, query_id {_TEXT} NOT NULL, "
        "batch_id bigint NOT NULL, PRIMARY KEY (sink, query_id))",
        f"CREATE TABLE IF NOT EXISTS {schema}.batchqueue_epochs "
        f"(seq bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, {sink}, "
        f"query_id {_TEXT} NOT NULL, batch_id bigint NOT NULL, summary json NOT NULL)",
        "CREATE INDEX IF NOT EXISTS batchqueue_epochs_of_sink "
        f"ON {schema}.batchqueue_epochs (sink, seq)",
        # The tables that hold metrics. The owner of the schema may have others, which clear() must
        # not touch.
        f"CREATE TABLE IF NOT EXISTS {schema}.batchqueue_tables (name {_TEXT} PRIMARY KEY)",
    ]


class PostgresTableSql(NamedTuple):
    """The statements for a table of metrics and its staging table."""

    name: str
    column_types: dict[str, str]
    create: str
    create_staging: str
    staging: str
    copy_types: tuple[str, ...]
    upsert: str
    delete_keys: str
    select_keys: str
    select: str


@cache
def table_sql(schema: str, layout: Layout) -> PostgresTableSql:
    """Return the statements for a layout.

    Args:
        schema: The quoted name of the schema.
        layout: The table.
    """
    name = f"{schema}.{quoted(layout.table)}"
    keys = layout.key_columns
    kinds = layout.kinds
    definitions = ", ".join(
        f"{quoted(column)} {_TEXT if kind is str else _SQL_TYPES[kind]}"
        f"{' NOT NULL' if column in keys else ''}"
        for column, kind in kinds.items()
    )
    values = [quoted(column) for column, _ in layout.columns]
    # A hash, because names may have at most 63 bytes.
    staging = f"batchqueue_rows_{sha256(layout.table.encode()).hexdigest()[:16]}"
    columns = ", ".join([*keys, *values])
    replaced = ", ".join(f"{value} = excluded.{value}" for value in values)
    found = ", ".join(f"stored.{column}" for column in [*keys[1:], *values])
    order = ", ".join(f"stored.{key}" for key in keys[1:])
    same_key = " AND ".join(f"stored.{key} = wanted.{key}" for key in keys[:3])
    return PostgresTableSql(
        name=name,
        column_types={"sink": "text"}
        | {column: _SQL_TYPES[kind] for column, kind in kinds.items()},
        create=f"CREATE TABLE {name} (sink {_TEXT} NOT NULL, {definitions}, "
        f"PRIMARY KEY (sink, {', '.join(keys)}))",
        create_staging=f"CREATE TEMPORARY TABLE {staging} ({definitions}) ON COMMIT DROP",
        staging=f"pg_temp.{staging}",
        copy_types=tuple(_COPY_TYPES[kind] for kind in kinds.values()),
        upsert=f"INSERT INTO {name} (sink, {columns}) SELECT %s, {columns} FROM pg_temp.{staging} "
        f"ON CONFLICT (sink, {', '.join(keys)}) DO UPDATE SET {replaced}",
        delete_keys=f"DELETE FROM {name} AS stored USING pg_temp.batchqueue_keys AS wanted "
        f"WHERE stored.sink = %s AND {same_key}",
        select_keys=f"SELECT {found} FROM {name} AS stored "
        f"JOIN pg_temp.batchqueue_keys AS wanted ON {same_key} "
        f"WHERE stored.sink = %s ORDER BY {order}",
        select=f"SELECT {', '.join([*keys[1:], *values])} FROM {name} WHERE sink = %s "
        "AND metric = %s",
    )


def layout_of(table: str, columns: Sequence[tuple[str, str]]) -> Layout:
    """Return the layout of a table from its columns, ignoring those of other types."""
    kinds = {sql_type: kind for kind, sql_type in _SQL_TYPES.items()}
    values = tuple(
        (name, kinds[sql_type])
        for name, sql_type in columns
        if name not in KEY_COLUMNS and sql_type in kinds and is_name(name)
    )
    return Layout(table, values, "rank" in dict(columns))


def select_rows(schema: str, selection: Selection) -> tuple[str, list[object]]:
    """Return the statement for the rows of a selection, in order, and its values.

    Its columns are those of `read_table`.
    """
    layout = table_layout(selection.metric_type)
    sql = table_sql(schema, layout).select
    values: list[object] = [selection.sink_id, selection.metric_type.name]
    for condition, value in (
        ("entity = ANY(%s)", None if selection.entities is None else list(selection.entities)),
        ("time_bucket >= %s", selection.since),
        ("time_bucket < %s", selection.before),
    ):
        if value is not None:
            sql += f" AND {condition}"
            values.append(value)
    for column, wanted in selection.keys:
        sql += f" AND {quoted(column)} = ANY(%s)"
        values.append(list(wanted))
    return f"{sql} ORDER BY {', '.join(layout.key_columns[1:])}", values
