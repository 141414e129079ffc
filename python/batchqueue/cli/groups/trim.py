"""`groups trim`: remove the records that all groups of a stream have done."""

import argparse

from batchqueue._words import counted
from batchqueue.cli.command import OK, Command
from batchqueue.cli.groups.options import add_target, target_of


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.description = (
        "Remove the records that all groups of the stream have done. Nothing is removed of a "
        "partition that one of them has not opened yet."
    )
    add_target(parser)


def run(arguments: argparse.Namespace) -> int:
    """Remove them."""
    target = target_of(arguments)
    with target.administration() as administration:
        removed = administration.trim()
    print(f"{counted(removed, 'record')} of {target.source.stream} removed")
    return OK


TRIM = Command(
    name="trim",
    help="remove the records that all groups have done",
    add_arguments=add_arguments,
    run=run,
)
