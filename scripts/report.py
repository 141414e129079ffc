"""Runs all benches and contenders, and writes their figures into docs/figures.

Each bench prints its own rows of the table. The rows of criterion's benches, and the ratios to the
JDK, are computed here from the files that they write. `make report` runs it in about 40 minutes;
the machine should be idle otherwise.
"""

import argparse
import json
import re
import statistics
import subprocess
import sys
import textwrap
from pathlib import Path
from string import Template

ROOT = Path(__file__).resolve().parent.parent
TEMPLATE = ROOT / "scripts" / "templates" / "benchmarks.md"
FIGURES = ROOT / "docs" / "figures"
BENCHES = (
    *("balance", "busy", "headline", "sparse", "handoff", "held_up", "batches", "histograms"),
    *("lingering", "shift", "memory", "balancer"),
)
HEADLINE_ITEMS = 1_600_000
HEAD = """| # | workload | target | measured | met |
|---:|---|---|---|---|"""


def main() -> None:
    """Run the benches and the contenders; write the plot and the page, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="processes of each contender (5)")
    args = parser.parse_args()
    printed = {bench: run("cargo", "bench", "--locked", "--bench", bench) for bench in BENCHES}
    plot = str(FIGURES / "benchmarks.png")
    run(sys.executable, "benches/contenders/run.py", "--rounds", str(args.rounds), "--plot", plot)
    contenders = json.loads((ROOT / "target/contenders/results.json").read_text())
    rows = [
        line for text in printed.values() for line in text.splitlines() if line.startswith("| ")
    ]
    rows += [headline_row(), *contender_rows(contenders["results"]), *balancer_rows()]
    rows.sort(key=lambda row: row.split("|")[1])
    beside = (ROOT / "target/contenders/table.md").read_text()
    (FIGURES / "benchmarks.md").write_text(page(rows, beside, printed), encoding="utf-8")
    print("\n".join((HEAD, *rows)))


def run(*command: str) -> str:
    """Run a command, show its output, and return the output."""
    lines = []
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="", flush=True)
            lines.append(line)
    if process.returncode != 0:
        sys.exit(f"report: {' '.join(command)} failed")
    return "".join(lines)


def row(number: str, workload: str, target: str, measured: str, met: bool) -> str:
    """Return a row of the table."""
    return f"| {number} | {workload} | {target} | {measured} | {'yes' if met else 'no'} |"


def criterion_ns(path: str) -> float:
    """Return criterion's estimate of the mean of an iteration, in nanoseconds."""
    estimates = json.loads((ROOT / "target/criterion" / path / "new/estimates.json").read_text())
    return estimates["mean"]["point_estimate"]


def headline_row() -> str:
    """Return the first row with number 3."""
    rate = HEADLINE_ITEMS / criterion_ns("headline/produce to no-op handler") * 1e9
    return row(
        "3",
        "headline, no-op handler",
        "at least 25 M items/s",
        f"{rate / 1e6:.1f} M/s",
        rate >= 25e6,
    )


def contender_rows(results: list[dict]) -> list[str]:
    """Return the rows with numbers 3 and 4 that compare with the JDK; none without Java."""

    def rate(workload: str, contender: str) -> float | None:
        rates = [
            result["items_per_second"]
            for result in results
            if (result["workload"], result["contender"]) == (workload, contender)
        ]
        return statistics.median(rates) if rates else None

    rows = []
    for number, workload, factor in (("3", "headline", 2.5), ("4", "wide", 6.0)):
        names = ("batchqueue", "jdk-plain", "jdk-new", "jdk")
        ours, plain, new, made = (rate(workload, name) for name in names)
        if ours and plain and new and made:
            target = f"{factor} times"
            measured = f"{ours / plain:.2f} ({ours / 1e6:.1f} against {plain / 1e6:.1f} M/s)"
            rows.append(
                row(
                    number,
                    f"{workload}, compared with the default JVM",
                    target,
                    measured,
                    ours >= factor * plain,
                )
            )
            measured = f"{ours / new:.2f}; {ours / made:.2f} if its items are created beforehand"
            rows.append(
                row(
                    number,
                    f"{workload}, compared with a tuned JVM",
                    target,
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
    """Return the rows with number 9; the slowest of the four shapes counts."""
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


def page(rows: list[str], contenders: str, printed: dict[str, str]) -> str:
    """Return docs/figures/benchmarks.md."""
    # Left out: rows of the table, and criterion's remarks on outliers and on the previous run.
    noise = re.compile(
        r"\| |Found \d|  \d+ \(|\s+change:|.*\(p = |\s+thrpt: .*%|\s+(Performance|Change|No change)"
    )
    output = []
    for bench, text in printed.items():
        plain = [wrapped(line) for line in text.splitlines() if line and not noise.match(line)]
        output.append("\n".join([f"`cargo bench --bench {bench}`", "", "```text", *plain, "```"]))
    balance = [
        wrapped(line)
        for line in printed["balance"].splitlines()
        if line.startswith(("bare", "static", "throughput"))
    ]
    return Template(TEMPLATE.read_text(encoding="utf-8")).substitute(
        table="\n".join((HEAD, *rows)),
        balance="\n".join(balance),
        contenders=contenders.rstrip(),
        output="\n\n".join(output),
    )


def wrapped(line: str) -> str:
    """Return a line of output wrapped at 100 columns."""
    return textwrap.fill(line, 100, subsequent_indent="    ", expand_tabs=False)


if __name__ == "__main__":
    main()
