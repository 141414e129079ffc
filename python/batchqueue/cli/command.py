"""`Command`: what the console script needs of a command; the exit codes of all of them."""

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass

OK, FAILED, INVALID_USE, INTERRUPTED, BROKEN_PIPE = 0, 1, 2, 130, 141


@dataclass(frozen=True, kw_only=True)
class Command:
    """A command, which brings its own parser.

    Attributes:
        name: What is typed.
        help: Its line in the list of commands.
        add_arguments: Adds its description and options to a parser.
        run: Runs it with the parsed arguments, and returns the exit code. A `ConfigError` becomes
            a message and the code 2, any other `BatchQueueError` a message and the code 1.
        interrupted: What Ctrl-C prints. Default: empty, nothing.
    """

    name: str
    help: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]
    interrupted: str = ""

    def add_to(self, commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
        """Add its parser to those of other commands."""
        parser = commands.add_parser(self.name, help=self.help, description=self.help)
        self.add_arguments(parser)
        parser.set_defaults(command=self, command_name=parser.prog)


def command_group(name: str, help: str, members: Sequence[Command]) -> Command:
    """Return a command that only has others below it, of which one must be typed.

    Args:
        name: What is typed before them.
        help: Its line in the list of commands.
        members: The others, in the order of the list.
    """

    def add_members(parser: argparse.ArgumentParser) -> None:
        commands = parser.add_subparsers(metavar="command", required=True)
        for member in members:
            member.add_to(commands)

    def never_called(_: argparse.Namespace) -> int:
        return INVALID_USE

    return Command(name=name, help=help, add_arguments=add_members, run=never_called)
