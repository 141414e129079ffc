"""Lists the files of the package that a record of a group, and a Spark micro-batch, pass through.

A file counts if one of its functions is called while a running worker handles one more record and
commits it, or while Spark writes one epoch, in any of its processes. `python scripts/walks.py`
prints both lists; it needs the extra `spark`.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1] / "python" / "batchqueue"

TRACE = """
import inspect, os, sys, threading

package, folder = os.environ["WALK_OF"], os.environ["WALK_INTO"]
seen = set()
pauses = False


def note(frame, event, _):
    code = frame.f_code
    file = code.co_filename
    if file in seen or not file.startswith(package) or pauses:
        return
    if code.co_flags & inspect.CO_OPTIMIZED and not is_importing(frame):
        seen.add(file)
        with open(f"{folder}/{os.getpid()}", "a", encoding="utf-8") as files:
            files.write(f"{file}\\n")


def is_importing(frame):
    while frame is not None:
        if frame.f_code.co_name == "<module>" and frame.f_code.co_filename.startswith(package):
            return True
        frame = frame.f_back
    return False


threading.setprofile(note)
if os.environ.get("WALK_MAIN"):
    sys.setprofile(note)
"""
"""Runs at the start of every interpreter, as `sitecustomize`."""

RECORD = """
import sitecustomize
import threading

from batchqueue.groups import GroupMonitor, MemoryStreams, Worker

orders = MemoryStreams("orders", partitions=1)
worker = Worker("billing", orders, codec="json")
handled = threading.Semaphore(0)


@worker.handler
def store(batch):
    handled.release()


def handle_one(monitor):
    with orders.producer(codec="json") as producer:
        producer.send({"cents": 250})
    handled.acquire()
    while monitor.metrics().lag:
        pass


with worker, GroupMonitor("billing", orders) as monitor:
    sitecustomize.pauses = True
    handle_one(monitor)
    sitecustomize.pauses = False
    handle_one(monitor)
    sitecustomize.pauses = True
"""

MICRO_BATCH = """
import sitecustomize

sitecustomize.pauses = True

from batchqueue.aggregation import CountMetrics, metric_type
from batchqueue.outputs import SqliteStore
from batchqueue.spark import AggregationJob, local_session, register

DEPARTURES = metric_type("departures", CountMetrics)


def items(flights):
    for carrier, hour in zip(flights["carrier"].to_pylist(), flights["hour"].to_pylist()):
        yield DEPARTURES(carrier, hour)


store = SqliteStore("metrics.sqlite")
job = AggregationJob(name="flights", items=items, metrics=[DEPARTURES], store=store)
spark = local_session("walk", "local[2]")
flights = spark.createDataFrame([("UA", 0), ("AA", 3600)], "carrier string, hour long")
name = register(spark, job)
sitecustomize.pauses = False
flights.write.format(name).option("txnId", "monday").mode("append").save()
sitecustomize.pauses = True
"""


def main() -> None:
    """Print both lists."""
    argparse.ArgumentParser(description=__doc__.partition("\n")[0]).parse_args()
    for what, program, main_thread in (
        ("a record", RECORD, ""),
        ("a micro-batch", MICRO_BATCH, "1"),
    ):
        files = walk(program, main_thread)
        print(f"{what}: {len(files)} files", *files, sep="\n  ")


def walk(program: str, main_thread: str) -> list[str]:
    """Return the files that a program passes through."""
    with tempfile.TemporaryDirectory() as folder:
        into = Path(folder) / "files"
        into.mkdir()
        (Path(folder) / "sitecustomize.py").write_text(TRACE, encoding="utf-8")
        env = os.environ | {
            "WALK_OF": f"{PACKAGE}/",
            "WALK_INTO": str(into),
            "WALK_MAIN": main_thread,
            "PYTHONPATH": os.pathsep.join([folder, str(PACKAGE.parent)]),
        }
        subprocess.run([sys.executable, "-c", program], cwd=folder, env=env, check=True)
        files = {line for file in into.iterdir() for line in file.read_text().splitlines()}
    return sorted(str(Path(file).relative_to(PACKAGE)) for file in files)


if __name__ == "__main__":
    main()
