"""Measures batchqueue from Python beside other queues; writes a table, its data and a plot.

All contenders of a row run in this process, one after the other in each round, so that other load
on the machine affects all of them alike. Figures are medians. `make bench-python` runs it in three
minutes; the machine should be idle otherwise.
"""

import argparse
import functools
import json
import os
import platform
import statistics
import subprocess
from collections.abc import Callable
from pathlib import Path
from string import Template

# Before NumPy is imported: its threads spin, which would count as processor time of the queue.
os.environ["OPENBLAS_NUM_THREADS"] = "1"

import aggregation
import answers
import batching
import binding
import columnar
import latency
import objects
import start

ROOT = Path(__file__).resolve().parents[2]
TEMPLATE = ROOT / "scripts" / "templates" / "python.md"
OURS, MANY, SIMPLE, STD = list(objects.CONTENDERS)[:4]
PRODUCERS = (1, 16)
Row = tuple[str, str, str, str, bool | None]
HEAD = "| # | workload | target | measured | met |\n|---:|---|---|---|---|"


def main() -> None:
    """Measure all rows, print the table, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7, help="rounds of each row (7)")
    parser.add_argument(
        "--quick", action="store_true", help="a hundredth of the work, to check that it runs"
    )
    parser.add_argument(
        "--wheel", type=Path, help="the wheel whose size counts (that of `make wheel`, in dist)"
    )
    parser.add_argument("--page", type=Path, help="write the page here, and a plot beside it")
    args = parser.parse_args()
    share = 100 if args.quick else 1
    ns = object_rows(args.rounds, share)
    rows = [
        *rows_of_objects(ns),
        binding_row(args.rounds, share),
        *columnar_rows(args.rounds, share),
        *aggregation_rows(args.rounds, share),
        *latency_rows(args.rounds, share),
        start_row(args.wheel),
        *result_rows(args.rounds, share),
        batches_row(args.rounds, share),
    ]
    print("\n".join((HEAD, *map(line, rows))))
    target = ROOT / "target" / "benches-python"
    target.mkdir(parents=True, exist_ok=True)
    (target / "results.json").write_text(
        json.dumps({"ns per item": {f"{k}": v for k, v in ns.items()}}, indent=1)
    )
    if args.page:
        args.page.write_text(page(rows, ns), encoding="utf-8")
        plot(ns, args.page.with_suffix(".png"))


def rounds(times: int, measures: dict[str, Callable[[], float]]) -> dict[str, list[float]]:
    """Run each measure once in every round; return its results."""
    results: dict[str, list[float]] = {name: [] for name in measures}
    for number in range(times):
        for name, measure in measures.items():
            results[name].append(measure())
            print(f"round {number + 1} of {times}: {name}: {results[name][-1]:,.1f}", flush=True)
    return results


def object_rows(times: int, share: int) -> dict[tuple[str, int], float]:
    """Return nanoseconds per item, by contender and number of producers."""
    medians = {}
    for producers in PRODUCERS:
        measures = {
            name: functools.partial(measure, producers, max(count // share, 32_000))
            for name, (measure, count) in objects.CONTENDERS.items()
        }
        for name, results in rounds(times, measures).items():
            medians[name, producers] = statistics.median(results)
    return medians


def rows_of_objects(ns: dict[tuple[str, int], float]) -> list[Row]:
    rows: list[Row] = []
    for producers in PRODUCERS:
        who = f"{producers} Python thread{'s' if producers > 1 else ''}"
        ours, simple, std = (ns[name, producers] for name in (OURS, SIMPLE, STD))
        met = ours <= 45 and simple / ours >= 1.7 and std / ours >= 25
        rows.append(
            (
                "1",
                f"`produce`, {who}, end to end",
                "at most 45 ns per item; 1.7 x `SimpleQueue`, 25 x `queue.Queue`, "
                "each with a batching thread",
                f"{ours:.1f} ns ({1e3 / ours:.1f} M/s); {simple / ours:.2f} x, {std / ours:.1f} x",
                met,
            )
        )
    for producers in PRODUCERS:
        many = ns[MANY, producers]
        who = f"{producers} Python thread{'s' if producers > 1 else ''}"
        target = "at most 14 ns per item" if producers == 1 else ""
        rows.append(
            (
                "2",
                f"`produce_many(2,000)`, {who}",
                target,
                f"{many:.1f} ns",
                many <= 14 if target else None,
            )
        )
    return rows


def binding_row(times: int, share: int) -> Row:
    """Compare what `produce` adds to the same put from Rust with the cost of an empty method."""
    floor, count = binding.build(optimized=share == 1), max(400_000 // share, 32_000)
    sent, empty = objects.items(count), floor.Empty()
    measures = {
        "produce alone": functools.partial(binding.produce_ns, count),
        "the same put from Rust": functools.partial(floor.put_ns, sent),
        "an empty method": functools.partial(binding.call_ns, empty.produce, count),
    }
    produce, put, call = (
        statistics.median(results) for results in rounds(times, measures).values()
    )
    more = produce - put - call
    measured = f"{produce:.1f} - {put:.1f} = {produce - put:.1f} ns; {call:.1f} ns; {more:+.1f} ns"
    return (
        "3",
        "`produce` minus the same put from Rust; an empty method",
        "8 ns apart",
        measured,
        more <= 8,
    )


def columnar_rows(times: int, share: int) -> list[Row]:
    measures = {
        f"{kind} {tags}": lambda kind=kind, tags=tags: columnar.rows_per_cpu_second(
            kind, tags, max(100 // share, 2)
        )
        for kind in columnar.KINDS
        for tags in columnar.TAGS
    }
    rates = {
        name: statistics.median(results) / 1e6 for name, results in rounds(times, measures).items()
    }
    rows: list[Row] = []
    for kind in columnar.KINDS:
        bound = 55 if kind == "string" else 75
        measured = [rates[f"{kind} {tags}"] for tags in columnar.TAGS]
        rows.append(
            (
                "4",
                f"`produce_arrow`, {kind} tags, {columnar.TAGS[0]} and {columnar.TAGS[1]} types",
                f"at least {bound} M rows/s per core",
                " and ".join(f"{rate:.0f}" for rate in measured),
                min(measured) >= bound,
            )
        )
    return rows


def aggregation_rows(times: int, share: int) -> list[Row]:
    count = max(120 // share, len(aggregation.TAGS))
    measures: dict[str, Callable[[], float]] = {}
    for kind in aggregation.KINDS:
        measures[f"{kind} 1"] = functools.partial(aggregation.rows_per_second, kind, 1, count)
        measures[f"{kind} 2"] = functools.partial(aggregation.rows_per_second, kind, 2, count)
        measures[f"{kind} pyarrow"] = functools.partial(
            aggregation.pyarrow_rows_per_second, kind, count
        )
    rates = {
        name: statistics.median(results) / 1e6 for name, results in rounds(times, measures).items()
    }
    rows: list[Row] = []
    for kind, bound in zip(aggregation.KINDS, (1.3, 0.6), strict=True):
        single, double, theirs = (rates[f"{kind} {which}"] for which in ("1", "2", "pyarrow"))
        target = (
            f"at least {bound} x pyarrow's `group_by` on one core; "
            "two drain threads at least 1.8 x one"
        )
        measured = f"{single:.0f} M rows/s, {single / theirs:.2f} x; {double / single:.2f} x"
        met = single >= bound * theirs and double >= 1.8 * single
        rows.append(
            (
                "5",
                f"an `Aggregator`: count and sum by {kind} key, 1,000 groups",
                target,
                measured,
                met,
            )
        )
    return rows


def latency_rows(times: int, share: int) -> list[Row]:
    rows: list[Row] = []
    for burners in (0, 1, 4):
        # Beside a computing thread, a few hundred items take long enough.
        count = max((2_000 if burners == 0 else 300) // share, 20)
        percentiles = [latency.percentiles_us(count, burners) for _ in range(times)]
        p50, p99 = map(statistics.median, zip(*percentiles, strict=True))
        measured = f"p50 {p50:,.0f} µs, p99 {p99:,.0f} µs"
        if burners == 0:
            target = "p50 at most 50 µs, p99 at most 500 µs"
            rows.append(
                ("6", "one item into an idle queue", target, measured, p50 <= 50 and p99 <= 500)
            )
        else:
            rows.append(
                (
                    "7",
                    f"the same beside {burners} computing thread{'s' if burners > 1 else ''}",
                    "",
                    measured,
                    None,
                )
            )
    return rows


def start_row(wheel: Path | None) -> Row:
    took = [start.import_ms() for _ in range(7)]
    middle = statistics.median(ms for ms, _, _ in took)
    loaded = statistics.median(ms for _, ms, _ in took)
    heavy, size = took[0][2], start.wheel_mb(wheel)
    measured = f"{middle:.0f} ms, {loaded:.0f} ms with `BatchQueue`, "
    measured += f"{', '.join(heavy) or 'none'}; {size:.1f} MB"
    met = middle <= 30 and not heavy and size <= 6
    return (
        "8",
        "`import batchqueue`; wheel",
        "at most 30 ms, no large package; at most 6 MB",
        measured,
        met,
    )


def result_rows(times: int, share: int) -> list[Row]:
    count = max(200_000 // share, answers.PIECE)
    measures = {
        "submit and result": functools.partial(answers.submit_ns, count),
        "ThreadPoolExecutor": functools.partial(answers.executor_ns, max(count // 4, 1_000)),
        "async submit": functools.partial(answers.async_submit_ns, count),
        # Long enough for a thread that loses the GIL once not to decide.
        "produce": functools.partial(answers.produce_ns, 10 * count),
        "produce through the door": functools.partial(answers.door_ns, 10 * count),
    }
    ours, pool, awaited, produce, door = (
        statistics.median(measured) for measured in rounds(times, measures).values()
    )
    return [
        (
            "9",
            "`submit` and `result()`, in batches; `ThreadPoolExecutor(1)`",
            "at most 1,500 ns per item; a sixth of the executor",
            f"{ours:,.0f} ns; {pool:,.0f} ns, {pool / ours:.0f} x",
            ours <= 1_500 and pool / ours >= 6,
        ),
        ("10", "`await` of `AsyncBatchQueue.submit`, in batches", "", f"{awaited:,.0f} ns", None),
        (
            "11",
            "`produce` of `AsyncBatchQueue.sync`; of a `BatchQueue`",
            "at most 1.2 x",
            f"{door:.1f} ns; {produce:.1f} ns, {door / produce:.2f} x",
            door <= 1.2 * produce,
        ),
    ]


def batches_row(times: int, share: int) -> Row:
    """Show batches of an exact size at a rate that fills two of them in a millisecond."""
    rate = 1_000_000
    runs = [batching.full_batches(rate, 2 / share) for _ in range(times)]
    reached, full = (statistics.median(figures) for figures in zip(*runs, strict=True))
    return (
        "12",
        f"`produce_many(1,000)`, 1 M items/s, `max_batch_items={batching.MOST}`, `max_delay_ms=50`",
        f"0.99 M items/s; 99.9 % of the batches have exactly {batching.MOST} items",
        f"{reached / 1e6:.3f} M items/s; {100 * full:.2f} %",
        reached >= 0.99 * rate and full >= 0.999,
    )


def line(row: Row) -> str:
    """Return a row of the table."""
    *cells, met = row
    return f"| {' | '.join(cells)} | {'' if met is None else 'yes' if met else 'no'} |"


def page(rows: list[Row], ns: dict[tuple[str, int], float]) -> str:
    """Return docs/figures/python.md."""
    contenders = "\n".join(
        f"| {name} | {ns[name, 1]:,.1f} | {ns[name, 16]:,.1f} |"
        for name in sorted(objects.CONTENDERS, key=lambda n: ns[n, 1])
    )
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    machine = [f"{os.cpu_count()} cores", f"Python {platform.python_version()}"]
    return Template(TEMPLATE.read_text(encoding="utf-8")).substitute(
        machine=", ".join([*machine, f"commit {commit.stdout.strip()}"]),
        table="\n".join((HEAD, *map(line, rows))),
        contenders="\n".join(("| queue | 1 | 16 |", "|---|---:|---:|", contenders)),
    )


def plot(ns: dict[tuple[str, int], float], path: Path) -> None:
    """Draw the contenders as bars on a logarithmic scale."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    names = sorted(objects.CONTENDERS, key=lambda name: -ns[name, 1])
    figure, axes = plt.subplots(figsize=(9, 3.6))
    for place, producers in enumerate(PRODUCERS):
        values = [ns[name, producers] for name in names]
        places = [number + 0.2 - 0.4 * place for number in range(len(names))]
        bars = axes.barh(
            places,
            values,
            0.38,
            label=f"{producers} producing thread{'s' if producers > 1 else ''}",
        )
        axes.bar_label(bars, [f"{value:,.0f}" for value in values], padding=3, fontsize=8)
    axes.set_yticks(range(len(names)), names)
    axes.set_xscale("log")
    axes.set_xlabel("ns per item, from produce to handler (logarithmic)")
    axes.legend(loc="lower right")
    axes.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    main()
