"""Run all benches and contenders, and write what they say into docs/figures.

Each bench prints its lines of the table itself; those of criterion's benches, and the ratios to the
JDK, are worked out here from what they leave behind. `make report` runs it, in about 40 minutes;
nothing else should run meanwhile.
"""

import argparse
import json
import re
import statistics
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FIGURES = ROOT / "docs" / "figures"
BENCHES = ("balance", "busy", "headline", "sparse", "handoff", "shift", "memory", "balancer")
HEADLINE_ITEMS = 1_600_000
HEAD = """| # | workload | wanted | measured | met |
|---:|---|---|---|---|"""


def main() -> None:
    """Benches, contenders, table, page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="processes of each contender (5)")
    args = parser.parse_args()
    said = {bench: run("cargo", "bench", "--locked", "--bench", bench) for bench in BENCHES}
    plot = str(FIGURES / "benchmarks.png")
    run(sys.executable, "benches/contenders/run.py", "--rounds", str(args.rounds), "--plot", plot)
    contenders = json.loads((ROOT / "target/contenders/results.json").read_text())
    rows = [line for text in said.values() for line in text.splitlines() if line.startswith("| ")]
    rows += [headline_row(), *contender_rows(contenders["results"]), *balancer_rows()]
    rows.sort(key=lambda row: row.split("|")[1])
    table = (ROOT / "target/contenders/table.md").read_text()
    (FIGURES / "benchmarks.md").write_text(page(rows, table, said), encoding="utf-8")
    print("\n".join((HEAD, *rows)))


def run(*command: str) -> str:
    """What a command printed; it is shown while it runs."""
    lines = []
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="", flush=True)
            lines.append(line)
    if process.returncode != 0:
        sys.exit(f"report: {' '.join(command)} failed")
    return "".join(lines)


def row(number: str, workload: str, wanted: str, measured: str, met: bool) -> str:
    """One line of the table."""
    return f"| {number} | {workload} | {wanted} | {measured} | {'yes' if met else 'no'} |"


def criterion_ns(path: str) -> float:
    """Criterion's estimate of the mean of one iteration, in nanoseconds."""
    estimates = json.loads((ROOT / "target/criterion" / path / "new/estimates.json").read_text())
    return estimates["mean"]["point_estimate"]


def headline_row() -> str:
    """Row 3, first half."""
    rate = HEADLINE_ITEMS / criterion_ns("headline/produce to no-op handler") * 1e9
    return row(
        "3",
        "headline, no-op handler",
        "at least 25 M items/s",
        f"{rate / 1e6:.1f} M/s",
        rate >= 25e6,
    )


def contender_rows(results: list[dict]) -> list[str]:
    """Rows 3 and 4 beside the JDK; none without Java."""

    def rate(workload: str, contender: str) -> float | None:
        rates = [
            one["items_per_second"]
            for one in results
            if (one["workload"], one["contender"]) == (workload, contender)
        ]
        return statistics.median(rates) if rates else None

    rows = []
    for number, workload, factor in (("3", "headline", 2.5), ("4", "wide", 6.0)):
        names = ("batchqueue", "jdk-plain", "jdk-new", "jdk")
        ours, plain, new, made = (rate(workload, name) for name in names)
        if ours and plain and new and made:
            wanted = f"{factor} times"
            measured = f"{ours / plain:.2f} ({ours / 1e6:.1f} against {plain / 1e6:.1f} M/s)"
            rows.append(
                row(
                    number,
                    f"{workload}, beside the JDK as it comes",
                    wanted,
                    measured,
                    ours >= factor * plain,
                )
            )
            measured = f"{ours / new:.2f}; {ours / made:.2f} when its items are made before"
            rows.append(
                row(
                    number,
                    f"{workload}, beside a tuned JVM",
                    wanted,
                    measured,
                    ours >= factor * max(new, made),
                )
            )
    wide, wider = rate("wide", "batchqueue"), rate("wide-10k", "batchqueue")
    if wide and wider:
        rows.append(
            row(
                "4",
                "10,000 types",
                "at most 1.5 times the time per item of 1,000",
                f"{wide / wider:.2f}",
                wide <= 1.5 * wider,
            )
        )
    return rows


def balancer_rows() -> list[str]:
    """Row 9: the slowest of the four shapes counts."""
    rows = []
    for size, limit_us in (("500x8", 25.0), ("100000x64", 6_000.0)):
        figures = {
            name: criterion_ns(f"balancer/{name}/{size}") / 1e3
            for name in ("zipf-first", "zipf-settled", "tiers-first", "tiers-settled")
        }
        measured = ", ".join(f"{name} {figure:.0f}" for name, figure in figures.items())
        rows.append(
            row(
                "9",
                f"balancer alone, {size.replace('x', ' by ')}",
                f"at most {limit_us:g} µs",
                f"{measured} µs",
                max(figures.values()) <= limit_us,
            )
        )
    return rows


def page(rows: list[str], contenders: str, said: dict[str, str]) -> str:
    """The whole of docs/figures/benchmarks.md."""
    parts = [
        "# Benchmarks",
        "",
        "Written by `make report`, which runs every bench and contender; machine and versions stand below.",
        "Rates are items per second through the whole queue, from the first `produce` to the last handled item.",
        "",
        HEAD,
        *rows,
        "",
        "## What balancing is worth",
        "",
        "The Java original's published figures for *headline*: 7,211,794 items/s with static owners, 8,729,310",
        "rebalanced (+21.0 %; busiest thread over least busy 1.30 and 1.04), on an Apple M3 Max. Ours, on the machine",
        "below, with handlers that sleep, for two cores leave nothing to win where four drain threads compute:",
        "",
        "```text",
        *(
            line
            for line in said["balance"].splitlines()
            if line.startswith(("bare", "static", "throughput"))
        ),
        "```",
        "",
        "## Beside other queues",
        "",
        "The JDK contender is the original's design in its plainest form. It runs as Java comes, where each item is",
        "made when it is put, as by any producer and by all contenders in Rust; with the collector and the heap that",
        "suit it best; and so with items that were made before. Of the Rust stores only batchqueue keeps statistics,",
        "entry tokens and a route that grows, and lets partitions move.",
        "",
        "![median rates of batchqueue and its contenders](benchmarks.png)",
        "",
        contenders.rstrip(),
        "",
        "## What the benches printed",
        "",
    ]
    # The lines of the table, and criterion's remarks on outliers and on the run before.
    noise = re.compile(
        r"\| |Found \d|  \d+ \(|\s+change:|.*\(p = |\s+thrpt: .*%|\s+(Performance|Change|No change)"
    )
    for bench, text in said.items():
        plain = [line for line in text.splitlines() if line and not noise.match(line)]
        parts += [f"`cargo bench --bench {bench}`", "", "```text", *plain, "```", ""]
    return "\n".join(parts)


if __name__ == "__main__":
    main()
