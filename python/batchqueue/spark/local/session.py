"""`local_session`: Spark on this machine, whose workers run the Python of this process."""

import os
import sys
import tempfile
from pathlib import Path

from pyspark.sql import SparkSession

from batchqueue.spark.local.java import find_java_home

_LOGGING = Path(__file__).with_name("log4j2.properties").as_uri()


def local_session(app_name: str, master: str = "local[*,4]") -> SparkSession:
    """Start a Spark session on this machine, or return the running one.

    Its workers run this Python, its time zone is UTC, it listens on the loopback interface only,
    and it logs errors only. For this it sets `JAVA_HOME`, `PYSPARK_PYTHON` and `SPARK_LOCAL_IP` in
    the environment of this process.

    Args:
        app_name: Shown in Spark's logs.
        master: Threads and attempts per task. Default: a thread for each core, and 4 attempts;
            plain "local[*]" never retries a task.

    Returns:
        The session; stop it with `stop()`.

    Raises:
        ConfigError: Spark can use none of the Javas that were found.
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
