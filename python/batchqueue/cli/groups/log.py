"""`groups log`: what happened in a group."""

import argparse
import time

from batchqueue.cli.command import OK, Command
from batchqueue.cli.groups.options import add_target, target_of
from batchqueue.cli.text import moment, ranges
from batchqueue.groups.messages import Event

_REFRESH_S = 0.5


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.description = (
        "Print the last events of a group, about a thousand, the oldest first: time (UTC), event, "
        "worker, and the partitions that moved or were given up."
    )
    add_target(parser)
    parser.add_argument(
        "--follow", action="store_true", help="print those that come later as well, until Ctrl-C"
    )


def run(arguments: argparse.Namespace) -> int:
    """Print them."""
    target = target_of(arguments)
    seen = 0
    with target.administration() as administration:
        while True:
            for event in administration.history(seen):
                print(line(event), flush=True)
                seen = event.version
            if not arguments.follow:
                return OK
            time.sleep(_REFRESH_S)


def line(event: Event) -> str:
    """Return an event as text."""
    worker = event.name or event.session or "-"
    return (
        f"{moment(event.at_ms)}  {event.kind.value:<8}  {worker}  {ranges(event.partitions)}"
    ).rstrip()


LOG = Command(
    name="log",
    help="print who joined, left or died, and which partitions moved",
    add_arguments=add_arguments,
    run=run,
)
