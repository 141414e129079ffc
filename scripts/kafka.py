"""Downloads the jars of the Kafka broker that tests start, and of Spark's package for Kafka.

Spark resolves them into target/kafka, as for `--packages`; a second run does nothing. With
`--if-possible`, a failed download is not an error: tests that need a broker are then skipped.
"""

import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDER = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "kafka"
PACKAGES = ("org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0", "org.apache.kafka:kafka_2.13:3.9.1")
PROVIDED = ("org.apache.hadoop:hadoop-client-api", "org.apache.hadoop:hadoop-client-runtime")
"""Spark already has them, and they are large."""


def main() -> int:
    """Download the jars, unless they are there."""
    done = FOLDER / "packages"
    if done.exists() and done.read_text() == str(PACKAGES):
        return 0
    from pyspark.sql import SparkSession

    from batchqueue.spark import find_java_home

    os.environ["JAVA_HOME"] = str(find_java_home())
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    builder = (
        SparkSession.builder.master("local[1]")
        .config("spark.jars.ivy", str(FOLDER))
        .config("spark.jars.packages", ",".join(PACKAGES))
        .config("spark.jars.excludes", ",".join(PROVIDED))
        .config("spark.ui.enabled", "false")
    )
    try:
        builder.getOrCreate().stop()
    except Exception as error:
        print(f"cannot bring Kafka: {error}", file=sys.stderr)
        return 0 if "--if-possible" in sys.argv else 1
    done.write_text(str(PACKAGES))
    return 0


if __name__ == "__main__":
    sys.exit(main())
