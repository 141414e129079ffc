"""`groups redrive`: send dead letters back."""

import argparse
import sys

from batchqueue._words import counted
from batchqueue.cli.command import FAILED, OK, Command
from batchqueue.cli.groups.options import add_partition, add_target, partitions_of, target_of
from batchqueue.cli.numbers import whole_number
from batchqueue.groups.backend import Administration
from batchqueue.groups.messages import Entry
from batchqueue.groups.worker.routes import PREFIX

_BLOCK = 500
"""Letters that are sent back with one call of the server."""

_REFUSALS = 5
"""Calls in a row that send nothing, because the letters are others by then, before it ends."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.description = (
        "Send dead letters back to their partitions as new records, the oldest first, without the "
        "headers dead-*. Those that fail again while it runs stay in the dead letters."
    )
    add_target(parser)
    add_partition(parser)
    parser.add_argument(
        "--limit", type=whole_number(1), metavar="N", help="at most N of them (default: all)"
    )


def run(arguments: argparse.Namespace) -> int:
    """Send them back."""
    target = target_of(arguments)
    sent = wanted = 0
    with target.administration() as administration:
        partitions = partitions_of(arguments, administration)
        infos = administration.infos(partitions)
        try:
            for partition, info in zip(partitions, infos, strict=True):
                # No more than there are now: what fails again would come round without an end.
                left = info.dead
                if arguments.limit is not None:
                    left = min(left, arguments.limit - wanted)
                wanted += left
                refused = 0
                while left > 0 and refused < _REFUSALS:
                    returned = _send_back(administration, partition, min(left, _BLOCK))
                    if returned is None:
                        break
                    refused = 0 if returned else refused + 1
                    sent, left = sent + returned, left - returned
        finally:
            print(f"{counted(sent, 'dead letter')} of {target} sent back")
    if sent < wanted:
        print(
            f"{counted(wanted - sent, 'dead letter')} less than there were: another redrive or a "
            "reset is under way; run it again",
            file=sys.stderr,
        )
        return FAILED
    return OK


def _send_back(administration: Administration, partition: int, limit: int) -> int | None:
    """Return how many were sent, None if there are none."""
    letters = administration.dead_letters(partition, limit)
    if not letters:
        return None
    return administration.send_back(partition, [_plain(letter) for letter in letters])


def _plain(letter: Entry) -> Entry:
    kept = tuple(pair for pair in letter.headers if not pair[0].startswith(PREFIX))
    return letter._replace(headers=kept)


REDRIVE = Command(
    name="redrive",
    help="send dead letters back as new records",
    add_arguments=add_arguments,
    run=run,
)
