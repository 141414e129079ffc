"""The commands `batchqueue groups ...` that ask about a group, or change it."""

import argparse
import json
import math
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from batchqueue.base.words import counted
from batchqueue.cli.command import (
    FAILED,
    OK,
    UNKNOWN,
    Command,
    command_group,
    count,
    duration,
    moment,
    ranges,
    seconds,
    table,
    whole_number,
)
from batchqueue.cli.groups_options import Target, add_target, members_of, target_of, wait_until
from batchqueue.cli.groups_reset import REDRIVE, RESET
from batchqueue.cli.groups_run import RUN
from batchqueue.exceptions import ConfigError
from batchqueue.groups.backend import Administration, lacking
from batchqueue.groups.messages import Event
from batchqueue.groups.monitor import GroupMetrics, GroupMonitor, MemberMetrics, StreamPartition
from batchqueue.groups.record import partition_count

# `groups lag`: how many records a group has not done.


def add_lag_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.description = (
        "Print the records of each partition that the group has not done, and their sum. With "
        "--max, the exit code is 1 if the sum is larger, or if the lag of a partition is unknown."
    )
    add_target(parser)
    parser.add_argument(
        "--max", type=whole_number(0), metavar="N", help="the largest sum with the exit code 0"
    )


def run_lag(arguments: argparse.Namespace) -> int:
    """Print it."""
    target = target_of(arguments)
    with target.administration() as administration:
        infos = administration.infos(range(administration.partitions()))
        is_new = all(info.is_new for info in infos) and not members_of(administration)
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
    add_arguments=add_lag_arguments,
    run=run_lag,
)


# `groups log`: the events of a group.


_REFRESH_S = 0.5


def add_log_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.description = (
        "Print the last events of a group, about a thousand, the oldest first: time (UTC), event, "
        "worker, and the partitions that moved or were given up."
    )
    add_target(parser)
    parser.add_argument(
        "--follow", action="store_true", help="print those that come later as well, until Ctrl-C"
    )


def run_log(arguments: argparse.Namespace) -> int:
    """Print them."""
    target = target_of(arguments)
    seen = 0
    with target.administration() as administration:
        if "log" in administration.lacks:
            raise lacking(administration, "log")
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
    add_arguments=add_log_arguments,
    run=run_log,
)


# `groups top`: the members and the partitions of a group, continually updated.


_TOP_REFRESH_S = 1.0
_CLEAR = "\x1b[H\x1b[2J"


def add_top_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.description = (
        "Show the members and the partitions of a group, once a second until Ctrl-C. A partition "
        "is hot when it lags behind the others in two readings, ten seconds apart."
    )
    add_target(parser)
    parser.add_argument("--once", action="store_true", help="show them once")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead")


def run_top(arguments: argparse.Namespace) -> int:
    """Show them."""
    target = target_of(arguments)
    with target.administration():
        pass  # raises for a stream that does not exist
    with GroupMonitor(target.group, target.source) as monitor:
        if arguments.json:
            print(as_json(monitor.metrics()))
            return OK
        if arguments.once:
            print(as_text(monitor.metrics()))
            return OK
        before = _CLEAR if sys.stdout.isatty() else ""
        while True:
            print(f"{before}{as_text(monitor.metrics())}\n", flush=True)
            time.sleep(_TOP_REFRESH_S)


def as_text(metrics: GroupMetrics) -> str:
    """Return a summary and two tables."""
    skew = metrics.skew
    lags = f", at most {count(skew.max_lag)}, skew {skew.skew_ratio:.1f}" if metrics.lag else ""
    title = (
        f"group {metrics.group} on {metrics.stream}: {counted(len(metrics.members), 'member')}, "
        f"{counted(len(metrics.partitions), 'partition')}, lag {count(metrics.lag)}{lags}"
    )
    if metrics.has_reports:
        title += f", {counted(metrics.rebalances, 'rebalance')}, {counted(metrics.moves, 'move')}"
        members = table(
            "<<>>>>>><",
            ("MEMBER", "HOST", "PID", "HANDLED", "DEAD", "FAILED", "LOST", "LEASE", "PARTITIONS"),
            [_member(each) for each in metrics.members.values()],
        )
        partitions = table(
            "<<>>>><",
            ("PARTITION", "OWNER", "LAG", "RATE/S", "TIME LAG", "DEAD", "STATE"),
            [_partition(each) for each in metrics.partitions.values()],
        )
    else:
        members = table(
            "<<<",
            ("MEMBER", "HOST", "PARTITIONS"),
            [
                (each.name, each.host, ranges(each.partitions) or "none")
                for each in metrics.members.values()
            ],
        )
        partitions = table(
            "<<><",
            ("PARTITION", "OWNER", "LAG", "STATE"),
            [
                (str(each.partition), each.owner or "-", count(each.lag), _state(each))
                for each in metrics.partitions.values()
            ],
        )
    return "\n\n".join((title, members, partitions) if metrics.members else (title, partitions))


def as_json(metrics: GroupMetrics) -> str:
    """Return the metrics as JSON, in which an infinite time lag is null."""
    return json.dumps(_finite(asdict(metrics)), allow_nan=False)


def _member(member: MemberMetrics) -> tuple[str, ...]:
    owned = ranges(member.partitions) or "none"
    return (
        member.name,
        member.host,
        str(member.pid),
        count(member.handled),
        count(member.dead),
        count(member.failed_attempts),
        count(member.lost),
        duration(member.lease_left_ms / 1_000),
        f"{owned} (leaving)" if member.is_leaving else owned,
    )


def _partition(partition: StreamPartition) -> tuple[str, ...]:
    return (
        str(partition.partition),
        partition.owner or "-",
        count(partition.lag),
        UNKNOWN if partition.rate is None else f"{partition.rate:,.1f}",
        duration(partition.time_lag_s),
        count(partition.dead),
        _state(partition),
    )


def _state(partition: StreamPartition) -> str:
    states = (("blocked", partition.is_blocked), ("hot", partition.is_hot))
    return " ".join(state for state, holds in states if holds)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


TOP = Command(
    name="top",
    help="show members and partitions: owners, lags, rates",
    add_arguments=add_top_arguments,
    run=run_top,
)


# `groups trim`: removes the records that all groups of a stream have done.


def add_trim_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.description = (
        "Remove the records that all groups of the stream have done. Nothing is removed of a "
        "partition that one of them has not opened yet."
    )
    add_target(parser)


def run_trim(arguments: argparse.Namespace) -> int:
    """Remove them."""
    target = target_of(arguments)
    with target.administration() as administration:
        removed = administration.trim()
    print(f"{counted(removed, 'record')} of {target.source.stream} removed")
    return OK


TRIM = Command(
    name="trim",
    help="remove the records that all groups have done",
    add_arguments=add_trim_arguments,
    run=run_trim,
)


# `groups drain`: lets workers leave.


def add_drain_arguments(parser: argparse.ArgumentParser) -> None:
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


def run_drain(arguments: argparse.Namespace) -> int:
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
    add_arguments=add_drain_arguments,
    run=run_drain,
)


# `groups resize`: raises the number of partitions of a stream.


EXPLANATION = (
    "From now on, new records of a key may go to another partition: those of producers that are "
    "made after the resize. The order per key holds again when the old partitions are drained."
)


def add_resize_arguments(parser: argparse.ArgumentParser) -> None:
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


def run_resize(arguments: argparse.Namespace) -> int:
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
        else:
            now = administration.resize(wanted)
            print(f"{stream} has {counted(now, 'partition')}, {before} before. {EXPLANATION}")
            print(
                f"Programs that give partitions={before} must give {now}, or leave it out.",
                flush=True,
            )
        if arguments.wait:
            return _drained(arguments, target, administration, range(before))
    return OK


def _drained(
    arguments: argparse.Namespace,
    target: Target,
    administration: Administration,
    partitions: Sequence[int],
) -> int:
    """Wait until the current records of partitions are done; running producers may add more."""
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
            # If the last record was deleted, nothing is left although the end is not reached.
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
    add_arguments=add_resize_arguments,
    run=run_resize,
)


# The commands of `batchqueue groups`.


GROUP_COMMANDS = (RUN, TOP, LOG, LAG, DRAIN, RESET, REDRIVE, TRIM, RESIZE)

GROUPS = command_group("groups", "run the workers of a group, and see what they do", GROUP_COMMANDS)
