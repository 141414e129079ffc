"""`store check`: what a store has, and what is wrong with it."""

import argparse
import sys

from batchqueue.cli.command import FAILED, OK, Command
from batchqueue.cli.store.target import (
    ICEBERG,
    PARQUET,
    POSTGRES,
    absolute,
    add_store,
    kind_of,
    open_iceberg,
)
from batchqueue.cli.text import UNKNOWN, count, moment, table
from batchqueue.outputs.store import StoreReport


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.description = (
        "Read a whole store, print its sinks, and report what is wrong: damaged or missing files, "
        "a log that belongs to another file, a ledger of mixed states. The exit code is 1 then. "
        "Nothing is changed."
    )
    add_store(parser)


def run(arguments: argparse.Namespace) -> int:
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
        from batchqueue.outputs.postgres.inspection import check_postgres

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


CHECK = Command(
    name="check",
    help="print what a store has, and what is wrong with it",
    add_arguments=add_arguments,
    run=run,
)
