"""The commands of `batchqueue store`."""

import argparse

from batchqueue.cli.command import INVALID_USE, Command
from batchqueue.cli.store.backup import BACKUP
from batchqueue.cli.store.check import CHECK
from batchqueue.cli.store.restore import RESTORE

STORE_COMMANDS = (BACKUP, RESTORE, CHECK)


def add_commands(parser: argparse.ArgumentParser) -> None:
    """Add the commands to the parser of `store`."""
    commands = parser.add_subparsers(metavar="command", required=True)
    for command in STORE_COMMANDS:
        command.add_to(commands)


def _run(arguments: argparse.Namespace) -> int:
    """Never called: a command is required."""
    del arguments
    return INVALID_USE


STORE = Command(
    name="store",
    help="copy a store of metrics, put a copy back, and check one",
    add_arguments=add_commands,
    run=_run,
)
