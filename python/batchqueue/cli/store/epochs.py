"""Epochs as the commands print them."""

from batchqueue.cli.text import UNKNOWN, count, moment
from batchqueue.outputs import Epoch
from batchqueue.outputs.store import commit_time


def committed(epoch: Epoch) -> str:
    """Return when an epoch was committed, if its summary says so."""
    at_s = commit_time(epoch.summary)
    return UNKNOWN if at_s is None else moment(round(at_s * 1_000))


def rows(epoch: Epoch) -> str:
    """Return the rows of an epoch, if its summary says so."""
    number = epoch.summary.get("rows")
    return count(number if isinstance(number, int) else None)
