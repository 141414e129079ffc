"""Options of Java machines that live for seconds, and an archive of the classes they load.

A test's Spark session spends its time on loading classes and on compiling code that runs only a few
times. The quick compiler and an archive of loaded classes save two thirds of it. Run as a program,
this module writes the archive: `make test-environment` does that.
"""

import os
import sys
import tempfile
from pathlib import Path

from pages import ROOT

ARCHIVE = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")).absolute() / "spark-classes.jsa"
SHORT_LIVED = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -XX:-UsePerfData"


def short_lived() -> dict[str, str]:
    """Returns environment variables for everything that starts a Spark driver.

    A machine with other classes, such as another version of Spark, ignores the archive silently.
    """
    archive = f"-XX:SharedArchiveFile={ARCHIVE} -Xlog:disable"
    return {
        "SPARK_SUBMIT_OPTS": f"{SHORT_LIVED} {archive if ARCHIVE.exists() else ''}",
        "SPARK_LAUNCHER_OPTS": SHORT_LIVED,
    }


def write_archive() -> None:
    """Runs a sample of what tests do with Spark, and archives the classes that it needs."""
    from batchqueue.spark import local_session

    ARCHIVE.parent.mkdir(parents=True, exist_ok=True)
    new = ARCHIVE.with_suffix(".new")
    os.environ["SPARK_SUBMIT_OPTS"] = f"{SHORT_LIVED} -XX:ArchiveClassesAtExit={new} -Xlog:disable"
    spark = local_session("archive", "local[2,4]")
    with tempfile.TemporaryDirectory() as folder:
        rows = f"{folder}/rows"
        numbers = spark.range(100).selectExpr(
            "id", "id % 7 AS key", "'x' AS text", "id / 3 AS real"
        )
        numbers.write.partitionBy("key").parquet(rows)
        spark.read.parquet(rows).createOrReplaceTempView("numbers")
        spark.sql(
            "SELECT key, sum(real), max(text), percentile_approx(id, 0.5), collect_list(text) "
            "FROM numbers WHERE id > 3 GROUP BY key ORDER BY key"
        ).collect()
        spark.read.parquet(rows).mapInArrow(lambda batches: batches, "id long").count()
        spark.sparkContext.parallelize(range(4), 2).map(str).collect()
        stream = spark.readStream.schema("id long, text string").parquet(rows)
        query = (
            stream.writeStream.foreachBatch(lambda df, _epoch: df.foreachPartition(list))
            .option("checkpointLocation", f"{folder}/checkpoint")
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
    spark.stop()
    gateway = spark.sparkContext._gateway
    assert gateway is not None
    gateway.shutdown()
    gateway.proc.stdin.close()  # the end of its input ends the machine, which then writes
    gateway.proc.wait()
    new.replace(ARCHIVE)


if __name__ == "__main__":
    sys.exit(write_archive())
