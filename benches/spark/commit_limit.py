"""The bytes of commit messages that a driver survives: the reason for maxCommitBytes' default.

Each size is tried in a new Spark with the default heap of 1 GB: eight tasks return messages of
incompressible bytes, and the commit counts them. `make bench-commit-limit` runs it in three
minutes.
"""

import argparse
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark import cloudpickle
from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from batchqueue.spark import local_session

MB = 1024 * 1024
TASKS = 8


@dataclass
class Message(WriterCommitMessage):
    """The bytes of a task."""

    content: bytes


class Writer(DataSourceArrowWriter):
    """Sends `size` bytes from each task."""

    def __init__(self, size: int) -> None:
        self.size = size

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        for _ in iterator:
            pass
        return Message(os.urandom(self.size))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        arrived = sum(len(message.content) for message in messages if isinstance(message, Message))
        if arrived != self.size * TASKS:
            raise ValueError(f"{arrived} bytes arrived")


class Source(DataSource):
    """A sink that drops rows and sends messages."""

    @classmethod
    def name(cls) -> str:
        return "messages"

    def writer(self, schema: StructType, overwrite: bool) -> Writer:
        return Writer(int(self.options["size"]))


def main() -> None:
    """Try all sizes, each in its own process."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "sizes", nargs="*", type=int, default=[64, 128, 256, 384, 512], help="MB of all messages"
    )
    parser.add_argument("--here", action="store_true", help="try the size in this process")
    args = parser.parse_args()
    if args.here:
        send(args.sizes[0])
        return
    for size in args.sizes:
        command = [sys.executable, __file__, "--here", str(size)]
        tried = subprocess.run(command, check=False, capture_output=True, text=True, timeout=300)
        reason = next((line for line in tried.stderr.splitlines() if "OutOfMemory" in line), "")
        outcome = "taken" if tried.returncode == 0 else f"failed: {reason.strip()[:90]}"
        print(f"{size:4} MB: {outcome}", flush=True)


def send(size: int) -> None:
    """Send messages of `size` MB in total."""
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    spark = local_session("messages", "local[2]")
    spark.dataSource.register(Source)
    rows = spark.range(TASKS).repartition(TASKS)
    rows.write.format("messages").mode("append").option("size", size * MB // TASKS).save()
    spark.stop()


if __name__ == "__main__":
    main()
