"""`PostgresRows`: items as rows of a table in PostgreSQL, by COPY."""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import partial
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any, TypeVar

from batchqueue.base.checks import ABOVE_0, check_finite, require
from batchqueue.exceptions import ConfigError
from batchqueue.exporters.contract import Exporter, Halve, NotDelivered, Outcome, send_in_halves
from batchqueue.exporters.fields import Columns, RowFunction, as_columns, row_of, rows_of, values_of

if TYPE_CHECKING:
    import psycopg
    from psycopg import sql

    from batchqueue.exporters.postgres_connection import BoundedConnection

T = TypeVar("T")

_SHOWN = ("service", "host", "hostaddr", "port", "dbname", "user")
_KEEPALIVES = {
    "keepalives_idle": 30,
    "keepalives_interval": 10,
    "keepalives_count": 3,
    "tcp_user_timeout": 60_000,
}
"""Settings that detect a vanished server within a minute; a connection string overrides them."""

_AGAIN = ("08", "25P0", "53", "57P0", "58")
"""Beginnings of SQLSTATEs: a connection, a lack of resources, a server that stops, its disks."""
_AGAIN_EXACTLY = {"25006", "40001", "40003", "40P01", "55P03", "57014"}
"""Read only, as after a switch of servers; conflicts; a lock or a statement that took too long."""
_ALL_DEAD = ("0A", "28", "2B", "3D", "3F", "42")
"""Errors of the statement, the table or the rights, which no row of the batch escapes."""

_TEMPORARY = "batchqueue_rows"

_MOST_MS = (1 << 31) - 1
"""The largest timeout of a server."""

_SILENT_TIMES = 2
"""How many times the timeout the server may be silent.

The server ends each statement, and each pause of a transaction, after the timeout. So a transaction
that is given up here has ended there, or holds rows that its repetition waits for: it cannot
overwrite what comes after the repetition.
"""


class PostgresRows(Exporter[T]):
    """Writes each batch as rows of a table, in one transaction, by COPY.

    Needs the extra `postgres`. Without `on_conflict` rows are appended. With it, COPY fills a
    temporary table, from which one statement inserts or updates: of rows with equal keys in a batch
    the last one counts.

    Each row is stored at least once: if the answer to a commit was lost, the next attempt stores
    the batch again. With `on_conflict` that changes nothing, so each row is then stored exactly
    once.

    | the server | the rows |
    |---|---|
    | is away, stops, hangs, lacks resources or takes too long; a deadlock | are tried again |
    | refuses a value or a key | the batch is halved until the bad row alone is a dead letter |
    | refuses the statement: no such table or column, or no right | are dead letters |

    Attributes:
        table: The name of the table, quoted.
    """

    def __init__(
        self,
        conninfo: str,
        table: str | Sequence[str],
        *,
        columns: Iterable[str] | None = None,
        row: RowFunction | None = None,
        on_conflict: Iterable[str] | None = None,
        update: bool | Iterable[str] = True,
        timeout: float = 30,
        connect_timeout: float = 10,
    ) -> None:
        """Declare an exporter without connecting: a drain thread connects at the first batch.

        Args:
            conninfo: A connection string of libpq: "host=db1 dbname=shop user=web", or a URI. The
                password in it is never shown; it may be in ~/.pgpass or PGPASSWORD instead.
            table: The table, "orders" or "shop.orders"; ("shop", "odd.name") if a name has a dot.
            columns: The columns of the table that are filled. Default: the fields of the item: of a
                dataclass or named tuple, or the keys of a dict.
            row: Makes a dict, a dataclass, a named tuple, or with `columns` a tuple from an item.
                Default: the item itself.
            on_conflict: The columns of a unique index, to update rows that are there. Default:
                None, rows are appended.
            update: The columns that are updated; True for all except `on_conflict`, False to leave
                rows that are there as they are. Default: True.
            timeout: Seconds that a statement may take, before the server ends it. A server that
                says nothing is given up after twice as long. Default: 30 s.
            connect_timeout: Seconds to wait for a connection. Default: 10 s.

        Raises:
            ConfigError: An argument is invalid.
            MissingPackageError: psycopg is not installed.
        """
        require("psycopg", "PostgresRows", "postgres")
        self._words = _words(conninfo)
        parts = _names("table", table.split(".") if isinstance(table, str) else table)
        self._columns = None if columns is None else _names("columns", columns)
        self._keys = None if on_conflict is None else _names("on_conflict", on_conflict)
        self._update = update if isinstance(update, bool) else _names("update", update)
        if row is not None and not callable(row):
            raise ConfigError(f"row is {row!r}; give a function that takes an item")
        if self._keys is None and update is not True:
            raise ConfigError("update is given without on_conflict; give the columns of the key")
        check_finite("timeout", timeout, ABOVE_0, give="seconds above 0")
        self._timeout = timeout
        check_finite("connect_timeout", connect_timeout, ABOVE_0, give="seconds above 0")
        self._words["connect_timeout"] = max(1, round(connect_timeout))
        self._row = row
        self._table = parts
        self.table = ".".join('"' + part.replace('"', '""') + '"' for part in parts)
        self._connection: BoundedConnection | None = None

    def __repr__(self) -> str:
        shown = " ".join(f"{word}={self._words[word]}" for word in _SHOWN if self._words.get(word))
        return f"PostgresRows({shown!r}, {'.'.join(self._table)!r})"

    def export(self, items: list[T]) -> list[Outcome]:
        """Write items; see the class for what becomes of them."""
        if self._row is None and self._columns is None:
            found = None
            with suppress(Exception):  # of a single item, which is found below
                found = rows_of(items)
            if found is not None:
                return send_in_halves(found[1], partial(self._store, found[0]))
        outcomes: list[Outcome] = [None] * len(items)
        rows = []
        for position, item in enumerate(items):
            try:
                columns, values = self._read(item)
            except Exception as error:
                outcomes[position] = NotDelivered(error, retry=False)
            else:
                rows.append((columns, position, values))
        again: NotDelivered | None = None
        # Rows of other columns need another statement. Runs of them keep the order of all rows.
        for columns, run in groupby(rows, itemgetter(0)):
            _, positions, values_of_run = zip(*run, strict=True)
            if again is None:
                send = partial(self._store, columns)
                stored = send_in_halves(list(values_of_run), send)
                again = next((each for each in stored if each is not None and each.retry), None)
            else:
                stored = [again] * len(positions)
            for position, outcome in zip(positions, stored, strict=True):
                outcomes[position] = outcome
        return outcomes

    def disconnect(self) -> None:
        """Close the connection."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def forget(self) -> None:
        """Drop the parent's connection. psycopg closes it in the process that opened it only."""
        self._connection = None

    def _read(self, item: T) -> tuple[Columns, Sequence[Any]]:
        value: Any = item if self._row is None else self._row(item)
        if self._columns is None:
            return row_of(value)
        return self._columns, values_of(value, self._columns)

    def _store(self, columns: Columns, rows: list[Sequence[Any]]) -> Sequence[Outcome] | Halve:
        """Write rows in one transaction, and find out what an error means for them."""
        import psycopg

        try:
            connection = self._connected()
        except psycopg.Error as error:
            # Any error: libpq does not always give the state of a connection that was refused.
            return [NotDelivered(error)] * len(rows)
        try:
            if self._keys is None:
                self._append(connection, columns, rows)
            else:
                self._upsert(connection, columns, self._keys, rows)
        except Exception as error:
            state = getattr(error, "sqlstate", None)
            is_lost = connection.closed
            self._recover(connection, state)
            if (is_lost and state is None) or _is_to_be_retried(state):
                return [NotDelivered(error)] * len(rows)
            if state is not None and state.startswith(_ALL_DEAD):
                return [NotDelivered(error, retry=False)] * len(rows)
            return Halve(error)
        except BaseException:  # such as Ctrl-C, which leaves a transaction open
            self.disconnect()
            raise
        return [None] * len(rows)

    def _append(
        self, connection: "psycopg.Connection[Any]", columns: Columns, rows: list[Sequence[Any]]
    ) -> None:
        from psycopg import sql

        connection.execute(self._begin())
        self._copy(connection, sql.Identifier(*self._table), columns, rows)
        connection.execute("COMMIT")

    def _upsert(
        self,
        connection: "psycopg.Connection[Any]",
        columns: Columns,
        keys: Columns,
        rows: list[Sequence[Any]],
    ) -> None:
        from psycopg import sql

        target, temporary = sql.Identifier(*self._table), sql.Identifier("pg_temp", _TEMPORARY)
        names = _joined(columns)
        if self._update is True:
            updated = tuple(column for column in columns if column not in keys)
        else:
            updated = self._update or ()
        if updated:
            rows = _folded(rows, [columns.index(key) for key in keys if key in columns])
            pairs = [
                sql.SQL("{name} = excluded.{name}").format(name=sql.Identifier(column))
                for column in updated
            ]
            action = sql.SQL("DO UPDATE SET {}").format(sql.SQL(", ").join(pairs))
        else:
            action = sql.SQL("DO NOTHING").format()
        connection.execute(
            sql.SQL(
                "{begin}; CREATE TEMPORARY TABLE {name} ON COMMIT DROP AS "
                "SELECT {names} FROM {target} WITH NO DATA"
            ).format(
                begin=self._begin(), name=sql.Identifier(_TEMPORARY), names=names, target=target
            )
        )
        self._copy(connection, temporary, columns, rows)
        # In the order of the keys, so that two writers do not wait for each other's rows.
        order = sql.SQL(" ORDER BY {keys}").format(keys=_joined(keys)) if updated else sql.SQL("")
        connection.execute(
            sql.SQL(
                "INSERT INTO {target} ({names}) SELECT {names} FROM {temporary}{order} "
                "ON CONFLICT ({keys}) {action}; COMMIT"
            ).format(
                target=target,
                names=names,
                temporary=temporary,
                order=order,
                keys=_joined(keys),
                action=action,
            )
        )

    def _begin(self) -> "sql.Composed":
        """Return what begins a transaction that the server ends if it takes too long.

        The limits are not options of the connection, which PgBouncer refuses.
        """
        from psycopg import sql

        limit = max(1, min(round(self._timeout * 1_000), _MOST_MS))
        return sql.SQL(
            "BEGIN; SET LOCAL statement_timeout = {limit}; "
            "SET LOCAL idle_in_transaction_session_timeout = {limit}"
        ).format(limit=sql.Literal(limit))

    @staticmethod
    def _copy(
        connection: "psycopg.Connection[Any]",
        table: "sql.Identifier",
        columns: Columns,
        rows: list[Sequence[Any]],
    ) -> None:
        from psycopg import sql

        statement = sql.SQL("COPY {} ({}) FROM STDIN").format(table, _joined(columns))
        with connection.cursor() as cursor, cursor.copy(statement) as copy:
            write = copy.write_row
            for row in rows:
                write(row)

    def _connected(self) -> "BoundedConnection":
        """Return the connection, made anew if the server has closed it."""
        from batchqueue.exporters.postgres_connection import connect

        if self._connection is not None and self._connection.is_dead():
            self.disconnect()
        if self._connection is None:
            self._connection = connect(self._words, _SILENT_TIMES * self._timeout)
        return self._connection

    def _recover(self, connection: "psycopg.Connection[Any]", state: str | None) -> None:
        """End a failed transaction; disconnect if that fails, or if the server is read-only."""
        import psycopg
        from psycopg.pq import TransactionStatus

        try:
            if state == "25006":
                self.disconnect()
            elif not connection.closed and (
                connection.info.transaction_status != TransactionStatus.IDLE
            ):
                connection.execute("ROLLBACK")
        except psycopg.Error:
            self.disconnect()


def _words(conninfo: str) -> dict[str, Any]:
    from psycopg import ProgrammingError
    from psycopg.conninfo import conninfo_to_dict

    try:
        words = conninfo_to_dict(conninfo)
    except (ProgrammingError, TypeError):
        words = None  # the message of the error may quote the password
    if words is None:
        raise ConfigError(
            "conninfo is not a connection string; write it as 'host=db1 dbname=shop user=web' or "
            "'postgresql://web@db1/shop', with values that have spaces in single quotes"
        )
    return {"application_name": "batchqueue", **_KEEPALIVES, **words, "client_encoding": "UTF8"}


def _names(argument: str, given: Iterable[str]) -> Columns:
    """Return the names that an argument gives."""
    try:
        names = as_columns(given)
    except TypeError:  # not an iterable
        names = ()
    if not names or not all(isinstance(name, str) and name and "\0" not in name for name in names):
        raise ConfigError(f"{argument} is {given!r}; give names")
    return names


def _is_to_be_retried(state: str | None) -> bool:
    return state is not None and (state.startswith(_AGAIN) or state in _AGAIN_EXACTLY)


def _joined(columns: Columns) -> "sql.Composed":
    from psycopg import sql

    return sql.SQL(", ").join(map(sql.Identifier, columns))


def _folded(rows: list[Sequence[Any]], places: list[int]) -> list[Sequence[Any]]:
    """Keep the last of the rows with equal keys: a statement may not update a row twice.

    Rows with a null in their key are all kept, because none equals another, and those whose key
    cannot be hashed.
    """
    last: dict[Any, Sequence[Any]] = {}
    for number, row in enumerate(rows):
        key: Any = tuple(row[place] for place in places)
        try:
            hash(key)
        except TypeError:
            key = (None,)
        if None in key or not key:
            key = number  # an int equals no tuple
        last.pop(key, None)
        last[key] = row
    return list(last.values())
