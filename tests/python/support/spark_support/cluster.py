"""Spark clusters of real processes on this machine, drivers that obey a test, and their end."""

import json
import os
import re
import select
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import pyspark

import batchqueue
import java_machines
from batchqueue.spark import find_java_home
from programs import CLUSTER_DRIVER
from spark_support.waits import wait_until

WORKERS = ("127.0.0.1", "127.0.0.2")
"""Their addresses: two attempts of a task need two hosts, and all of 127/8 is this machine."""

ORDER_DEADLINE_S = 180
START_DEADLINE_S = 120
_MARK = "BATCHQUEUE_TEST_PROCESSES"

CHECKOUT = str(Path(batchqueue.__file__).parents[1])
"""`PYTHONPATH` that finds the package of this process."""


class Processes:
    """All processes of the tests and their children, found by a mark that they inherit."""

    def __init__(self, folder: Path) -> None:
        """Make a Spark home for them.

        Args:
            folder: Empty. Gets the logs, and a Spark home whose `work` folder is not in the
                installed pyspark.
        """
        self.folder = folder
        self._mark = f"{_MARK}={uuid.uuid4()}"
        self.home = folder / "home"
        self.home.mkdir()
        for path in Path(pyspark.__file__).parent.iterdir():
            (self.home / path.name).symlink_to(path)

    def environment(self, **changes: str) -> dict[str, str]:
        """Return a process's environment, without other settings of Python or Spark than these."""
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("PYTHON", "PYSPARK", "SPARK", "VIRTUAL_ENV"))
        }
        mark, _, value = self._mark.partition("=")
        java_home = str(find_java_home())
        return {
            **kept,
            mark: value,
            "JAVA_HOME": java_home,
            "SPARK_HOME": str(self.home),
            "SPARK_LOCAL_IP": "127.0.0.1",
            **java_machines.short_lived(),
            **changes,
        }

    def start(
        self, name: str, command: Sequence[str | Path], **options: Any
    ) -> subprocess.Popen[bytes]:
        """Start a process that logs to a file of this name."""
        with self.log(name).open("ab") as log:
            options = {"stdout": log, "stdin": subprocess.DEVNULL, **options}
            return subprocess.Popen(command, stderr=log, start_new_session=True, **options)

    def run(self, name: str, command: Sequence[str | Path], **options: Any) -> None:
        """Run a command that must succeed, and soon.

        Raises:
            AssertionError: It did not; has its log.
        """
        process = self.start(name, command, **options)
        with showing(self.log(name)):
            try:
                code: int | str = process.wait(ORDER_DEADLINE_S)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                code = f"SIGKILL after {ORDER_DEADLINE_S} s"
            assert code == 0, f"{name} ended with {code}"

    def log(self, name: str) -> Path:
        """Return the log of a process."""
        return self.folder / f"{name}.log"

    def alive(self) -> list[int]:
        """Return the ids of all processes that have the mark."""
        found = []
        for process in Path("/proc").glob("[0-9]*"):
            try:
                if self._mark.encode() in (process / "environ").read_bytes().split(b"\0"):
                    found.append(int(process.name))
            except OSError:  # it has ended, or is another user's
                continue
        return found

    def reap(self) -> None:
        """Kill every process with the mark, including those that start meanwhile."""
        end = time.monotonic() + START_DEADLINE_S
        while alive := self.alive():
            assert time.monotonic() < end, f"processes {alive} do not die"
            for process in alive:
                try:
                    os.kill(process, signal.SIGKILL)
                except ProcessLookupError:
                    continue
            time.sleep(0.05)


@contextmanager
def standalone_cluster(processes: Processes) -> Iterator[str]:
    """Run a master and two workers with one core and 1 GB each; yields the master's URL."""
    options = f"{java_machines.SHORT_LIVED} -Dspark.master.rest.enabled=false"
    daemons = []

    def start(name: str, class_name: str, host: str, *arguments: str) -> None:
        command = [processes.home / "bin" / "spark-class", f"org.apache.spark.deploy.{class_name}"]
        command += ["--host", host, "--port", "0", "--webui-port", "0", *arguments]
        environment = processes.environment(
            SPARK_LOCAL_IP=host, SPARK_DAEMON_MEMORY="256m", SPARK_DAEMON_JAVA_OPTS=options
        )
        daemons.append(processes.start(name, command, env=environment))

    def logged(pattern: str) -> list[str]:
        return re.findall(pattern, processes.log("master").read_text())

    start("master", "master.Master", "127.0.0.1")
    with showing(processes.log("master")):
        url = r"Starting Spark master at (spark://[\d.:]+)"
        wait_until(lambda: len(logged(url)) == 1, "the master", START_DEADLINE_S)
        for host in WORKERS:
            folder = str(processes.folder / f"work-{host}")
            start(
                f"worker-{host}",
                "worker.Worker",
                host,
                "-c",
                "1",
                "-m",
                "1g",
                "-d",
                folder,
                *logged(url),
            )
        wait_until(
            lambda: len(logged("Registering worker")) == len(WORKERS),
            "the workers",
            START_DEADLINE_S,
        )
    yield logged(url)[0]
    for daemon in daemons:
        daemon.terminate()
    for daemon in daemons:
        daemon.wait(START_DEADLINE_S)


def conf(master: str, **changes: str) -> dict[str, str]:
    """Return the settings of a session: all on the loopback interface, one partition per file.

    Args:
        master: Its URL.
        changes: More settings, with "_" for "." in their names.
    """
    return {
        "spark.master": master,
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.executor.extraJavaOptions": java_machines.SHORT_LIVED,
        "spark.executor.memory": "512m",
        "spark.sql.files.openCostInBytes": "128m",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "2",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        **{name.replace("_", "."): value for name, value in changes.items()},
    }


class Driver:
    """A driver in a new process; `cluster_driver.py` has the orders that it takes."""

    def __init__(
        self,
        processes: Processes,
        name: str = "driver",
        python: str | Path = sys.executable,
        cwd: Path | None = None,
        **environment: str,
    ) -> None:
        """Start it; it has no session yet.

        Args:
            processes: They end it.
            name: Name of its log.
            python: Its interpreter. The tasks run on it, too, unless the environment has another
                `PYSPARK_PYTHON`.
            cwd: Its directory; None: the folder of the processes.
            environment: Variables of the process, beside the usual ones.
        """
        self.log = processes.log(name)
        variables = {"PYSPARK_PYTHON": str(python)}
        self._process = processes.start(
            name,
            [python, CLUSTER_DRIVER],
            env=processes.environment(**{**variables, **environment}),
            cwd=cwd or processes.folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self._conf: Mapping[str, str] = {}

    def session(self, settings: Mapping[str, str], **options: Any) -> None:
        """Make a session with these settings, unless the present one has them."""
        if settings != self._conf:
            self.order("session", conf=settings, **options)
            self._conf = settings

    def stop(self) -> None:
        """Stop the session, and free its cores for another application."""
        self.order("stop")
        self._conf = {}

    def order(self, what: str, **arguments: Any) -> Any:
        """Send an order, and wait for its answer."""
        self.send(what, **arguments)
        return self.answer()

    def send(self, what: str, **arguments: Any) -> None:
        """Send an order without waiting for its answer."""
        assert self._process.stdin is not None
        order = {"do": what, **arguments}
        self._process.stdin.write(json.dumps(order, default=str).encode() + b"\n")
        self._process.stdin.flush()

    def answer(self) -> Any:
        """Wait for the answer to an order.

        Raises:
            DriverError: The driver raised, died, or took too long, and was killed then. Has its
                log.
        """
        assert self._process.stdout is not None
        with showing(self.log):
            ready, _, _ = select.select([self._process.stdout], [], [], ORDER_DEADLINE_S)
            if not ready:
                self.kill()
                raise DriverError(f"the driver did not answer within {ORDER_DEADLINE_S} s")
            line = self._process.stdout.readline()
            if not line:
                raise DriverError(
                    f"the driver died, with exit code {self._process.wait(START_DEADLINE_S)}"
                )
            answer = json.loads(line)
            if "error" in answer:
                raise DriverError(answer["error"])
        return answer["result"]

    def kill(self) -> int:
        """Kill it and its JVM, as a power cut would; return its exit code."""
        children = Path(f"/proc/{self._process.pid}/task").glob("*/children")
        jvms = [int(child) for path in children for child in path.read_text().split()]
        for process in (self._process.pid, *jvms):
            os.kill(process, signal.SIGKILL)
        return self._process.wait(START_DEADLINE_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        """Make it stop its session, and end."""
        if self._process.poll() is None:
            assert self._process.stdin is not None
            self._process.stdin.close()
            try:
                self._process.wait(START_DEADLINE_S)
            except subprocess.TimeoutExpired:
                self.kill()


class DriverError(AssertionError):
    """A driver did not carry out an order."""


@contextmanager
def showing(*logs: Path) -> Iterator[None]:
    """Add the ends of logs to an exception raised inside."""
    try:
        yield
    except Exception as error:
        for log in logs:
            if log.exists():
                error.add_note(
                    f"--- {log.name}, its end:\n{log.read_text(errors='replace')[-8_000:]}"
                )
        raise


@dataclass(frozen=True)
class Run:
    """The places of one stream.

    Attributes:
        flights: Folder of the input.
        checkpoint: Its checkpoint.
        database: Its store.
        notes_folder: The notes of its tasks.
    """

    flights: Path
    checkpoint: Path
    database: Path
    notes_folder: Path
