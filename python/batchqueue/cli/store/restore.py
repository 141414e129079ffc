"""`store restore`: put a copy in the place of a store."""

import argparse

from batchqueue.cli.command import OK, Command
from batchqueue.cli.store.target import PARQUET, absolute, kind_of, refuse_server
from batchqueue.exceptions import ConfigError

_BY_POSTGRES = "run `pg_restore --clean --if-exists --dbname=DATABASE COPY`"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.description = (
        "Put a copy in the place of a store, and what is there aside, with the log that a killed "
        "writer may have left. Stop the programs that write to the store before, or what they "
        "write later adds to the copy. A query whose checkpoint is newer than the copy is refused "
        "then: restore its checkpoint as well."
    )
    parser.add_argument("copy", metavar="COPY", help="the file or directory of the copy")
    parser.add_argument("store", metavar="STORE", help="the file or directory of the store")


def run(arguments: argparse.Namespace) -> int:
    """Restore it."""
    for given in (arguments.copy, arguments.store):
        refuse_server(given, _BY_POSTGRES)
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


RESTORE = Command(
    name="restore",
    help="put a copy in the place of a store",
    add_arguments=add_arguments,
    run=run,
)
