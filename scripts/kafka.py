"""Brings the Kafka broker that tests start, and Spark's package for Kafka, as jars.

Spark resolves them as it does for `--packages`, into target/kafka; a second run does nothing. Give
`--if-possible` to succeed without them: tests that need a broker are skipped then.
"""

import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDER = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "kafka"
PACKAGES = ("org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0", "org.apache.kafka:kafka_2.13:3.9.1")
PROVIDED = ("org.apache.hadoop:hadoop-client-api", "org.apache.hadoop:hadoop-client-runtime")
"""Spark has them, and they are large."""


def main() -> int:
    """Bring them."""
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
