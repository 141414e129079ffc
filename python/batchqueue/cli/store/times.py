"""Time buckets on the command line and in what is printed."""

import argparse
from datetime import UTC, datetime

from batchqueue.cli.text import moment

TIME_HELP = "a day or a time, for instance 2026-01-31 or 2026-01-31T12:00+01:00; UTC by default"

_YEARS_S = range(-62_135_596_800, 253_402_300_800)
"""The seconds of the years 1 to 9999."""


def time_argument(text: str) -> datetime:
    """Parse a day or a time."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a time; give for instance 2026-01-31 or 2026-01-31T12:00+01:00"
        ) from error
    return found if found.utcoffset() is not None else found.replace(tzinfo=UTC)


def shown(time_bucket: int) -> str:
    """Return a time bucket as a time in UTC, or as it is if no calendar has it."""
    if time_bucket not in _YEARS_S:
        return str(time_bucket)
    return moment(time_bucket * 1_000).replace(".000Z", "Z")
