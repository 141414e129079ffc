"""The four stores beside each other: merging new partials, stored partials, and few into many.

Workload: partials of `CountMetrics` with random counts, 1,000 entities by the hour; a merge and a
ledger entry per transaction; stores on the disk of this machine with everything synced, and a new
PostgreSQL server. Figures are medians.

    python benches/stores/run.py                    # about a minute
    python benches/stores/run.py --partials 10000   # quicker
"""

import argparse
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "python" / "support"))
import psycopg
from pyiceberg.catalog import load_catalog

from batchqueue.aggregation import CountMetrics, metric_type
from batchqueue.outputs import IcebergStore, ParquetStore, PostgresStore, SqliteStore
from outputs_support.postgres_server import started_server

COUNT = metric_type("bench.count", CountMetrics)
ENTITIES = 1_000
HOUR = 3_600
FEW = 100


def partials(number, first_hour=0):
    """Make partials, the hours of all entities one after the other."""
    counts = random.Random(first_hour)
    return [
        COUNT(
            f"entity {index % ENTITIES}",
            (first_hour + index // ENTITIES) * HOUR,
            counts.randrange(10**6),
        )
        for index in range(number)
    ]


def seconds(store, epoch, metrics):
    began = time.perf_counter()
    with store.transaction() as transaction:
        transaction.merge(metrics)
        transaction.record("bench", epoch, {})
    return time.perf_counter() - began


def measure(store, number, rounds):
    """Return seconds to merge new partials, the same again, and few; and the number stored."""
    hours, epochs, times = (
        number // ENTITIES,
        iter(range(10_000)),
        {"new": [], "again": [], "few": []},
    )
    for turn in range(rounds):
        times["new"].append(seconds(store, next(epochs), partials(number, turn * hours)))
        times["again"].append(seconds(store, next(epochs), partials(number, turn * hours)))
    for _ in range(3 * rounds):
        times["few"].append(seconds(store, next(epochs), partials(FEW, rounds * hours - 1)))
    began = time.perf_counter()
    stored = len(store.read(COUNT))
    return {name: statistics.median(seconds) for name, seconds in times.items()} | {
        "read": time.perf_counter() - began,
        "stored": stored,
    }


def postgres_size(server):
    with psycopg.connect(server.conninfo()) as connection:
        return connection.execute("SELECT pg_total_relation_size('count_metrics')").fetchone()[0]


def iceberg_size(catalog, store):
    files = load_catalog(**catalog).load_table(store.table()).scan().plan_files()
    return sum(task.file.file_size_in_bytes for task in files)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--partials", type=int, default=100_000, help="in one transaction")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    columns = [
        f"{options.partials:,} new",
        "the same again",
        f"{FEW} of them",
        "read all",
        "bytes per partial",
    ]
    print(f"| store | {' | '.join(columns)} |\n|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        servers = started_server()
        server = next(servers)
        sqlite = SqliteStore(Path(folder) / "metrics.db")
        parquet = ParquetStore(Path(folder) / "metrics")
        catalog = {
            "name": "bench",
            "type": "sql",
            "uri": f"sqlite:///{folder}/catalog.db",
            "warehouse": f"file://{folder}/warehouse",
        }
        iceberg = IcebergStore("metrics", catalog=catalog)
        sizes = {
            sqlite: lambda: sqlite.path.stat().st_size,
            PostgresStore(server.conninfo()): lambda: postgres_size(server),
            parquet: lambda: sum(path.stat().st_size for path in parquet.files(COUNT)),
            iceberg: lambda: iceberg_size(catalog, iceberg),
        }
        for store, size in sizes.items():
            found = measure(store, options.partials, options.rounds)
            times = " | ".join(
                f"{found[name] * 1_000:,.0f} ms" for name in ("new", "again", "few", "read")
            )
            print(
                f"| `{type(store).__name__}` | {times} | {size() / found['stored']:.0f} |",
                flush=True,
            )
        servers.close()


if __name__ == "__main__":
    main()
