#!/usr/bin/env python3
"""Runs batchqueue beside its contenders, and writes a table, its data and a plot.

Every round runs each contender once in its own process, so that other load on the machine affects
all of them alike. Each process warms up, prints a JSON line per measured round, and fails unless
every item was handled. Needs cargo, and javac and mvn for the contenders in Java, which are left
out without them.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shutil
import statistics
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).resolve().parent
TARGET = HERE.parents[1] / "target" / "contenders"
CLASSES = TARGET / "classes"
DISRUPTOR = "4.0.0"
JAR = TARGET / "jars" / f"disruptor-{DISRUPTOR}.jar"
RUST_BINARY = TARGET / "cargo" / "release" / "contenders"
# The collector and heap that suit these workloads best, for all contenders in Java but "jdk-plain".
JAVA_OPTIONS = (
    *("-XX:+UseParallelGC", "-XX:+UseCondCardMark", "-XX:+AlwaysPreTouch"),
    *("-Xms6g", "-Xmx6g", "-Xmn2g"),
)

OURS = "batchqueue"
RUST = (OURS, "mutex-vec", "kanal", "flume", "crossbeam")
JDK = ("jdk-plain", "jdk-new", "jdk")
LMAX = ("disruptor-partition", "disruptor-thread")
LABELS = {
    OURS: "batchqueue",
    "mutex-vec": "`Mutex<Vec>` swapped out whole",
    "kanal": "kanal, bounded",
    "flume": "flume, bounded",
    "crossbeam": "crossbeam channel, one item per slot",
    "jdk-plain": "JDK `ArrayBlockingQueue`, a new item each time, the JVM as it comes",
    "jdk-new": "JDK `ArrayBlockingQueue`, a new item each time, tuned JVM",
    "jdk": "JDK `ArrayBlockingQueue`, items made before, tuned JVM",
    "disruptor-partition": "LMAX Disruptor, ring per partition, items made before",
    "disruptor-thread": "LMAX Disruptor, ring per drain thread, items made before",
}
WORKLOADS = {
    "headline": "4 drain threads, 16 producers, 100 types in tiers, 2,000 items per partition",
    "wide": "8 drain threads, 32 producers, 1,000 types, 50,000 items per partition",
    "wide-10k": "as wide, 10,000 types",
}
# Items per second of the Java original on two cores, warm. The JDK contender represents it only if
# it comes near.
ORIGINAL = {"headline": (8e6, 12e6), "wide": (4.7e6, 6.0e6)}


def main() -> None:
    """Build the contenders, run them, and report."""
    args = arguments()
    contenders = [name for name in build() if name in args.contender]
    pairs = [
        (workload, name)
        for workload in args.workload
        for name in contenders
        if workload != "wide-10k" or name == OURS
    ]
    if args.check:
        for workload, name in pairs:
            print(run(name, workload, "--check"), end="", flush=True)
        return
    results: list[dict] = []
    busy: list[float] = []
    for number in range(args.rounds):
        for workload, name in pairs:
            busy.append(busy_share())
            seconds = args.java_warm_up_s if name not in RUST else args.rust_warm_up_s
            options = ("--rounds", str(args.repeats), "--warm-up-s", str(seconds))
            lines = [json.loads(line) for line in run(name, workload, *options).splitlines()]
            results += [line | {"process": number} for line in lines]
            rate = statistics.median(line["items_per_second"] for line in lines)
            print(f"round {number + 1}: {workload} {name} {rate / 1e6:.1f} M/s", file=sys.stderr)
    about = machine() | {
        "busy_with_other_work": {"median": statistics.median(busy), "max": max(busy)},
        "java_options": " ".join(JAVA_OPTIONS),
    }
    TARGET.mkdir(parents=True, exist_ok=True)
    (TARGET / "results.json").write_text(
        json.dumps({"about": about, "results": results}, indent=1) + "\n"
    )
    table = "\n".join(report(results, about))
    (TARGET / "table.md").write_text(table + "\n")
    print(table)
    if args.plot:
        plot(results, about, args.plot)


def arguments() -> argparse.Namespace:
    """Parse the command line; `--quick` only checks that everything runs."""

    def names(known: dict[str, str]):
        def split(text: str) -> list[str]:
            if unknown := set(text.split(",")) - set(known):
                raise argparse.ArgumentTypeError(
                    f"{', '.join(unknown)}: known are {', '.join(known)}"
                )
            return text.split(",")

        return split

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--workload", type=names(WORKLOADS), default=list(WORKLOADS), help="default: all"
    )
    parser.add_argument(
        "--contender", type=names(LABELS), default=list(LABELS), help="default: all"
    )
    parser.add_argument("--rounds", type=int, default=5, help="processes of each contender (5)")
    parser.add_argument(
        "--repeats", type=int, default=3, help="measured rounds in each process (3)"
    )
    parser.add_argument("--java-warm-up-s", type=int, default=30)
    parser.add_argument("--rust-warm-up-s", type=int, default=2)
    parser.add_argument(
        "--quick", action="store_true", help="one process each, with little warm-up"
    )
    parser.add_argument("--check", action="store_true", help="mark each item instead of measuring")
    parser.add_argument("--plot", type=Path, help="write a PNG; needs matplotlib")
    args = parser.parse_args()
    if args.quick:
        args.rounds, args.repeats, args.java_warm_up_s, args.rust_warm_up_s = 1, 1, 3, 0
    if args.plot:
        try:
            import matplotlib  # noqa: F401
        except ImportError:
            parser.error("--plot needs matplotlib: pip install matplotlib")
    return args


def build() -> Iterator[str]:
    """Build the contenders that this machine can build, and yield their names."""
    environment = os.environ | {"CARGO_TARGET_DIR": str(TARGET / "cargo")}
    subprocess.run(
        ("cargo", "build", "--release", "--locked"), cwd=HERE / "rust", env=environment, check=True
    )
    yield from RUST
    if not shutil.which("javac"):
        print("no javac: the contenders in Java are left out", file=sys.stderr)
        return
    sources = {source.name: str(source) for source in (HERE / "java").glob("*.java")}
    lmax = [sources.pop(name) for name in ("DisruptorPerThread.java", "DisruptorPerPartition.java")]
    shutil.rmtree(CLASSES, ignore_errors=True)
    subprocess.run(("javac", "-d", str(CLASSES), *sources.values()), check=True)
    yield from JDK
    copy = f"-Dartifact=com.lmax:disruptor:{DISRUPTOR}", f"-DoutputDirectory={JAR.parent}"
    if not JAR.exists() and shutil.which("mvn"):
        subprocess.run(("mvn", "-q", "-B", "dependency:copy", *copy), check=False)
    if not JAR.exists():
        print("no mvn, or it could not get the Disruptor: its rows are left out", file=sys.stderr)
        return
    subprocess.run(("javac", "-cp", f"{CLASSES}:{JAR}", "-d", str(CLASSES), *lmax), check=True)
    yield from LMAX


def run(name: str, workload: str, *options: str) -> str:
    """Run a contender and return its output; it fails unless every item was handled once."""
    command = (str(RUST_BINARY),)
    if name not in RUST:
        tuning = () if name == "jdk-plain" else JAVA_OPTIONS
        command = ("java", *tuning, "-cp", f"{CLASSES}:{JAR}", "contenders.Contenders")
    command += ("--contender", name, "--workload", workload, *options)
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout


def busy_share(seconds: float = 0.5) -> float:
    """Return the share of all cores that other processes use now."""

    def ticks() -> tuple[int, int]:
        user, nice, system, idle, waiting, *others = map(
            int, Path("/proc/stat").read_text().splitlines()[0].split()[1:9]
        )
        return user + nice + system + sum(others), idle + waiting

    busy, idle = ticks()
    time.sleep(seconds)
    more_busy, more_idle = ticks()
    return (more_busy - busy) / max(1, more_busy - busy + more_idle - idle)


def machine() -> dict[str, object]:
    """Return the machine and the versions of the run."""

    def first_line(*command: str) -> str:
        done = subprocess.run(
            command, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        return done.stdout.splitlines()[0]

    cpu = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    lock = (HERE / "rust" / "Cargo.lock").read_text()
    crates = dict(re.findall(r'name = "([^"]+)"\nversion = "([^"]+)"', lock))
    versions = {
        name: crates[name] for name in (OURS, "crossbeam-channel", "flume", "kanal", "parking_lot")
    }
    return {
        "cpu": cpu.group(1) if cpu else platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "system": platform.platform(),
        "rustc": first_line("rustc", "--version"),
        "java": first_line("java", "-version") if shutil.which("java") else "none",
        "versions": versions | {"disruptor": DISRUPTOR},
    }


def rates(results: list[dict]) -> dict[tuple[str, str], list[float]]:
    """Return items per second by workload and contender."""
    by_pair: dict[tuple[str, str], list[float]] = {}
    for line in results:
        by_pair.setdefault((line["workload"], line["contender"]), []).append(
            line["items_per_second"]
        )
    return by_pair


def report(results: list[dict], about: dict) -> Iterator[str]:
    """Yield the lines of a Markdown table, then notes on workloads, machine and versions."""
    by_pair = rates(results)
    yield "| workload | contender | median M/s | min | max | rounds | batchqueue ÷ contender |"
    yield "|---|---|---:|---:|---:|---:|---:|"
    for (workload, name), values in by_pair.items():
        middle = statistics.median(values)
        ours = by_pair.get((workload, OURS))
        ratio = f"{statistics.median(ours) / middle:.2f}" if ours else ""
        figures = " | ".join(f"{value / 1e6:.1f}" for value in (middle, min(values), max(values)))
        yield f"| {workload} | {LABELS[name]} | {figures} | {len(values)} | {ratio} |"
    yield ""
    yield from spread(results)
    for workload in dict.fromkeys(workload for workload, _ in by_pair):
        yield note(
            f"*{workload}*: {WORKLOADS[workload]}; no-op handlers, producers wait while a "
            "partition is full."
        )
    for (workload, name), values in by_pair.items():
        if name in JDK and workload in ORIGINAL:
            low, high = ORIGINAL[workload]
            times = statistics.median(values) / high
            yield note(
                f"{LABELS[name]}, {workload}: {times:.2f} of the upper end of the Java original's "
                f"{low / 1e6:g} to {high / 1e6:g} M/s."
            )
    versions = ", ".join(f"{name} {version}" for name, version in about["versions"].items())
    busy = about["busy_with_other_work"]
    yield note(f"{about['cpu']}, {about['cores']} cores; {about['rustc']}; {about['java']}.")
    yield note(f"Tuned JVM: {about['java_options']}.")
    yield note(f"{versions}.")
    yield note(
        f"Other processes kept {busy['median']:.0%} of the cores busy before the runs "
        f"(at most {busy['max']:.0%})."
    )


def spread(results: list[dict]) -> Iterator[str]:
    """Yield a table of what may explain slow rounds, of the contenders that count it."""
    counted: dict[tuple[str, str], list[dict]] = {}
    for line in results:
        if "sleeps" in line:
            counted.setdefault((line["workload"], line["contender"]), []).append(line)
    if not counted:
        return
    yield note(
        "The slowest and the quickest round: how often the drain threads slept and were preempted, "
        "and how long a cache line took just before from one core to another and back. If the host "
        "of a virtual machine moves its cores apart, each exchange between threads costs more."
    )
    yield ""
    yield "| workload | contender | max ÷ min | sleeps | preemptions | exchange, ns |"
    yield "|---|---|---:|---:|---:|---:|"
    for (workload, name), lines in counted.items():
        lines.sort(key=lambda line: line["items_per_second"])
        slowest, quickest = lines[0], lines[-1]
        ratio = quickest["items_per_second"] / slowest["items_per_second"]
        pairs = " | ".join(
            f"{slowest[key]:g} / {quickest[key]:g}"
            for key in ("sleeps", "preemptions", "exchange_ns")
        )
        yield f"| {workload} | {LABELS[name]} | {ratio:.2f} | {pairs} |"
    yield ""


def note(text: str) -> str:
    """Return an item of a Markdown list."""
    return textwrap.fill(
        f"* {text}", 100, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
    )


def plot(results: list[dict], about: dict, path: Path) -> None:
    """Draw a panel per workload: the median as a bar, each measured round as a dot."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    by_pair = rates(results)
    workloads = list(dict.fromkeys(workload for workload, _ in by_pair))
    rows = [[name for name in LABELS if (workload, name) in by_pair] for workload in workloads]
    heights = [len(names) + 1 for names in rows]
    figure, panels = pyplot.subplots(
        len(workloads),
        figsize=(9, 1.2 + 0.36 * sum(heights)),
        height_ratios=heights,
        sharex=True,
        squeeze=False,
        layout="constrained",
    )
    for panel, workload, names in zip(panels[:, 0], workloads, rows, strict=True):
        for row, name in enumerate(names):
            values = [value / 1e6 for value in by_pair[workload, name]]
            panel.barh(
                row, statistics.median(values), color="#c8553d" if name == OURS else "#9fb3c8"
            )
            panel.plot(values, [row] * len(values), "o", color="#333333", markersize=3, alpha=0.6)
        panel.set_yticks(range(len(names)), [LABELS[name].replace("`", "") for name in names])
        panel.invert_yaxis()
        panel.set_title(f"{workload}\n{WORKLOADS[workload]}", loc="left", fontsize=9)
        panel.spines[["top", "right"]].set_visible(False)
    panels[-1, 0].set_xlabel("million items per second, no-op handlers: median, and each round")
    figure.suptitle(f"{about['cpu']}, {about['cores']} cores", x=0.01, ha="left", fontsize=9)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)


if __name__ == "__main__":
    main()
