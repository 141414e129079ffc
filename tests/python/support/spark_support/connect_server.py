"""A Spark Connect server in a new process, on the loopback interface."""

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyspark

from batchqueue.spark import find_java_home

STARTED = re.compile(r"Spark Connect server started at: \S*?(\d+)\s")
DEADLINE_S = 180


@contextmanager
def connect_server(directory: Path) -> Iterator[str]:
    """Start a server; yield its address, and kill it at the end.

    Args:
        directory: Where the server works and writes its log.
    """
    spark_home = Path(pyspark.__file__).parent
    settings = {
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": "0",
        "spark.ui.enabled": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "4",
        "spark.sql.warehouse.dir": str(directory),
    }
    command: list[str | Path] = [spark_home / "bin" / "spark-submit", "--master", "local[2,4]"]
    command += ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer"]
    for name, value in settings.items():
        command += ["--conf", f"{name}={value}"]
    environment = {
        **os.environ,
        "JAVA_HOME": str(find_java_home()),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_HOME": str(spark_home),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    log = directory / "log"
    with log.open("wb") as output:
        server = subprocess.Popen(
            command, stdout=output, stderr=output, env=environment, cwd=directory
        )
    try:
        yield f"sc://127.0.0.1:{port_in(log, server)}"
    finally:
        # SIGTERM would let it wait for the sessions of its clients.
        server.kill()
        server.wait()


def port_in(log: Path, server: subprocess.Popen[bytes]) -> str:
    deadline = time.monotonic() + DEADLINE_S
    while (started := STARTED.search(log.read_text())) is None:
        assert server.poll() is None, log.read_text()
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.05)
    return started[1]
