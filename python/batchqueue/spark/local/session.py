"""`local_session`: a Spark on this machine, set up so that the workers run what this process runs."""

import os
import sys
import tempfile
from pathlib import Path

from pyspark.sql import SparkSession

from batchqueue.spark.local.java import find_java_home

_LOGGING = Path(__file__).with_name("log4j2.properties").as_uri()


def local_session(app_name: str, master: str = "local[*,4]") -> SparkSession:
    """Start a Spark session on this machine, or return the one that runs.

    Its workers run this Python, its times are UTC, it listens on the loopback interface only, and
    it logs errors only. To that end it sets `JAVA_HOME`, `PYSPARK_PYTHON` and `SPARK_LOCAL_IP` in
    the environment of this process.

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
    return (
        SparkSession.builder.appName(app_name)
        .master(master)
        .config("spark.driver.extraJavaOptions", f"-Dlog4j2.configurationFile={_LOGGING}")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", "4")  # the default, 200, is for clusters
        .config("spark.sql.warehouse.dir", tempfile.gettempdir())  # else in the working directory
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .getOrCreate()
    )
