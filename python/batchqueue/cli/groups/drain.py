"""`groups drain`: let workers leave."""

import argparse
import sys

from batchqueue.cli.command import FAILED, OK, Command
from batchqueue.cli.groups.options import add_target, members_of, target_of
from batchqueue.cli.groups.waiting import wait_until
from batchqueue.cli.numbers import seconds


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.description = (
        "Let workers leave: they finish what is in hand, commit, and hand over to the others. The "
        "command returns when they have left."
    )
    add_target(parser)
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--name", help="the worker of this name")
    which.add_argument("--host", help="all workers of this host")
    parser.add_argument("--no-wait", action="store_true", help="return immediately")
    parser.add_argument(
        "--timeout", type=seconds, metavar="S", help="fail after S seconds (default: no limit)"
    )


def run(arguments: argparse.Namespace) -> int:
    """Drain them."""
    target = target_of(arguments)
    with target.administration() as administration:
        members = members_of(administration)
        names = {session: each.member.name for session, each in members.items()}
        chosen = [
            session
            for session, each in members.items()
            if arguments.name in (None, each.member.name)
            and arguments.host in (None, each.member.host)
        ]
        if not chosen:
            _print_missing(arguments, [each.member.host for each in members.values()], names)
            return FAILED
        leaving = [session for session in chosen if administration.drain(session)]
        for session in leaving:
            print(f"{names[session]} is leaving", flush=True)
        if arguments.no_wait:
            return OK

        def have_left() -> bool:
            return not set(leaving) & members_of(administration).keys()

        if wait_until(have_left, arguments.timeout):
            for session in chosen:
                print(f"{names[session]} has left")
            return OK
        there = sorted(names[each] for each in set(leaving) & members_of(administration).keys())
    print(
        f"still there after {arguments.timeout:g} s: {', '.join(there)}; they leave when their "
        "handlers return",
        file=sys.stderr,
    )
    return FAILED


def _print_missing(arguments: argparse.Namespace, hosts: list[str], names: dict[str, str]) -> None:
    if arguments.name is not None:
        wanted, there = f"named {arguments.name!r}", sorted(names.values())
    else:
        wanted, there = f"on host {arguments.host!r}", sorted(set(hosts))
    known = f"there are: {', '.join(there)}" if there else "the group has no members"
    print(f"no worker {wanted}; {known}", file=sys.stderr)


DRAIN = Command(
    name="drain",
    help="let the workers of a name or a host leave",
    add_arguments=add_arguments,
    run=run,
)
