"""`local_session`: a Spark on this machine, set up so that the workers run what this process runs."""

import os
import sys
import tempfile

from pyspark.sql import SparkSession

from batchqueue.spark.java import find_java_home


def local_session(app_name: str, master: str = "local[*,4]") -> SparkSession:
    """Start, or find, a Spark session on this machine.

    Its workers run this Python, its times are UTC, it listens on the loopback interface, and logs only
    errors.

    Args:
        app_name: Shown in Spark's logs.
        master: Threads, and tries per task: plain "local[*]" never repeats a task that failed.

    Returns:
        The session; stop it with `stop()`.

    Raises:
        ConfigError: There is no Java that Spark can use.
    """
    os.environ["JAVA_HOME"] = str(find_java_home())
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    spark = (
        SparkSession.builder.appName(app_name)
        .master(master)
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", "4")  # the default, 200, is for clusters
        .config("spark.sql.warehouse.dir", tempfile.gettempdir())  # else in the working directory
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    return spark
