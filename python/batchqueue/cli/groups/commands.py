"""The commands of `batchqueue groups`."""

import argparse

from batchqueue.cli.command import INVALID_USE, Command
from batchqueue.cli.groups.drain import DRAIN
from batchqueue.cli.groups.lag import LAG
from batchqueue.cli.groups.log import LOG
from batchqueue.cli.groups.redrive import REDRIVE
from batchqueue.cli.groups.reset import RESET
from batchqueue.cli.groups.resize import RESIZE
from batchqueue.cli.groups.run import RUN
from batchqueue.cli.groups.top import TOP
from batchqueue.cli.groups.trim import TRIM

GROUP_COMMANDS = (RUN, TOP, LOG, LAG, DRAIN, RESET, REDRIVE, TRIM, RESIZE)


def add_commands(parser: argparse.ArgumentParser) -> None:
    """Add the commands to the parser of `groups`."""
    commands = parser.add_subparsers(metavar="command", required=True)
    for command in GROUP_COMMANDS:
        command.add_to(commands)


def _run(arguments: argparse.Namespace) -> int:
    """Never called: a command is required."""
    del arguments
    return INVALID_USE


GROUPS = Command(
    name="groups",
    help="run the workers of a group, and see what they do",
    add_arguments=add_commands,
    run=_run,
)
