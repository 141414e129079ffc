"""`store delete`: delete the metrics of a sink up to a time."""

import argparse

from batchqueue._words import counted
from batchqueue.cli.command import OK, Command
from batchqueue.cli.store.target import add_sink, add_store, check_sink, open_store
from batchqueue.cli.store.times import TIME_HELP, time_argument


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.description = (
        "Delete the metrics of a sink whose time bucket begins before a time, and not before "
        "another if that is given, in one transaction. Its ledger stays: no epoch is applied again."
    )
    add_store(parser)
    add_sink(parser)
    parser.add_argument(
        "--before",
        type=time_argument,
        required=True,
        metavar="TIME",
        help=TIME_HELP,
    )
    parser.add_argument(
        "--since", type=time_argument, metavar="TIME", help="likewise, included (default: all)"
    )


def run(arguments: argparse.Namespace) -> int:
    """Delete them."""
    store = open_store(arguments)
    check_sink(store, arguments)
    deleted = store.delete(before=arguments.before, since=arguments.since, sink_id=arguments.sink)
    print(f"{counted(deleted, 'row')} of sink {arguments.sink} deleted")
    return OK


DELETE = Command(
    name="delete",
    help="delete the metrics of a sink up to a time",
    add_arguments=add_arguments,
    run=run,
)
