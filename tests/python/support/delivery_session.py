"""Delivers all rows by a stream and by a batch job, and stops a query whose handler hangs.

Arguments: the kind of session ("connect" or "new workers"), directory of the rows, directory for
results. The results: the logs of the handlers under `stream` and `batch`, and `facts.json`.
"""

import json
import os
import sys
import threading
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pyspark import cloudpickle
from pyspark.sql import SparkSession

import spark_support
from batchqueue.spark import (
    TaskInfo,
    find_java_home,
    for_each_partition,
    foreach_batch,
    local_session,
)
from spark_support import deliveries
from spark_support.waits import is_alive, wait_until

CONNECT, NEW_WORKERS = "connect", "new workers"
DEADLINE_S = 120


def connect_session() -> SparkSession:
    """A server of Spark Connect in this process, and a session of its client."""
    os.environ["JAVA_HOME"] = str(find_java_home())
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    os.environ["SPARK_TESTING"] = "1"  # makes the server choose a free port
    return SparkSession.builder.remote("local[2,4]").getOrCreate()


def new_workers_session() -> SparkSession:
    """A classic session that starts a Python process for each task."""
    os.environ["PYSPARK_SUBMIT_ARGS"] = "--conf spark.python.worker.reuse=false pyspark-shell"
    return local_session("new workers", "local[2,4]")


def becomes_true(condition: Callable[[], bool]) -> bool:
    try:
        wait_until(condition, deadline_s=DEADLINE_S)
    except TimeoutError:
        return False
    return True


def hanging(results: Path) -> Any:
    """Handlers that never return, and note their process."""

    def handlers(task: TaskInfo) -> dict[str, Any]:
        def hang(_: list[Any]) -> None:
            (results / "hanging.part").write_text(str(os.getpid()))
            (results / "hanging.part").rename(results / "hanging")
            threading.Event().wait()

        return dict.fromkeys(deliveries.KINDS, hang)

    return handlers


def main(kind: str, rows: Path, results: Path) -> None:
    spark = connect_session() if kind == CONNECT else new_workers_session()
    source = (
        spark.readStream.schema(deliveries.SCHEMA)
        .option("maxFilesPerTrigger", 1)
        .parquet(str(rows))
    )
    checkpoint = str(results / "checkpoint")
    facts: dict[str, Any] = {"session": type(spark).__module__}

    # A query that hangs in its first epoch can be stopped, and leaves no worker.
    function = foreach_batch(hanging(results), type_column="kind", query_id="named")
    query = (
        source.writeStream.foreachBatch(function).option("checkpointLocation", checkpoint).start()
    )
    facts["hung"] = becomes_true((results / "hanging").exists)
    stopping = threading.Thread(target=query.stop, daemon=True)
    stopping.start()
    stopping.join(DEADLINE_S)
    facts["stopped"] = not stopping.is_alive() and not query.isActive
    worker = int((results / "hanging").read_text())
    facts["worker is gone"] = becomes_true(lambda: not is_alive(worker))

    # Started again, it delivers everything.
    summaries = results / "summaries.jsonl"

    def note(summary: Any) -> None:  # with Connect in a process of the server
        with summaries.open("a") as file:
            print(json.dumps({**asdict(summary), "process": os.getpid()}), file=file)

    function = foreach_batch(
        deliveries.recorders(results / "stream"),
        type_column="kind",
        query_id="named",
        on_summary=note,
    )
    writer = source.writeStream.foreachBatch(function).option("checkpointLocation", checkpoint)
    writer.trigger(availableNow=True).start().awaitTermination()

    df = spark.read.parquet(str(rows)).repartition(3)
    batch = for_each_partition(
        df, deliveries.item_recorders(results / "batch"), items=deliveries.items, epoch=3
    )
    facts["batch"] = asdict(batch)
    try:
        for_each_partition(df, lambda _: {int: len}, items=deliveries.items)
    except Exception as error:
        facts["error"] = f"{type(error).__name__}: {error}"
    facts["driver"] = os.getpid()
    (results / "facts.json").write_text(json.dumps(facts))
    spark.stop()


if __name__ == "__main__":
    cloudpickle.register_pickle_by_value(spark_support)
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
