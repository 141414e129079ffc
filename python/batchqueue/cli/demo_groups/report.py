"""The report of `batchqueue demo --groups`."""

from collections.abc import Mapping, Sequence

from rich import box
from rich.console import Console
from rich.table import Table

from batchqueue.base.words import counted
from batchqueue.cli.demo_groups.program import LEASE_MS
from batchqueue.cli.demo_groups.timeline import Timeline


def print_owners(
    console: Console, timeline: Timeline, carriers: Mapping[int, Sequence[str]]
) -> None:
    """Print who owned what when.

    Args:
        console: Where to print.
        timeline: The run.
        carriers: The carriers of each partition.
    """
    table = Table(box=box.SIMPLE_HEAD, title="Who owned what, from and to", title_justify="left")
    table.add_column("partition", justify="right")
    table.add_column("carriers")
    table.add_column("owners, with seconds")
    for partition, spans in sorted(timeline.partitions.items()):
        owners = [f"{span.worker} {span.began:.1f}-{span.ended:.1f}" for span in spans]
        table.add_row(str(partition), " ".join(carriers[partition]) or "-", ", ".join(owners))
    console.print(table)


def print_workers(console: Console, timeline: Timeline) -> None:
    """Print what each worker did."""
    table = Table(box=box.SIMPLE_HEAD, title="Workers", title_justify="left")
    table.add_column("")
    for heading in ("joined", "flights stored", "calls"):
        table.add_column(heading, justify="right")
    table.add_column("end")
    for name in timeline.story.names:
        spans = [span for span in timeline.spans if span.worker == name]
        is_killed = name == timeline.story.killed
        table.add_row(
            name,
            f"{min(span.began for span in spans):.1f} s",
            f"{timeline.handled(name):,}",
            f"{sum(call.worker == name for call in timeline.calls):,}",
            f"killed at {timeline.killed_at:.1f} s" if is_killed else "left when all was done",
        )
    console.print(table)


def print_changes(console: Console, timeline: Timeline) -> None:
    """Print what the kill and the other changes of owners cost."""
    killed = timeline.story.killed
    takeovers = [gap.seconds for gap in timeline.gaps if gap.follows_kill]
    moves = [gap.seconds for gap in timeline.gaps if not gap.follows_kill]
    longest = max(takeovers, default=0.0)
    console.print(
        f"{killed} was killed with {counted(len(takeovers), 'partition')}: all owned again after "
        f"{longest:.2f} s, with a lease of {LEASE_MS / 1_000:g} s"
    )
    without = f", without an owner for {1_000 * max(moves):.0f} ms at most" if moves else ""
    console.print(f"{counted(len(moves), 'partition')} moved in calm{without}")


def print_counts(console: Console, timeline: Timeline, produced: int) -> None:
    """Print how many flights were produced, and how many came to a handler again."""
    console.print(
        f"flights: {produced:,} in {timeline.end:.1f} s "
        f"({produced / timeline.end:,.0f} per second), each stored once; "
        f"{timeline.handed_out - produced:,} came to a handler again"
    )
