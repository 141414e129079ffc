"""Downloads the jars of the Kafka brokers that tests start, and of Spark's package for Kafka.

Spark resolves them, as for `--packages`: an older broker and Spark's package into target/kafka, the
broker for groups into target/kafka-4. A second run does nothing. With `--if-possible`, a failed
download is not an error: tests that need a broker are then skipped.
"""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TARGET = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
PACKAGES = {
    "kafka": (
        "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0",
        "org.apache.kafka:kafka_2.13:3.9.1",
    ),
    "kafka-4": ("org.apache.kafka:kafka_2.13:4.3.1",),
}
"""The packages of each folder. They would replace each other's versions in one."""
PROVIDED = ("org.apache.hadoop:hadoop-client-api", "org.apache.hadoop:hadoop-client-runtime")
"""Spark already has them, and they are large."""


def main() -> int:
    """Download the jars that are not there.

    Each folder needs a separate process, because Spark's Java resolves packages when it starts.
    """
    if sys.argv[1:2] == ["--folder"]:
        return bring(sys.argv[2])
    for folder, packages in PACKAGES.items():
        done = TARGET / folder / "packages"
        if done.exists() and done.read_text() == str(packages):
            continue
        if subprocess.run([sys.executable, __file__, "--folder", folder], check=False).returncode:
            return 0 if "--if-possible" in sys.argv else 1
        done.write_text(str(packages))
    return 0


def bring(name: str) -> int:
    """Download the jars of a folder."""
    from pyspark.sql import SparkSession

    from batchqueue.spark import find_java_home

    os.environ["JAVA_HOME"] = str(find_java_home())
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    builder = (
        SparkSession.builder.master("local[1]")
        .config("spark.jars.ivy", str(TARGET / name))
        .config("spark.jars.packages", ",".join(PACKAGES[name]))
        .config("spark.jars.excludes", ",".join(PROVIDED))
        .config("spark.ui.enabled", "false")
    )
    try:
        builder.getOrCreate().stop()
    except Exception as error:
        print(f"cannot bring Kafka: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
