"""`groups top`: the members and the partitions of a group, again and again."""

import argparse
import json
import math
import sys
import time
from dataclasses import asdict
from typing import Any

from batchqueue._words import counted
from batchqueue.cli.command import OK, Command
from batchqueue.cli.groups.options import Target, add_target, target_of
from batchqueue.cli.text import UNKNOWN, count, duration, ranges, table
from batchqueue.groups.monitor import GroupMetrics, GroupMonitor, MemberMetrics, StreamPartition

_REFRESH_S = 1.0
_CLEAR = "\x1b[H\x1b[2J"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.description = (
        "Show the members and the partitions of a group, once a second until Ctrl-C. A partition "
        "is hot when it lags behind the others in two readings, ten seconds apart."
    )
    add_target(parser)
    parser.add_argument("--once", action="store_true", help="show them once")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead")


def run(arguments: argparse.Namespace) -> int:
    """Show them."""
    target = target_of(arguments)
    _check_exists(target)
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
            time.sleep(_REFRESH_S)


def as_text(metrics: GroupMetrics) -> str:
    """Return a summary and two tables."""
    skew = metrics.skew
    lags = f", at most {count(skew.max_lag)}, skew {skew.skew_ratio:.1f}" if metrics.lag else ""
    title = (
        f"group {metrics.group} on {metrics.stream}: {counted(len(metrics.members), 'member')}, "
        f"{counted(len(metrics.partitions), 'partition')}, lag {count(metrics.lag)}{lags}, "
        f"{counted(metrics.rebalances, 'rebalance')}, {counted(metrics.moves, 'move')}"
    )
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
    return "\n\n".join((title, members, partitions) if metrics.members else (title, partitions))


def as_json(metrics: GroupMetrics) -> str:
    """Return the metrics as JSON, where a time lag without an end is null."""
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
    states = (("blocked", partition.is_blocked), ("hot", partition.is_hot))
    return (
        str(partition.partition),
        partition.owner or "-",
        count(partition.lag),
        UNKNOWN if partition.rate is None else f"{partition.rate:,.1f}",
        duration(partition.time_lag_s),
        count(partition.dead),
        " ".join(state for state, holds in states if holds),
    )


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def _check_exists(target: Target) -> None:
    with target.administration():
        pass


TOP = Command(
    name="top",
    help="show members and partitions: owners, lags, rates",
    add_arguments=add_arguments,
    run=run,
)
