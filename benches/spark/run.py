"""Measures the Spark sink in its four ways beside Spark alone; writes a table and a plot.

All contenders run in one session, one after the other in each round; figures are medians. `make
bench-spark` runs it in twelve minutes; the machine should be idle otherwise. The result of every
way must equal Spark SQL's before its time counts.
"""

import argparse
import functools
import itertools
import os
import platform
import re
import shutil
import statistics
import subprocess
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from string import Template
from typing import Any

import contenders
import pyspark
import workload
from ledger import COMMITS, Ledger
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from stored import DAYS, ROWS, Stored

from batchqueue.aggregation import Metrics
from batchqueue.outputs import SqliteStore
from batchqueue.spark import MetricsWriter, local_session, register

ROOT = Path(__file__).resolve().parents[2]
TEMPLATE = ROOT / "scripts" / "templates" / "spark.md"
Row = tuple[str, str, str, str, bool]
HEAD = "| # | workload | target | measured | met |\n|---:|---|---|---|---|"
EPOCHS = 20
FEW_EPOCHS, MANY_EPOCHS = 10, 10_000
TASKS = 2


def main() -> None:
    """Measure all contenders, print the table, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="rounds of each row (5)")
    parser.add_argument(
        "--rows", type=int, default=workload.ROWS, help="rows of the table (5 million)"
    )
    parser.add_argument("--only", default="", help="contenders whose name matches")
    parser.add_argument("--page", type=Path, help="write the page here, and a plot beside it")
    args = parser.parse_args()
    warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas", FutureWarning)
    for module in (contenders, workload):
        cloudpickle.register_pickle_by_value(module)
    with tempfile.TemporaryDirectory() as directory:
        spark = local_session("bench", f"local[{TASKS}]")
        bench = Bench(spark, Path(directory), args.rows)
        measures = {
            name: measure
            for name, measure in bench.measures().items()
            if re.search(args.only, name)
        }
        seconds = rounds(args.rounds, measures)
        spark.stop()
    if args.only:
        return
    table = rows_of(seconds, args.rows)
    print("\n".join((HEAD, *map(line, table))))
    if args.page:
        args.page.write_text(page(table, seconds, args.rows), encoding="utf-8")
        plot(seconds, args.rows, args.page.with_suffix(".png"))


class Bench:
    """The contenders, in one session. Each returns the seconds that it took."""

    def __init__(self, spark: SparkSession, directory: Path, rows: int) -> None:
        self.spark = spark
        self.directory = directory
        self.rows = rows
        table = spark.read.parquet(str(workload.write_rows(directory / "rows", rows, 4)))
        # As wide as each other: a sink gets all columns.
        self.table = table.select("id", "type", "key", "value")
        self.pairs = table.select("id", "pair", "value")
        self.places = table.select("id", *workload.PLACE, "value")
        self.epochs = str(workload.write_rows(directory / "epochs", EPOCHS * 1_000, EPOCHS))
        self.numbers = itertools.count()
        spark.dataSource.register(contenders.CountingSource)
        self.expected = {
            key: {row[0]: tuple(row[1:]) for row in groups(of, key).collect()}
            for key, of in (("key", self.table), ("pair", self.pairs))
        }

    def measures(self) -> dict[str, Callable[[], float]]:
        """Return the contenders, by name."""
        stored = Stored(self.spark, self.directory / "stored")
        return {
            "groupBy": functools.partial(self.noop, "key"),
            "spark": functools.partial(self.pushed_down, "aggregators"),
            "groupBy, 30,000": functools.partial(self.noop, "pair"),
            "spark, 30,000": functools.partial(self.pushed_down, "30,000 groups"),
            "counting sink": functools.partial(self.counting, self.table),
            "counting sink, 30,000": functools.partial(self.counting, self.pairs),
            "mapInArrow": self.map_in_arrow,
            "sink, aggregators": functools.partial(self.sink, "aggregators"),
            "sink, aggregators, 30,000": functools.partial(self.sink, "30,000 groups"),
            "sink, three keys": functools.partial(self.sink, "three keys"),
            "sink, arrow": functools.partial(self.sink, "arrow"),
            "sink, objects": functools.partial(self.sink, "objects"),
            "foreachPartition": self.foreach_partition,
            "stream, counting": functools.partial(self.stream, "counting"),
            "stream, sink": functools.partial(self.stream, "sink"),
            "commit, few": Ledger(self.directory / "few", FEW_EPOCHS).commits,
            "read, format": stored.by_format,
            "read, Spark": stored.by_spark,
            "commit, many": Ledger(self.directory / "many", MANY_EPOCHS).commits,
        }

    def noop(self, key: str) -> float:
        # The time includes planning, as that of the sink does.
        table = self.table if key == "key" else self.pairs
        return timed(lambda: groups(table, key).write.format("noop").mode("overwrite").save())

    def counting(self, table: DataFrame) -> float:
        return timed(table.write.format("counting").mode("append").save)

    def map_in_arrow(self) -> float:
        def count(batches: Any) -> Any:
            import pyarrow as pa

            yield pa.record_batch({"rows": [sum(batch.num_rows for batch in batches)]})

        return timed(self.table.mapInArrow(count, "rows long").collect)

    def foreach_partition(self) -> float:
        return timed(functools.partial(self.table.foreachPartition, workload.handle_rows))

    def sink(self, way: str) -> float:
        store = self.new_store()
        name = register(self.spark, workload.job(way, store))
        table = self.rows_of(way)
        seconds = timed(table.write.format(name).mode("append").option("txnId", "bench").save)
        self.check(store, way)
        return seconds

    def pushed_down(self, way: str) -> float:
        store = self.new_store()
        writer = MetricsWriter(workload.job(way, store), l1="spark")
        seconds = timed(functools.partial(writer.write_batch, self.rows_of(way), txn_id="bench"))
        self.check(store, way)
        return seconds

    def rows_of(self, way: str) -> DataFrame:
        return {"30,000 groups": self.pairs, "three keys": self.places}.get(way, self.table)

    def stream(self, sink: str) -> float:
        name = (
            "counting"
            if sink == "counting"
            else register(self.spark, workload.job("aggregators", self.new_store()))
        )
        source = (
            self.spark.readStream.schema(workload.SCHEMA)
            .option("maxFilesPerTrigger", 1)
            .parquet(self.epochs)
        )
        checkpoint = self.directory / f"checkpoint-{next(self.numbers)}"
        writer = source.writeStream.format(name).option("checkpointLocation", str(checkpoint))
        seconds = timed(lambda: writer.trigger(availableNow=True).start().awaitTermination())
        done = len(list((checkpoint / "commits").glob("[0-9]*")))
        assert done == EPOCHS, f"{done} epochs"
        shutil.rmtree(checkpoint)
        return seconds

    def new_store(self) -> Path:
        """Create an empty store, because a stream finds its store in place."""
        path = self.directory / f"metrics-{next(self.numbers)}.db"
        SqliteStore(path).prepare()
        return path

    def check(self, store: Path, way: str) -> None:
        """Compare the store with Spark SQL; the time of a wrong result is worthless."""
        stored = SqliteStore(store)
        by_type = {f"{kind}/": metric for kind, metric in workload.METRICS.items()}
        metrics = by_type if way == "objects" else {"": workload.WAYS[way]["metrics"][0]}
        found = {
            prefix + _pair(partial): (partial.total, partial.count)
            for prefix, metric in metrics.items()
            for partial in stored.read(metric, "bench")
        }
        key = "key" if way in ("aggregators", "arrow") else "pair"
        assert found == self.expected[key], f"{way} differs from Spark SQL"
        for file in store.parent.glob(f"{store.name}*"):
            file.unlink()


def _pair(partial: Metrics) -> str:
    """Return the entity of a partial, that of a place as the pair of type and key."""
    if not partial.key_columns:
        return partial.entity
    kind, shelf, slot = partial.key_values
    return f"{kind}/key-{int(slot) * workload.SHELVES + int(shelf):04d}"


def groups(table: DataFrame, key: str) -> DataFrame:
    return table.groupBy(key).agg(F.sum("value").alias("total"), F.count("value").alias("count"))


def timed(action: Callable[[], Any]) -> float:
    begin = time.perf_counter()
    action()
    return time.perf_counter() - begin


def rounds(times: int, measures: dict[str, Callable[[], float]]) -> dict[str, list[float]]:
    """Run each measure once in every round, after a round that warms up the JVM."""
    results: dict[str, list[float]] = {name: [] for name in measures}
    for number in range(times + 1):
        for name, measure in measures.items():
            seconds = measure()
            print(f"round {number} of {times}: {name}: {seconds:.3f} s", flush=True)
            if number:
                results[name].append(seconds)
    return results


def rows_of(seconds: dict[str, list[float]], rows: int) -> list[Row]:
    """Return the rows of the table, with their targets."""
    took = {name: statistics.median(times) for name, times in seconds.items()}

    def row(number: str, what: str, name: str, beside: str, least: float) -> Row:
        ratio = took[beside] / took[name]
        measured = f"{ratio:.2f} x: {rate(took[name], rows)} beside {rate(took[beside], rows)}"
        return (
            number,
            what,
            f"at least {least} x {BESIDE[beside]}",
            measured,
            ratio >= least,
        )

    epoch_ms = 1_000 * (took["stream, sink"] - took["stream, counting"]) / EPOCHS
    both = " and ".join(
        f"{1_000 * took[name] / EPOCHS:.0f} ms" for name in ("stream, sink", "stream, counting")
    )
    return [
        row("1", "sink, built-in aggregators", "sink, aggregators", "counting sink", 0.9),
        row(
            "1",
            "the same, 30,000 groups of declared metrics",
            "sink, aggregators, 30,000",
            "counting sink, 30,000",
            0.95,
        ),
        row(
            "1",
            "the same, keys of three columns",
            "sink, three keys",
            "sink, aggregators, 30,000",
            round(1 / 1.15, 2),
        ),
        row("2", "sink, Python handlers on Arrow", "sink, arrow", "counting sink", 0.7),
        row(
            "3",
            "sink, Python handlers on objects, 30,000 groups",
            "sink, objects",
            "foreachPartition",
            2.5,
        ),
        row("4", "L1 in Spark SQL", "spark", "groupBy", 0.8),
        row("4", "the same, 30,000 groups", "spark, 30,000", "groupBy, 30,000", 0.9),
        (
            "5",
            f"stream, {EPOCHS} epochs of 1,000 rows: extra time per epoch over a counting sink",
            "at most 250 ms",
            f"{epoch_ms:.0f} ms: {both} per epoch",
            epoch_ms <= 250,
        ),
        (
            "6",
            f"commit to `ParquetStore`, {MANY_EPOCHS:,} epochs in its ledger",
            f"at most 1.5 x as long as with {FEW_EPOCHS}",
            f"{took['commit, many'] / took['commit, few']:.2f} x: "
            f"{1_000 * took['commit, many'] / COMMITS:.1f} ms beside "
            f"{1_000 * took['commit, few'] / COMMITS:.1f} ms",
            took["commit, many"] <= 1.5 * took["commit, few"],
        ),
        (
            "7",
            f"a sink of {ROWS:,} rows in {DAYS} files of `ParquetStore`, read back",
            "at least 0.5 x `spark.read.parquet` of the files",
            f"{took['read, Spark'] / took['read, format']:.2f} x: "
            f"{rate(took['read, format'], ROWS)} beside {rate(took['read, Spark'], ROWS)}",
            took["read, Spark"] >= 0.5 * took["read, format"],
        ),
    ]


BESIDE = {
    "counting sink": "an Arrow sink that counts rows",
    "counting sink, 30,000": "an Arrow sink that counts the same rows",
    "foreachPartition": "`foreachPartition` over Rows into the same handlers",
    "groupBy": "the same `groupBy` into Spark's no-op sink",
    "groupBy, 30,000": "the same `groupBy` into Spark's no-op sink",
    "sink, aggregators, 30,000": "as many groups by one column",
}


def rate(seconds: float, rows: int) -> str:
    return f"{rows / seconds / 1e6:.2f} M rows/s"


def line(row: Row) -> str:
    """Return a row of the table."""
    *cells, met = row
    return f"| {' | '.join(cells)} | {'yes' if met else 'no'} |"


LABELS = {
    "groupBy": "Spark SQL alone: groupBy into the no-op sink",
    "spark": "L1 in Spark SQL",
    "groupBy, 30,000": "Spark SQL alone, 30,000 groups",
    "spark, 30,000": "L1 in Spark SQL, 30,000 groups",
    "counting sink": "an Arrow sink that counts rows",
    "mapInArrow": "mapInArrow that counts rows",
    "sink, aggregators": "sink, built-in aggregators",
    "sink, aggregators, 30,000": "sink, built-in aggregators, 30,000 groups",
    "sink, three keys": "sink, built-in aggregators, 30,000 groups by three columns",
    "sink, arrow": "sink, Python handlers on Arrow",
    "sink, objects": "sink, Python handlers on objects, 30,000 groups",
    "foreachPartition": "foreachPartition over Rows, the same handlers",
}
"""The contenders of the second table, the fastest first."""
WITHOUT_US = ("groupBy", "groupBy, 30,000", "counting sink", "mapInArrow", "foreachPartition")


def page(table: list[Row], seconds: dict[str, list[float]], rows: int) -> str:
    """Return docs/figures/spark.md."""
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    python = f"Python {platform.python_version()}, pyspark {pyspark.__version__}"
    all_rates = "\n".join(
        f"| {label} | {rate(statistics.median(seconds[name]), rows)} | "
        f"{min(seconds[name]):.2f} to {max(seconds[name]):.2f} |"
        for name, label in LABELS.items()
    )
    more, less = (
        statistics.median(seconds[f"sink, aggregators{groups}"]) for groups in (", 30,000", "")
    )
    per_group_us = 1e6 * (more - less) / (len(workload.METRICS) * workload.KEYS)
    return Template(TEMPLATE.read_text(encoding="utf-8")).substitute(
        machine=f"{os.cpu_count()} cores, {python}, commit {commit.stdout.strip()}",
        rows=f"{rows:,}",
        rounds=len(next(iter(seconds.values()))),
        table="\n".join((HEAD, *map(line, table))),
        contenders="\n".join(
            ("| contender | rows per second | seconds, min to max |", "|---|---:|---:|", all_rates)
        ),
        per_group_us=f"{per_group_us:.0f}",
    )


def plot(seconds: dict[str, list[float]], rows: int, path: Path) -> None:
    """Draw the contenders as bars on a logarithmic scale."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    names = list(reversed(LABELS))
    values = [rows / statistics.median(seconds[name]) / 1e6 for name in names]
    figure, axes = plt.subplots(figsize=(9, 3.8))
    bars = axes.barh(
        range(len(names)),
        values,
        0.7,
        color=["#b0b0b0" if name in WITHOUT_US else "#1f77b4" for name in names],
    )
    axes.bar_label(bars, [f"{value:,.2f}" for value in values], padding=3, fontsize=8)
    axes.set_yticks(range(len(names)), [LABELS[name] for name in names], fontsize=8)
    axes.set_xscale("log")
    axes.set_xlabel("million rows per second (logarithmic); grey: without batchqueue")
    axes.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    main()
