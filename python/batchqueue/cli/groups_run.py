"""`groups run`: workers of a user's program."""

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from types import FrameType

from batchqueue.base.words import counted
from batchqueue.cli.command import (
    FAILED,
    INVALID_USE,
    OK,
    Command,
    duration,
    seconds,
    whole_number,
    write_line,
)
from batchqueue.cli.groups_options import load_worker
from batchqueue.exceptions import BatchQueueError, ConfigError
from batchqueue.groups.errors import (
    HandlerFailedError,
    KafkaRefusedError,
    ReplacedError,
    TruncatedError,
)
from batchqueue.groups.memory import MemoryStreams
from batchqueue.groups.worker import Worker, WorkerSummary
from batchqueue.queues.config import RetryPolicy, wait_ms

_MOST_WORKERS = 1_024


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.description = (
        "Run a worker until SIGTERM or Ctrl-C: then it finishes what is in hand, commits, and "
        "hands its partitions over. A second signal gives up what is in hand. With several "
        "workers, each is a process, which is started again if it dies; the variable "
        f"{NUMBER_VARIABLE} holds its number. The exit code is 1 if a worker failed or gave "
        "records up."
    )
    parser.add_argument(
        "worker",
        metavar="MODULE:ATTR",
        help="a Worker, or a function without arguments that returns one; modules in the current "
        "directory can be imported",
    )
    parser.add_argument(
        "--workers",
        type=whole_number(1, _MOST_WORKERS),
        default=1,
        metavar="N",
        help="processes (default: 1, the worker runs in this one)",
    )
    parser.add_argument(
        "--until-idle",
        type=seconds,
        metavar="S",
        help="end when no record has come for S seconds and none is in hand",
    )
    parser.add_argument("--max-seconds", type=seconds, metavar="S", help="end after S seconds")
    parser.add_argument("--supervisor-link", type=int, help=argparse.SUPPRESS)


def run(arguments: argparse.Namespace) -> int:
    """Run one worker here, or several in processes."""
    if arguments.workers > 1:
        return _supervise(arguments)
    reports: list[Report] = []
    if arguments.supervisor_link is None:
        return _work(arguments, reports)
    link = open_link(arguments.supervisor_link)
    try:
        return _work(arguments, reports)
    finally:
        send_report(link, reports[0] if reports else Report())


def _supervise(arguments: argparse.Namespace) -> int:
    def command(left: float | None) -> Sequence[str]:
        options = {"--until-idle": arguments.until_idle, "--max-seconds": left}
        given = [f"{name}={value}" for name, value in options.items() if value is not None]
        return [*given, "--", arguments.worker]

    return Supervisor(arguments.workers, command, arguments.max_seconds).run()


RUN = Command(
    name="run",
    help="run the workers of a program",
    add_arguments=add_arguments,
    run=run,
)


# A worker in this process.


_FINAL = (HandlerFailedError, KafkaRefusedError, ReplacedError, TruncatedError)
"""Errors that need the user: another process would only fail with them again."""


def _work(arguments: argparse.Namespace, reports: "list[Report]") -> int:
    """Run a worker, and print a line at its start and its end; add the report for the supervisor.

    Returns 1 if records in hand were given up, else 0.
    """
    worker = load_worker(arguments.worker)
    if arguments.supervisor_link is not None and isinstance(worker.source, MemoryStreams):
        write_line(
            f"stream {worker.source.stream} is in memory, where each process has another one",
            sys.stderr,
        )
    where = f"group {worker.settings.group}, stream {worker.source.stream}, pid {os.getpid()}"
    write_line(f"worker {worker.name} starts: {where}")
    try:
        summary = worker.run(max_seconds=arguments.max_seconds, until_idle=arguments.until_idle)
    except ConfigError:
        raise
    except BatchQueueError as error:
        # The summary of a failed worker, whose work counts as well.
        summary = worker.leave()
        _print_end(worker, summary)
        reports.append(report_of(summary, is_final=isinstance(error, _FINAL)))
        raise
    _print_end(worker, summary)
    reports.append(report_of(summary, is_final=True))
    return FAILED if summary.unfinished else OK


def report_of(summary: WorkerSummary, *, is_final: bool) -> "Report":
    """Return the part of a summary that the supervisor needs."""
    return Report(
        handled=summary.handled,
        dead=summary.dead,
        skipped=summary.skipped,
        unfinished=sum(summary.unfinished.values()),
        is_final=is_final,
    )


def counts(report: "Report") -> str:
    """Return the counts as text, without those that are 0 and need no attention."""
    others = (
        (report.dead, "dead letter"),
        (report.skipped, "skipped record"),
        (report.unfinished, "unfinished record"),
    )
    parts = [f"{counted(report.handled, 'record')} handled"]
    parts += [counted(number, noun) for number, noun in others if number]
    return ", ".join(parts)


def _print_end(worker: Worker, summary: WorkerSummary) -> None:
    done = counts(report_of(summary, is_final=True))
    lost = f", {counted(summary.lost, 'partition')} lost to other workers" if summary.lost else ""
    write_line(f"worker {worker.name} ended after {duration(summary.seconds)}: {done}{lost}")


NUMBER_VARIABLE = "BATCHQUEUE_WORKER"
"""The environment variable that holds the number of a process, from 1."""


_POLL_S = 0.05


class Supervisor:
    """Runs processes until all have ended.

    A process that dies is restarted after a delay, which doubles. A process that ends, normally or
    with an error that needs the user, is not restarted; the others continue. If one process reports
    invalid use, all would, so all are ended.
    """

    def __init__(
        self, count: int, arguments: Callable[[float | None], Sequence[str]], seconds: float | None
    ) -> None:
        """Prepare the processes, without starting them.

        Args:
            count: The number of processes.
            arguments: Returns the arguments of a process, given the seconds that it has left.
            seconds: The time limit for all processes and their successors; None for no limit.
        """
        self._children = [ChildProcess(number) for number in range(1, count + 1)]
        self._arguments = arguments
        self._end = None if seconds is None else time.monotonic() + seconds
        self._signals: list[int] = []
        self._is_stopping = False
        self._is_invalid = False
        self._total = Report()

    def run(self) -> int:
        """Run the processes, and return the exit code: 0 if the last end of each was good."""
        with self._noting_signals():
            for child in self._children:
                self._start(child)
            seen = 0
            while any(child.is_running or child.restart_at for child in self._children):
                if len(self._signals) > seen:
                    seen = len(self._signals)
                    name = signal.Signals(self._signals[-1]).name
                    self._stop(f"{name}: the processes are ending")
                for child in self._children:
                    self._attend(child)
                time.sleep(_POLL_S)
        write_line(f"all {len(self._children)} processes ended: {counts(self._total)}")
        if self._is_invalid:
            return INVALID_USE
        good = all(child.ended_well(was_stopped=self._is_stopping) for child in self._children)
        return OK if good else FAILED

    def _start(self, child: "ChildProcess") -> None:
        left = None if self._end is None else max(0.0, self._end - time.monotonic())
        child.start(self._arguments(left), {**os.environ, NUMBER_VARIABLE: str(child.number)})
        assert child.popen is not None
        write_line(f"process {child.number} (pid {child.popen.pid}) starts")

    def _attend(self, child: "ChildProcess") -> None:
        if child.poll():
            self._note_end(child)
        elif child.restart_at is not None and time.monotonic() >= child.restart_at:
            self._start(child)

    def _note_end(self, child: "ChildProcess") -> None:
        report = child.report
        self._total = Report(
            handled=self._total.handled + report.handled,
            dead=self._total.dead + report.dead,
            skipped=self._total.skipped + report.skipped,
            unfinished=self._total.unfinished + report.unfinished,
        )
        next_ = ""
        if child.code == INVALID_USE:
            self._is_invalid = True
        elif not (child.code == OK or report.is_final or self._is_stopping):
            wait_s = child.restart_later()
            if self._end is not None and time.monotonic() + wait_s >= self._end:
                child.restart_at = None
                next_ = "; the time is over"
            else:
                next_ = f"; it starts again in {wait_s:g} s"
        write_line(f"{child.end()}{next_}")
        if self._is_invalid and not self._is_stopping:
            self._stop("the processes are ending")

    def _stop(self, why: str) -> None:
        self._is_stopping = True
        write_line(why, sys.stderr)
        for child in self._children:
            child.terminate()

    @contextmanager
    def _noting_signals(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def note(number: int, frame: FrameType | None) -> None:
            del frame
            self._signals.append(number)

        before = {number: signal.signal(number, note) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


_SAID_TO_END = (-signal.SIGTERM, -signal.SIGINT)


class ChildProcess:
    """A process of the supervisor.

    Attributes:
        number: Its number, from 1.
        popen: The process; None before its first start.
        restart_at: When it is restarted, by the monotonic clock; None if it will not be.
        report: The last report.
        code: The last exit code, negative for a signal; None while it runs.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self.popen: subprocess.Popen[bytes] | None = None
        self.restart_at: float | None = None
        self.report = Report()
        self.code: int | None = None
        self._restarts = Restarts()
        self._link: socket.socket | None = None
        self._started_at = 0.0

    @property
    def is_running(self) -> bool:
        """Whether the process has not ended, as of the last `poll`."""
        return self.popen is not None and self.code is None

    def start(self, arguments: Sequence[str], environment: dict[str, str]) -> None:
        """Start the process.

        Args:
            arguments: The arguments of `batchqueue groups run`.
            environment: The environment variables of the process.
        """
        self._link, other = socket.socketpair()
        with other:
            # -P: a file in the current directory cannot replace this package. A separate
            # process group: Ctrl-C in a terminal would reach the process twice, and the
            # second signal gives up what is in hand.
            self.popen = subprocess.Popen(
                [
                    *(sys.executable, "-P", "-m", "batchqueue", "groups", "run"),
                    f"--supervisor-link={other.fileno()}",
                    *arguments,
                ],
                pass_fds=[other.fileno()],
                stdin=subprocess.DEVNULL,
                env=environment,
                process_group=0,
            )
        self.code, self.restart_at, self._started_at = None, None, time.monotonic()

    def poll(self) -> bool:
        """Check on the process, and return whether it has ended since the last call."""
        if self.popen is None or not self.is_running or self.popen.poll() is None:
            return False
        self.code = self.popen.returncode
        assert self._link is not None
        self.report = read_report(self._link)
        return True

    def terminate(self) -> None:
        """Send SIGTERM, and do not restart the process."""
        self.restart_at = None
        if self.is_running and self.popen is not None:
            self.popen.terminate()

    def restart_later(self) -> float:
        """Schedule the next start, and return the delay in seconds."""
        now = time.monotonic()
        wait_s = self._restarts.next(now - self._started_at)
        self.restart_at = now + wait_s
        return wait_s

    def ended_well(self, *, was_stopped: bool) -> bool:
        """Whether its last end was a normal one.

        Args:
            was_stopped: Whether it was sent SIGTERM, which kills a process that has no worker yet.
        """
        return self.code == 0 or (was_stopped and self.code in _SAID_TO_END)

    def end(self) -> str:
        """Return how it ended, as text."""
        assert self.popen is not None
        who = f"process {self.number} (pid {self.popen.pid})"
        if self.code is None or self.code >= 0:
            return f"{who} ended with exit code {self.code}"
        return f"{who} was ended by {signal.Signals(-self.code).name}"


LONGEST_S = 30.0
"""The longest delay; each delay is twice the previous one."""


_RESTARTS = RetryPolicy(attempts=None, backoff_ms=1_000, max_backoff_ms=LONGEST_S * 1_000)


STEADY_S = 60.0
"""A process that ran for this long is stable: its next delay is the shortest one again."""


class Restarts:
    """The delays before the restarts of a process.

    Example:
        >>> restarts = Restarts()
        >>> [restarts.next(ran_s=0.1) for _ in range(7)]
        [1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]
        >>> restarts.next(ran_s=100)
        1.0
    """

    def __init__(self) -> None:
        self._deaths = 0

    def next(self, ran_s: float) -> float:
        """Return the delay in seconds.

        Args:
            ran_s: The time from the last start to the death, in seconds.
        """
        self._deaths = 1 if ran_s >= STEADY_S else self._deaths + 1
        return wait_ms(_RESTARTS, self._deaths) / 1_000


# The link between the supervisor and a process: a pair of sockets.
#
# The process ends in an orderly way when the other end is gone, so no worker outlives a killed
# supervisor. Before it ends, it sends a report.


_MOST = 1 << 16


@dataclass(frozen=True)
class Report:
    """The report that a process sends before it ends.

    Attributes:
        handled: Records whose handler returned.
        dead: Records that were set aside.
        skipped: Records that failed and were skipped.
        unfinished: Records that were given up.
        is_final: Whether a restarted process would end in the same way.
    """

    handled: int = 0
    dead: int = 0
    skipped: int = 0
    unfinished: int = 0
    is_final: bool = False


def open_link(descriptor: int) -> socket.socket:
    """Open the child's end of the link; SIGTERM is raised here when the supervisor is gone."""
    link = socket.socket(fileno=descriptor)
    link.set_inheritable(False)

    def watch() -> None:
        with suppress(OSError):
            link.recv(1)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, name="supervisor", daemon=True).start()
    return link


def send_report(link: socket.socket, report: Report) -> None:
    """Send the report, if the supervisor still exists."""
    with suppress(OSError):
        link.sendall(json.dumps(asdict(report)).encode())


def read_report(link: socket.socket) -> Report:
    """Return the report of a process that has ended, and close the link."""
    with link:
        link.setblocking(False)
        try:
            return Report(**json.loads(link.recv(_MOST)))
        except (OSError, ValueError):
            return Report()  # it died before it could send one
