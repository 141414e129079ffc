"""The report that the demo prints after the stream."""

from rich import box
from rich.console import Console
from rich.table import Table

from batchqueue.cli.demo.check import Comparison
from batchqueue.cli.demo.epochs import OUTCOMES, EpochTotals
from batchqueue.cli.demo.measures import MEASURES, WORST_DELAYS, Measures
from batchqueue.cli.demo.results import Results
from batchqueue.cli.demo.speeds import L1Speeds

_WORST_SHOWN = 3
_DIFFERENCES_SHOWN = 10


def print_results(console: Console, results: Results) -> None:
    """Print a line per carrier and airport, and the longest delays of the whole period."""
    table = Table(box=box.SIMPLE_HEAD, title="Flights from New York", title_justify="left")
    table.add_column("")
    for heading in ("departures", "mean delay", "max delay", "cancelled", "miles"):
        table.add_column(heading, justify="right")
    for groups in MEASURES.values():
        for entity, measures in groups.items():
            if results.of(measures.departures):
                table.add_row(entity, *_cells(results, measures))
        table.add_section()
    console.print(table)
    ranked = [entry for day in results.of(WORST_DELAYS) for entry in day.entries]
    for entry in sorted(ranked, key=lambda entry: (-entry.score, entry.id))[:_WORST_SHOWN]:
        console.print(f"{entry.score:>6,} min  {entry.id}")


def _cells(results: Results, measures: Measures) -> list[str]:
    """Return the cells of a carrier or airport."""
    departures = results.over_time(measures.departures)
    mean_delay = results.over_time(measures.mean_delay)
    max_delay = results.over_time(measures.max_delay)
    cancellations = results.over_time(measures.cancellations)
    distance = results.over_time(measures.distance)
    return [
        f"{departures.count:,}",
        "-" if mean_delay.value is None else f"{mean_delay.value:.1f} min",
        "-" if max_delay.value is None else f"{max_delay.value:,} min",
        f"{cancellations.count:,}",
        f"{distance.total:,}",
    ]


def print_stages(console: Console, totals: EpochTotals) -> None:
    """Print the outcomes of the items of each stage, and the CPU time of the drain threads."""
    table = Table(box=box.SIMPLE_HEAD, padding=0, title="Items by stage", title_justify="left")
    table.add_column("")
    for outcome in OUTCOMES:
        table.add_column(outcome, justify="right")
    table.add_column("queue use", justify="right")
    for stage, counts in totals.stages.items():
        cells = [f"{counts[outcome]:,}" for outcome in OUTCOMES]
        table.add_row(stage, *cells, f"{totals.peak_used_percent[stage]:.0f} %")
    console.print(table)
    console.print(
        f"CPU of the Python workers: drain threads with handlers {totals.drain_cpu_s:.1f} s, "
        f"the rest {totals.rest_cpu_s:.1f} s"
    )


def print_rate(console: Console, this_run: EpochTotals, seconds: float) -> None:
    """Print the speed of the stream of this run."""
    if this_run.rows:
        console.print(
            f"stream: {this_run.rows:,} rows in {seconds:.1f} s, "
            f"{this_run.rows / seconds:,.0f} rows/s, {this_run.items / seconds:,.0f} items/s"
        )
    else:
        console.print("stream: all files were read by an earlier run, nothing is new")


def print_speeds(console: Console, speeds: L1Speeds) -> None:
    """Print the speeds of L1 in Python and in Rust."""
    console.print(
        f"L1 alone, {speeds.rows:,} rows in one process: "
        f"Python handlers {speeds.python:,.0f} rows/s, "
        f"Rust aggregators {speeds.rust:,.0f} rows/s, {speeds.rust / speeds.python:.0f} x"
    )
    if not speeds.are_equal:
        console.print("their partials differ", style="red")


def print_comparison(console: Console, comparison: Comparison) -> None:
    """Print the verdict, and the first differences."""
    differences = comparison.differences
    if not differences:
        console.print(f"{comparison.compared:,} aggregates: equal to Spark SQL", style="green")
        return
    metrics = sorted({difference.metric for difference in differences})
    console.print(
        f"{len(differences):,} of {comparison.compared:,} aggregates differ from Spark SQL, "
        f"in {', '.join(metrics)}:",
        style="red",
    )
    for difference in differences[:_DIFFERENCES_SHOWN]:
        console.print(f"  {difference}")
