"""`Command`: what the console script needs of a command; the exit codes of all of them."""

import argparse
import math
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TextIO

OK, FAILED, INVALID_USE, INTERRUPTED, BROKEN_PIPE = 0, 1, 2, 130, 141


@dataclass(frozen=True, kw_only=True)
class Command:
    """A command with its own parser.

    Attributes:
        name: The word typed for it.
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


def write_line(line: str, stream: TextIO | None = None) -> None:
    """Write a line in one call, so that lines of several processes never mix.

    With PYTHONUNBUFFERED, as is usual in containers, `print` writes the end of a line separately.

    Args:
        line: The line, without its end.
        stream: Where to write it. Default: None, the standard output.
    """
    output = sys.stdout if stream is None else stream
    if output is not None:  # Python starts without it where the standard output is closed
        output.write(f"{line}\n")
        output.flush()


def command_group(name: str, help: str, members: Sequence[Command]) -> Command:
    """Return a command that only groups other commands, one of which must be typed.

    Args:
        name: The word typed before the others.
        help: Its line in the list of commands.
        members: The commands of the group, in listed order.
    """

    def add_members(parser: argparse.ArgumentParser) -> None:
        commands = parser.add_subparsers(metavar="command", required=True)
        for member in members:
            member.add_to(commands)

    # Never run: the parser requires a member.
    return Command(name=name, help=help, add_arguments=add_members, run=lambda _: INVALID_USE)


# Numbers on the command line: parsers for `argparse` that state the limits.


def whole_number(lowest: int, highest: int | None = None) -> Callable[[str], int]:
    """Return a parser that takes only whole numbers within the limits."""
    limits = f"from {lowest} to {highest}" if highest else f"of at least {lowest}"

    def parse(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            number = lowest - 1
        if number < lowest or (highest and number > highest):
            raise argparse.ArgumentTypeError(f"{text!r} given: use a whole number {limits}")
        return number

    return parse


def seconds(text: str) -> float:
    """Parse a number of seconds, 0 or more."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not (math.isfinite(number) and number >= 0):
        raise argparse.ArgumentTypeError(
            f"{text!r} given: use a number of seconds, for instance 10"
        )
    return number


# Tables and numbers in the format of the commands.


UNKNOWN = "?"


def table(align: str, header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return aligned lines.

    >>> print(table("<>", ("NAME", "N"), [("a", "10")]))
    NAME   N
    a     10

    Args:
        align: For each column, `<` for left or `>` for right.
        header: The names of the columns.
        rows: The cells, as many per row as the header has.
    """
    lines = [tuple(header), *map(tuple, rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(
            f"{cell:{side}{width}}" for cell, side, width in zip(line, align, widths, strict=True)
        ).rstrip()
        for line in lines
    )


def printable(text: str) -> str:
    r"""Return a text without characters that a terminal would interpret.

    >>> print(printable("red \x1b[31m"))
    red \x1b[31m
    """
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode() for char in text
    )


def count(number: int | None) -> str:
    """Return a number with separators between thousands; None is unknown."""
    return UNKNOWN if number is None else f"{number:,}"


def duration(seconds: float | None) -> str:
    """Return a time with its unit; None is unknown."""
    if seconds is None:
        return UNKNOWN
    if math.isinf(seconds):
        return "never"
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.1f} s"


def moment(at_ms: int) -> str:
    """Return a time in UTC, with milliseconds."""
    at = datetime.fromtimestamp(at_ms / 1_000, UTC)
    return at.isoformat(sep=" ", timespec="milliseconds").replace("+00:00", "Z")


def ranges(numbers: Iterable[int]) -> str:
    """Return numbers with consecutive ones joined into ranges.

    >>> ranges([7, 0, 1, 2])
    '0-2,7'
    """
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in runs)
