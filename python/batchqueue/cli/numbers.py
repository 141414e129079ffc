"""Numbers on the command line: parsers for `argparse` that name the limits."""

import argparse
import math
from collections.abc import Callable


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
