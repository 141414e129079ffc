"""`groups lag`: how many records a group has not done."""

import argparse
import sys

from batchqueue.cli.command import FAILED, OK, Command
from batchqueue.cli.groups.options import add_target, members_of, target_of
from batchqueue.cli.numbers import whole_number
from batchqueue.cli.text import count, ranges, table


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.description = (
        "Print the records of each partition that the group has not done, and their sum. With "
        "--max, the exit code is 1 if the sum is larger, or if the lag of a partition is unknown."
    )
    add_target(parser)
    parser.add_argument(
        "--max", type=whole_number(0), metavar="N", help="the largest sum with the exit code 0"
    )


def run(arguments: argparse.Namespace) -> int:
    """Print it."""
    target = target_of(arguments)
    with target.administration() as administration:
        infos = administration.infos(range(administration.partitions()))
        is_new = not any(info.at_ms for info in infos) and not members_of(administration)
    lags = dict(enumerate(info.lag for info in infos))
    total = sum(lag or 0 for lag in lags.values())
    unknown = [partition for partition, lag in lags.items() if lag is None]
    rows = [(str(partition), count(lag)) for partition, lag in lags.items()]
    print(table("<>", ("PARTITION", "LAG"), [*rows, ("total", count(total))]))
    if is_new:
        print(f"{target} has no position yet: every record counts", file=sys.stderr)
    if unknown:
        print(
            f"the lag of partition {ranges(unknown)} is unknown: records were deleted one by one, "
            "or the server does not count them",
            file=sys.stderr,
        )
    if arguments.max is None or (total <= arguments.max and not unknown):
        return OK
    if total > arguments.max:
        print(f"the lag is {total:,}, more than --max {arguments.max:,}", file=sys.stderr)
    return FAILED


LAG = Command(
    name="lag",
    help="print the lag of each partition; fail above a limit",
    add_arguments=add_arguments,
    run=run,
)
