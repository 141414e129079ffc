"""`groups resize`: raise the number of partitions of a stream."""

import argparse
import sys
from collections.abc import Sequence

from batchqueue._words import counted
from batchqueue.cli.command import FAILED, OK, Command
from batchqueue.cli.groups.options import Target, add_target, members_of, target_of
from batchqueue.cli.groups.waiting import wait_until
from batchqueue.cli.numbers import seconds, whole_number
from batchqueue.cli.text import ranges
from batchqueue.exceptions import ConfigError
from batchqueue.groups.backend import Administration
from batchqueue.groups.record import partition_count

EXPLANATION = (
    "From now on, new records of a key may go to another partition: those of producers that are "
    "made after the resize. The order per key holds again when the old partitions are drained."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.description = (
        f"Raise the number of partitions of a stream. {EXPLANATION} To keep the order per key "
        "throughout: stop the producers, run this with --wait for each group of the stream, and "
        "start them again."
    )
    add_target(parser)
    parser.add_argument(
        "--partitions",
        type=whole_number(1),
        metavar="N",
        required=True,
        help="the number from now on; it can only be raised",
    )
    parser.add_argument(
        "--wait",
        action="store_true",
        help="wait until the group has done what the old partitions hold after the resize",
    )
    parser.add_argument(
        "--timeout",
        type=seconds,
        metavar="S",
        help="with --wait, fail after S seconds (default: no limit); the resize stays",
    )


def run(arguments: argparse.Namespace) -> int:
    """Raise the number."""
    target, wanted = target_of(arguments), partition_count(arguments.partitions)
    stream = target.source.stream
    with target.administration() as administration:
        before = administration.partitions()
        if wanted < before:
            raise ConfigError(
                f'stream "{stream}" has '
                f"{counted(before, 'partition')}, --partitions is {wanted}: the number "
                "can only be raised"
            )
        if wanted == before:
            print(f"{stream} has {counted(before, 'partition')} already")
            old: Sequence[int] = range(before)
        else:
            now = administration.resize(wanted)
            print(f"{stream} has {counted(now, 'partition')}, {before} before. {EXPLANATION}")
            print(
                f"Programs that give partitions={before} must give {now}, or leave it out.",
                flush=True,
            )
            old = range(before)
        return _drained(arguments, target, administration, old) if arguments.wait else OK


def _drained(
    arguments: argparse.Namespace,
    target: Target,
    administration: Administration,
    partitions: Sequence[int],
) -> int:
    """Wait until what partitions hold now is done: producers that run may add more to them."""
    ends = {
        partition: info.end
        for partition, info in zip(partitions, administration.infos(partitions), strict=True)
    }
    if not members_of(administration):
        print(f"{target} has no members: start a worker", file=sys.stderr)

    def undone() -> list[int]:
        infos = administration.infos(list(ends))
        return [
            partition
            for (partition, end), info in zip(ends.items(), infos, strict=True)
            # The last record may have been deleted: then nothing is left before the end is reached.
            if info.offset < end and info.lag != 0
        ]

    print(f"waiting until {target} has done the old partitions", flush=True)
    if not wait_until(lambda: not undone(), arguments.timeout):
        print(
            f"not done after {arguments.timeout:g} s: partition {ranges(undone())}", file=sys.stderr
        )
        return FAILED
    print("the old partitions are drained")
    return OK


RESIZE = Command(
    name="resize",
    help="raise the number of partitions",
    add_arguments=add_arguments,
    run=run,
)
