"""`Supervisor`: runs processes, and starts those that die again."""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

from batchqueue.cli.command import FAILED, INVALID_USE, OK
from batchqueue.cli.groups.child import ChildProcess
from batchqueue.cli.groups.link import Report
from batchqueue.cli.groups.process import counts

NUMBER_VARIABLE = "BATCHQUEUE_WORKER"
"""The variable of the environment that holds the number of a process, from 1."""

_POLL_S = 0.05


class Supervisor:
    """Runs processes until all have ended.

    A process that dies is started again, after a wait that doubles. One that ends, whether well or
    because of an error that needs the user, is not; the others continue. If a process is used in an
    invalid way, all are, so they are ended.
    """

    def __init__(
        self, count: int, arguments: Callable[[float | None], Sequence[str]], seconds: float | None
    ) -> None:
        """Start nothing yet.

        Args:
            count: The number of processes.
            arguments: Returns the arguments of a process, given the seconds that are left to it.
            seconds: The time for all processes and their successors; None for no limit.
        """
        self._children = [ChildProcess(number) for number in range(1, count + 1)]
        self._arguments = arguments
        self._end = None if seconds is None else time.monotonic() + seconds
        self._signals: list[int] = []
        self._is_stopping = False
        self._is_invalid = False
        self._total = Report()

    def run(self) -> int:
        """Run them, and return the exit code: 0 if the last end of each one was good."""
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
        print(f"all {len(self._children)} processes ended: {counts(self._total)}", flush=True)
        if self._is_invalid:
            return INVALID_USE
        good = all(child.ended_well(was_stopped=self._is_stopping) for child in self._children)
        return OK if good else FAILED

    def _start(self, child: ChildProcess) -> None:
        left = None if self._end is None else max(0.0, self._end - time.monotonic())
        child.start(self._arguments(left), {**os.environ, NUMBER_VARIABLE: str(child.number)})
        assert child.popen is not None
        print(f"process {child.number} (pid {child.popen.pid}) starts", flush=True)

    def _attend(self, child: ChildProcess) -> None:
        if child.poll():
            self._note_end(child)
        elif child.restart_at is not None and time.monotonic() >= child.restart_at:
            self._start(child)

    def _note_end(self, child: ChildProcess) -> None:
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
        print(f"{child.end()}{next_}", flush=True)
        if self._is_invalid and not self._is_stopping:
            self._stop("the processes are ending")

    def _stop(self, why: str) -> None:
        self._is_stopping = True
        print(why, file=sys.stderr, flush=True)
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
