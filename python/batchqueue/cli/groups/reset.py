"""`groups reset`: let a group continue elsewhere."""

import argparse
import sys

from batchqueue._words import counted
from batchqueue.cli.command import FAILED, OK, Command
from batchqueue.cli.groups.options import (
    Target,
    add_partition,
    add_target,
    members_of,
    partitions_of,
    target_of,
)
from batchqueue.cli.groups.positions import Position, Positions, wanted_offset
from batchqueue.exceptions import ConfigError
from batchqueue.groups.backend import Administration


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.description = (
        "Let a group without members continue elsewhere. With an offset, the records after it are "
        "read to count them, which takes a while if there are many. Dead letters stay. An offset "
        "of Redis begins with a time, so that the same one suits all partitions."
    )
    add_target(parser)
    add_partition(parser)
    parser.add_argument(
        "--to",
        required=True,
        metavar="earliest|latest|OFFSET",
        help="before the oldest record that is left, after the newest, or after an offset: a "
        "number, or an id of Redis",
    )
    parser.add_argument("--yes", action="store_true", help="do not ask")


def run(arguments: argparse.Namespace) -> int:
    """Reset it."""
    wanted_offset(arguments.to)
    target = target_of(arguments)
    with target.administration() as administration:
        partitions = list(partitions_of(arguments, administration))
        _check_empty(target, administration)
        positions = Positions(target.source, target.group, administration)
        places = positions.of(arguments.to, partitions)
        print(
            f"{target}, {counted(len(places), 'partition')}, to {arguments.to}: {_effect(places)}"
        )
        if not (arguments.yes or _is_confirmed()):
            print("nothing was reset", file=sys.stderr)
            return FAILED
        # A worker that joined since then has its commits refused, and opens the partition again.
        _check_empty(target, administration)
        for place in places:
            administration.reset(place.partition, place.offset, place.done)
    print("reset")
    return OK


def _check_empty(target: Target, administration: Administration) -> None:
    names = sorted(each.member.name for each in members_of(administration).values())
    if names:
        raise ConfigError(
            f"{target} has members: {', '.join(names)}; let them leave before, for instance with "
            "`batchqueue groups drain`"
        )


def _effect(places: list[Position]) -> str:
    again = sum(place.again for place in places)
    skipped = sum(place.skipped for place in places)
    effects = []
    if again:
        effects.append(f"{counted(again, 'record')} will be handled again")
    if skipped:
        effects.append(f"{counted(skipped, 'record')} will be skipped")
    return ", ".join(effects) or "no record is skipped or handled again"


def _is_confirmed() -> bool:
    try:
        return input("Reset? [y/N] ").strip().lower() in ("y", "yes")
    except EOFError:
        print("\nno answer; --yes resets without a question", file=sys.stderr)
        return False


RESET = Command(
    name="reset",
    help="let a group without members continue elsewhere",
    add_arguments=add_arguments,
    run=run,
)
