"""The commands `batchqueue store ...`: what a store has, copies of it, and whether it is whole."""

import argparse
import json
import math
import sys
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from batchqueue.aggregation import Metrics
from batchqueue.aggregation.metrics import Row
from batchqueue.base.checks import local_path
from batchqueue.base.words import counted
from batchqueue.cli.command import (
    FAILED,
    OK,
    UNKNOWN,
    Command,
    command_group,
    count,
    moment,
    printable,
    table,
    whole_number,
)
from batchqueue.exceptions import ConfigError
from batchqueue.outputs import Epoch
from batchqueue.outputs.layout import table_layout
from batchqueue.outputs.reading import Selection, StoredMetric
from batchqueue.outputs.store import StoreReport, commit_time

# `store backup`: copies a whole store, while others write to it.


_BY_POSTGRES = "run `pg_dump --format=custom --schema=SCHEMA --file=COPY DATABASE`"


def add_backup_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.description = (
        "Copy a store as of one commit, while others write to it, and check the copy. Of a "
        "directory, each sink is copied as of one commit. Copy the checkpoints of its queries "
        "before the store."
    )
    parser.add_argument("store", metavar="STORE", help=FILES_HELP)
    parser.add_argument("copy", metavar="COPY", help="the file or directory to make")


def run_backup(arguments: argparse.Namespace) -> int:
    """Copy it."""
    refuse_server(arguments.store, _BY_POSTGRES)
    store, copy = absolute(arguments.store), absolute(arguments.copy)
    if kind_of(arguments.store) == PARQUET:
        from batchqueue.outputs.parquet.copies import backup_parquet

        backup_parquet(store, copy)
    else:
        from batchqueue.outputs.sqlite_store import backup_sqlite

        backup_sqlite(store, copy)
    print(f"{arguments.store} is copied to {arguments.copy}")
    return OK


# `store check`: the contents of a store, and what is wrong with it.


def add_check_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.description = (
        "Read a whole store, print its sinks, and report what is wrong: damaged or missing files, "
        "a log that belongs to another file, a ledger of mixed states. The exit code is 1 then. "
        "Nothing is changed."
    )
    add_store(parser)


def run_check(arguments: argparse.Namespace) -> int:
    """Check it."""
    report = _report(arguments)
    print(_sinks(report))
    for problem in report.problems:
        print(f"wrong: {problem}", file=sys.stderr)
    if not report.problems:
        print("nothing is wrong")
    return FAILED if report.problems else OK


def _report(arguments: argparse.Namespace) -> StoreReport:
    kind = kind_of(arguments.store)
    if kind == POSTGRES:
        from batchqueue.outputs.postgres import PostgresStore
        from batchqueue.outputs.postgres.store import check_postgres

        return check_postgres(PostgresStore(arguments.store, schema=arguments.schema))
    if kind == ICEBERG:
        from batchqueue.outputs.iceberg.store import check_iceberg

        return check_iceberg(open_iceberg(arguments))
    if kind == PARQUET:
        from batchqueue.outputs.parquet.copies import check_parquet

        return check_parquet(absolute(arguments.store))
    from batchqueue.outputs.sqlite_store import check_sqlite

    return check_sqlite(absolute(arguments.store))


def _sinks(report: StoreReport) -> str:
    rows = [
        (
            name,
            count(sink.queries),
            count(sink.rows),
            UNKNOWN if sink.last_commit_s is None else moment(round(sink.last_commit_s * 1_000)),
        )
        for name, sink in sorted(report.sinks.items())
    ]
    return table("<>><", ("SINK", "QUERIES", "ROWS", "LAST COMMIT"), rows)


# `store delete`: deletes the metrics of a sink up to a time.


def add_delete_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.description = (
        "Delete the metrics of a sink whose time bucket begins before a time, and not before "
        "another if that is given, in one transaction. Its ledger stays: no epoch is applied again."
    )
    add_store(parser)
    add_sink(parser)
    parser.add_argument(
        "--before", type=time_argument, required=True, metavar="TIME", help=TIME_HELP
    )
    parser.add_argument(
        "--since", type=time_argument, metavar="TIME", help="likewise, included (default: all)"
    )


def run_delete(arguments: argparse.Namespace) -> int:
    """Delete them."""
    store = open_store_of_sink(arguments)
    deleted = store.delete(before=arguments.before, since=arguments.since, sink_id=arguments.sink)
    print(f"{counted(deleted, 'row')} of sink {arguments.sink} deleted")
    return OK


# `store ledger`: the newest epochs of a sink.


def add_ledger_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.description = (
        "Print the newest epochs of a sink, the oldest of them first: query, epoch, when it was "
        "committed (UTC), and its rows. Nothing is changed."
    )
    add_store(parser)
    add_sink(parser)
    parser.add_argument(
        "--newest", type=whole_number(1), default=20, metavar="N", help="so many epochs (20)"
    )
    parser.add_argument(
        "--json", action="store_true", help="print each with its summary, one JSON object a line"
    )


def run_ledger(arguments: argparse.Namespace) -> int:
    """Print them."""
    store = open_store_of_sink(arguments)
    epochs = store.summaries(arguments.sink, arguments.newest)
    if arguments.json:
        for epoch in epochs:
            print(json.dumps(epoch._asdict()))
    else:
        print(table("<><>", ("QUERY", "EPOCH", "COMMITTED", "ROWS"), map(_cells, epochs)))
    return OK


def _cells(epoch: Epoch) -> tuple[str, ...]:
    return (epoch.query_id, str(epoch.batch_id), committed(epoch), rows(epoch))


# `store ls`: the sinks of a store.


def add_ls_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.description = (
        "Print the sinks of a store: how many queries have a mark, and the newest epoch. Nothing "
        "is changed."
    )
    add_store(parser)


def run_ls(arguments: argparse.Namespace) -> int:
    """Print them."""
    store = open_store(arguments)
    rows = []
    for sink_id in store.sinks():
        with store.ledger(sink_id) as ledger:
            queries = 0 if ledger is None else len(ledger.known_queries())
            newest = [] if ledger is None else ledger.summaries(1)
        last = (UNKNOWN,) * 3 if not newest else _cells(newest[0])[:3]
        rows.append((printable(sink_id), count(queries), *last))
    print(table("<><><", ("SINK", "QUERIES", "LAST QUERY", "EPOCH", "COMMITTED"), rows))
    return OK


# `store restore`: replaces a store with a copy.


_RESTORE_BY_POSTGRES = "run `pg_restore --clean --if-exists --dbname=DATABASE COPY`"


def add_restore_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.description = (
        "Put a copy in the place of a store, and what is there aside, with the log that a killed "
        "writer may have left. Stop the programs that write to the store before, or what they "
        "write later adds to the copy. A query whose checkpoint is newer than the copy is refused "
        "then: restore its checkpoint as well."
    )
    parser.add_argument("copy", metavar="COPY", help="the file or directory of the copy")
    parser.add_argument("store", metavar="STORE", help="the file or directory of the store")


def run_restore(arguments: argparse.Namespace) -> int:
    """Restore it."""
    for given in (arguments.copy, arguments.store):
        refuse_server(given, _RESTORE_BY_POSTGRES)
    copy, store = absolute(arguments.copy), absolute(arguments.store)
    kind = kind_of(arguments.copy)
    if store.exists() and kind_of(arguments.store) != kind:
        file, directory = "the file of a SqliteStore", "the directory of a ParquetStore"
        given, there = (directory, file) if kind == PARQUET else (file, directory)
        raise ConfigError(
            f"{arguments.copy} would be {given}, and {arguments.store} is {there}; give a copy of "
            "this one, or move it away before"
        )
    if kind == PARQUET:
        from batchqueue.outputs.parquet.copies import restore_parquet

        aside = restore_parquet(copy, store)
    else:
        from batchqueue.outputs.sqlite_store import restore_sqlite

        aside = restore_sqlite(copy, store)
    print(f"{arguments.store} is what {arguments.copy} was")
    for path in aside:
        print(f"put aside: {path}")
    return OK


# `store show`: the metrics of a sink, or the rows of one of them.


_ROWS = 50


def add_show_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.description = (
        "Print the metrics of a sink: table, number of rows, first and last time bucket (UTC). Or "
        "print the rows of one of them, ordered by entity and time bucket. Nothing is changed."
    )
    add_store(parser)
    add_sink(parser)
    parser.add_argument("metric", metavar="METRIC", nargs="?", help="a metric; default: list them")
    parser.add_argument("--table", metavar="NAME", help="where two tables have the metric")
    parser.add_argument(
        "--entity", action="append", metavar="NAME", help="only this entity; may be repeated"
    )
    parser.add_argument("--since", type=time_argument, metavar="TIME", help=TIME_HELP)
    parser.add_argument("--before", type=time_argument, metavar="TIME", help="likewise, excluded")
    parser.add_argument(
        "--rows", type=whole_number(1), metavar="N", help=f"at most so many ({_ROWS}; --json: all)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object a line")


def run_show(arguments: argparse.Namespace) -> int:
    """Print them."""
    store = open_store_of_sink(arguments)
    stored = store.metrics(arguments.sink)
    if arguments.metric is None:
        _print_metrics(arguments, stored)
        return OK
    metric_type = _chosen(arguments, stored)
    selection = Selection.checked(
        metric_type,
        arguments.sink,
        entities=arguments.entity,
        since=arguments.since,
        before=arguments.before,
    )
    layout = table_layout(metric_type)
    names = [*layout.key_columns[1:], *dict(layout.columns)]
    _print_rows(arguments, names, store.rows(selection))
    return OK


def _chosen(arguments: argparse.Namespace, stored: Sequence[StoredMetric]) -> type[Metrics]:
    found = [metric.metric_type for metric in stored if metric.metric_type.name == arguments.metric]
    if arguments.table is not None:
        found = [metric_type for metric_type in found if metric_type.table == arguments.table]
    if len(found) == 1:
        return found[0]
    if found:
        tables = ", ".join(metric_type.table for metric_type in found)
        raise ConfigError(f"metric {arguments.metric!r} is in {tables}: choose one with --table")
    names = ", ".join(dict.fromkeys(metric.metric_type.name for metric in stored))
    where = "" if arguments.table is None else f" in table {arguments.table}"
    raise ConfigError(
        f"sink {arguments.sink} has no metric {arguments.metric!r}{where}; it has {names or 'none'}"
    )


def _print_metrics(arguments: argparse.Namespace, stored: Iterable[StoredMetric]) -> None:
    if arguments.json:
        for metric_type, *numbers in stored:
            named = {"metric": metric_type.name, "table": metric_type.table}
            print(json.dumps(named | dict(zip(("rows", "first", "last"), numbers, strict=True))))
        return
    rows = (
        (
            printable(found.metric_type.name),
            found.metric_type.table,
            count(found.rows),
            shown(found.first),
            shown(found.last),
        )
        for found in stored
    )
    print(table("<<><<", ("METRIC", "TABLE", "ROWS", "FIRST", "LAST"), rows))


def _print_rows(arguments: argparse.Namespace, names: Sequence[str], rows: Iterator[Row]) -> None:
    limit = arguments.rows if arguments.rows or arguments.json else _ROWS
    if arguments.json:
        for row in islice(rows, limit):
            print(json.dumps(dict(zip(names, map(_in_json, row), strict=True))))
    else:
        found = list(islice(rows, limit))
        cells = (
            (_cell(entity), shown(bucket), *map(_cell, values)) for entity, bucket, *values in found
        )
        header = [name.upper() for name in names]
        print(table("<<" + ">" * (len(names) - 2), header, cells))
    if next(rows, None) is not None:
        print(f"there are more rows than the {limit} shown: use --rows", file=sys.stderr)


def _cell(value: object) -> str:
    return "" if value is None else printable(str(value))


def _in_json(value: object) -> object:
    """Return a value as JSON represents it: without NaN, infinity, decimals and dates."""
    if isinstance(value, Decimal | date) or (isinstance(value, float) and not math.isfinite(value)):
        return str(value)
    return value


# The commands of `batchqueue store`.


_COMMANDS = (
    ("ls", "list the sinks of a store", add_ls_arguments, run_ls),
    ("show", "print the metrics of a sink, or the rows of one", add_show_arguments, run_show),
    ("ledger", "print the newest epochs of a sink", add_ledger_arguments, run_ledger),
    ("delete", "delete the metrics of a sink up to a time", add_delete_arguments, run_delete),
    ("backup", "copy a store while others write to it", add_backup_arguments, run_backup),
    ("restore", "put a copy in the place of a store", add_restore_arguments, run_restore),
    ("check", "print what a store has, and what is wrong with it", add_check_arguments, run_check),
)

STORE = command_group(
    "store",
    "show what a store of metrics has, delete old ones, copy it, put a copy back, check it",
    [
        Command(name=name, help=help, add_arguments=add_arguments, run=run)
        for name, help, add_arguments, run in _COMMANDS
    ],
)


# Epochs in the format of the commands.


def committed(epoch: Epoch) -> str:
    """Return when an epoch was committed, if its summary has the time."""
    at_s = commit_time(epoch.summary)
    return UNKNOWN if at_s is None else moment(round(at_s * 1_000))


def rows(epoch: Epoch) -> str:
    """Return the rows of an epoch, if its summary has the number."""
    number = epoch.summary.get("rows")
    return count(number if isinstance(number, int) else None)


# The store of a command: a file, a directory, or a database server.


if TYPE_CHECKING:
    from batchqueue.outputs import IcebergStore, ParquetStore, PostgresStore, SqliteStore

    Store = SqliteStore | ParquetStore | PostgresStore | IcebergStore

SQLITE, PARQUET, POSTGRES, ICEBERG = "sqlite", "parquet", "postgres", "iceberg"

_ICEBERG_PREFIX = "iceberg://"

_ELSEWHERE = "copy to or from a local file, and move the copy with the tools of that place"

FILES_HELP = "the file of a SqliteStore or the directory of a ParquetStore"
STORE_HELP = (
    "the file of a SqliteStore; the directory of a ParquetStore; the connection string of a "
    "PostgresStore, postgresql://USER@HOST/DATABASE, whose password is better in ~/.pgpass; or "
    "iceberg://CATALOG/NAMESPACE for an IcebergStore, with a catalog of pyiceberg's configuration"
)


def add_store(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that name a store, including one in a database."""
    parser.add_argument("store", metavar="STORE", help=STORE_HELP)
    parser.add_argument(
        "--schema", default="public", metavar="NAME", help="of a PostgresStore (default: public)"
    )


def add_sink(parser: argparse.ArgumentParser) -> None:
    """Add the argument that names a sink."""
    parser.add_argument("sink", metavar="SINK", help="a sink of `store ls`")


def open_store_of_sink(arguments: argparse.Namespace) -> "Store":
    """Return the store of the arguments, which must have their sink.

    Raises:
        ConfigError: As for `open_store`; or the store does not have the sink.
        MissingPackageError: As for `open_store`.
        StoreError: The store cannot be read.
    """
    store = open_store(arguments)
    known = store.sinks()
    if arguments.sink not in known:
        raise ConfigError(
            f"{arguments.store} has no sink {arguments.sink!r}; it has {', '.join(known) or 'none'}"
        )
    return store


def open_store(arguments: argparse.Namespace) -> "Store":
    """Return the store of the arguments.

    Raises:
        ConfigError: There is no such file or directory.
        MissingPackageError: A package for the kind of store is not installed.
    """
    kind = kind_of(arguments.store)
    if kind == POSTGRES:
        from batchqueue.outputs import PostgresStore

        return PostgresStore(arguments.store, schema=arguments.schema)
    if kind == ICEBERG:
        return open_iceberg(arguments)
    if kind == PARQUET:
        from batchqueue.outputs import ParquetStore

        return ParquetStore(absolute(arguments.store))
    from batchqueue.outputs import SqliteStore

    return SqliteStore(absolute(arguments.store))


def open_iceberg(arguments: argparse.Namespace) -> "IcebergStore":
    """Return the store in the Iceberg catalog of the arguments.

    Raises:
        ConfigError: The arguments name no namespace.
        MissingPackageError: pyiceberg is not installed.
    """
    from batchqueue.outputs import IcebergStore

    catalog, _, namespace = arguments.store.removeprefix(_ICEBERG_PREFIX).partition("/")
    return IcebergStore(namespace, catalog=catalog or None, partition_s=None)


def kind_of(store: str) -> str:
    """Return the kind of the store that an argument names.

    Raises:
        ConfigError: There is no such file or directory.
    """
    path = Path(store).expanduser()
    if store.startswith(_ICEBERG_PREFIX):
        return ICEBERG
    if path.is_dir():
        return PARQUET
    if path.exists():
        return SQLITE
    if is_server(store):
        return POSTGRES
    raise ConfigError(
        f"{store} does not exist; give the file of a SqliteStore, the directory of a "
        "ParquetStore, postgresql://USER@HOST/DATABASE, or iceberg://CATALOG/NAMESPACE"
    )


def is_server(store: str) -> bool:
    """Return whether an argument is the connection string of a PostgreSQL server."""
    return store.startswith(("postgresql://", "postgres://")) or "=" in store


def refuse_server(store: str, remedy: str) -> None:
    """Refuse stores with their own copies: PostgreSQL servers, and the snapshots of Iceberg tables.

    Raises:
        ConfigError: The store is of such a kind. The message omits it: it may contain a password.
    """
    if store.startswith(_ICEBERG_PREFIX):
        raise ConfigError(
            "an Iceberg table keeps its earlier states as snapshots, with the ledger of each: roll "
            "it back to one, or copy the warehouse and the catalog together"
        )
    if is_server(store) and not Path(store).exists():
        raise ConfigError(f"a PostgreSQL server copies its tables itself: {remedy}")


def absolute(path: str) -> Path:
    """Return the file or directory that an argument names, following links.

    Raises:
        ConfigError: The argument is not a path on this machine.
    """
    return local_path("the argument", path, _ELSEWHERE).resolve()


# Time buckets on the command line and in the output.


TIME_HELP = "a day or a time, for instance 2026-01-31 or 2026-01-31T12:00+01:00; UTC by default"

_YEARS_S = range(-62_135_596_800, 253_402_300_800)
"""The range of seconds in years 1 to 9999."""


def time_argument(text: str) -> datetime:
    """Parse a day or a time."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a time; give for instance 2026-01-31 or 2026-01-31T12:00+01:00"
        ) from error
    return found if found.utcoffset() is not None else found.replace(tzinfo=UTC)


def shown(time_bucket: int) -> str:
    """Return a time bucket as a UTC time, or unchanged if no calendar has it."""
    if time_bucket not in _YEARS_S:
        return str(time_bucket)
    return moment(time_bucket * 1_000).replace(".000Z", "Z")
