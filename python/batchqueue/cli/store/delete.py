"""`store delete`: delete the metrics of a sink up to a time."""

import argparse
from datetime import UTC, datetime

from batchqueue._words import counted
from batchqueue.cli.command import OK, Command
from batchqueue.cli.store.target import add_sink, add_store, check_sink, open_store


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.description = (
        "Delete the metrics of a sink whose time bucket begins before a time, in one transaction. "
        "Its ledger stays: no epoch is applied again."
    )
    add_store(parser)
    add_sink(parser)
    parser.add_argument(
        "--before",
        type=_moment,
        required=True,
        metavar="TIME",
        help="a day or a time, for instance 2026-01-31 or 2026-01-31T12:00+01:00; UTC by default",
    )


def run(arguments: argparse.Namespace) -> int:
    """Delete them."""
    store = open_store(arguments)
    check_sink(store, arguments)
    deleted = store.delete(before=arguments.before, sink_id=arguments.sink)
    print(f"{counted(deleted, 'row')} of sink {arguments.sink} deleted")
    return OK


def _moment(text: str) -> datetime:
    try:
        found = datetime.fromisoformat(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a time; give for instance 2026-01-31 or 2026-01-31T12:00+01:00"
        ) from error
    return found if found.utcoffset() is not None else found.replace(tzinfo=UTC)


DELETE = Command(
    name="delete",
    help="delete the metrics of a sink up to a time",
    add_arguments=add_arguments,
    run=run,
)
