"""Tables and numbers as the commands print them."""

import math
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

UNKNOWN = "?"


def table(align: str, header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return aligned lines.

    >>> print(table("<>", ("NAME", "N"), [("a", "10")]))
    NAME   N
    a     10

    Args:
        align: For each column, `<` for left or `>` for right.
        header: The names of the columns.
        rows: The cells, as many as the header has.
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
    r"""Return a text without characters that a terminal would act on.

    >>> print(printable("red \x1b[31m"))
    red \x1b[31m
    """
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode() for char in text
    )


def count(number: int | None) -> str:
    """Return a number with thousands separated; None is unknown."""
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
    """Return numbers with neighbours joined.

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
