"""`store backup`: copy a store, whole, while others write to it."""

import argparse

from batchqueue.cli.command import OK, Command
from batchqueue.cli.store.target import FILES_HELP, PARQUET, absolute, kind_of, refuse_server

_BY_POSTGRES = "run `pg_dump --format=custom --schema=SCHEMA --file=COPY DATABASE`"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.description = (
        "Copy a store as of one commit, while others write to it, and check the copy. Of a "
        "directory, each sink is copied as of one commit. Copy the checkpoints of its queries "
        "before the store."
    )
    parser.add_argument("store", metavar="STORE", help=FILES_HELP)
    parser.add_argument("copy", metavar="COPY", help="the file or directory to make")


def run(arguments: argparse.Namespace) -> int:
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


BACKUP = Command(
    name="backup",
    help="copy a store while others write to it",
    add_arguments=add_arguments,
    run=run,
)
