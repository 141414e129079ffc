"""`BackgroundLog`: logging for threads that must not block; a separate thread writes the lines.

A handler of `logging` belongs to the program: it may block, or hand rows to the very pipeline that
logs the line. Threads that hold a lock, renew a lease or take a cut therefore only queue their
lines here. One thread of the process writes them, in order. While that thread is held up, a bounded
number of lines waits; further lines are counted and dropped.
"""

import logging
import queue
import sys
import threading
import time
import traceback
from collections.abc import Callable, Hashable
from dataclasses import dataclass

from batchqueue._core import Counter
from batchqueue.base.process import after_core_at_exit, before_core_in_child
from batchqueue.base.words import counted

_MOST_LINES = 1_000
"""The most lines that wait for the log; further lines are dropped and counted."""

_LAST_S = 2.0
"""Seconds that the exit of the interpreter waits for lines."""

_Line = tuple[logging.Logger, logging.LogRecord]


class _LineWriter:
    """The thread that writes lines, started with the first line, and the lines that wait for it.

    `put` takes no lock, so that a signal handler may call it wherever it interrupts its thread.

    | field | written by | read by |
    |---|---|---|
    | `_lines` | all threads | the writer |
    | `_thread` | the thread that has `_starting` | all threads |
    | `_busy_since` | the writer | all threads |
    """

    def __init__(self) -> None:
        self.dropped = Counter()
        self._lines: queue.SimpleQueue[_Line | threading.Event] = queue.SimpleQueue()
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None
        self._busy_since: float | None = None

    @property
    def stuck_s(self) -> float:
        """Seconds spent so far on the line being written; 0.0 if there is none."""
        since = self._busy_since
        return 0.0 if since is None else time.monotonic() - since

    def put(self, line: _Line) -> None:
        """Queue a line, unless too many wait."""
        if self._lines.qsize() >= _MOST_LINES:
            self.dropped.add(1)
            return
        self._lines.put(line)
        self._start()

    def flush(self, timeout: float) -> bool:
        """Wait until all earlier lines are written; return whether they are.

        On the writer's thread it does not wait: a log handler may end a run, which flushes the log.

        Args:
            timeout: Seconds.
        """
        if self._thread is threading.current_thread():
            return False
        if self._thread is None and self._lines.empty():
            return True  # there was no line yet
        if self._lines.qsize() >= _MOST_LINES:
            return False
        written = threading.Event()
        self._lines.put(written)
        self._start()
        return written.wait(timeout)

    def _start(self) -> None:
        if self._thread is not None or not self._starting.acquire(blocking=False):
            return
        try:
            if self._thread is None:
                # A daemon: a log that hangs must not keep the process alive.
                thread = threading.Thread(target=self._run, name="batchqueue-log", daemon=True)
                thread.start()
                self._thread = thread
        except RuntimeError:  # the interpreter is ending, or the system is out of threads
            while not self._lines.empty():
                self._write(self._lines.get())
        finally:
            self._starting.release()

    def _run(self) -> None:
        reported = 0
        while True:
            self._write(self._lines.get())
            dropped = self.dropped.value
            if dropped > reported and self._lines.empty():
                reported, new = dropped, dropped - reported
                text = f"{counted(new, 'line')} dropped while the log was held up"
                logging.getLogger("batchqueue").warning("%s", text)

    def _write(self, line: _Line | threading.Event) -> None:
        if isinstance(line, threading.Event):
            line.set()
            return
        logger, record = line
        self._busy_since = time.monotonic()
        try:
            if logger.isEnabledFor(record.levelno):
                logger.handle(record)
        except BaseException:  # from the program's handler; the next line may succeed
            _show_error()
        finally:
            self._busy_since = None


class BackgroundLog:
    """A logger whose lines are written by another thread. Its methods neither wait nor raise.

    Arguments are formatted when the line is written: do not change them afterwards.

    Example:
        >>> log = BackgroundLog("batchqueue")
        >>> log.warning("stage %s is still busy", "totals")
    """

    def __init__(self, name: str) -> None:
        """Begin with nothing to write.

        Args:
            name: The name of the logger.
        """
        self._logger = logging.getLogger(name)

    def debug(self, text: str, *arguments: object) -> None:
        """Log a line that helps to find errors."""
        self._put(logging.DEBUG, text, arguments)

    def info(self, text: str, *arguments: object) -> None:
        """Log a line about normal operation."""
        self._put(logging.INFO, text, arguments)

    def warning(self, text: str, *arguments: object) -> None:
        """Log a line that may need attention."""
        self._put(logging.WARNING, text, arguments)

    def error(self, text: str, *arguments: object) -> None:
        """Log a line about something that failed."""
        self._put(logging.ERROR, text, arguments)

    def exception(self, text: str, *arguments: object) -> None:
        """Log a line with the exception that is being handled."""
        self._put(logging.ERROR, text, arguments, with_error=True)

    def log(self, level: int, text: str, *arguments: object) -> None:
        """Log a line at a level of `logging`."""
        self._put(level, text, arguments)

    def _put(
        self, level: int, text: str, arguments: tuple[object, ...], with_error: bool = False
    ) -> None:
        caller = sys._getframe(2)
        code = caller.f_code
        error = sys.exception() if with_error else None
        try:
            record = self._logger.makeRecord(
                self._logger.name,
                level,
                code.co_filename,
                caller.f_lineno,
                text,
                arguments,
                None if error is None else (type(error), error, error.__traceback__),
                code.co_name,
            )
        except Exception:  # from the program's factory of records
            _show_error()
            return
        _writer.put((self._logger, record))


@dataclass
class _Subject:
    logged: Hashable
    seen: Hashable
    logged_at: float
    changes: int = 0


class ChangeLog:
    """A log of the states of subjects, with a line when a state differs from the last one logged.

    A subject has at most one line per `interval_s`. A sooner change is logged once the interval is
    over, if the state still differs, and the line says how many changes were left out.
    """

    def __init__(
        self, log: BackgroundLog, clock: Callable[[], float], interval_s: float = 60.0
    ) -> None:
        """Begin without subjects.

        Args:
            log: Where the lines go.
            clock: Returns the time, in seconds.
            interval_s: Seconds between two lines of a subject. Default: 60.
        """
        self._log = log
        self._clock = clock
        self._interval_s = interval_s
        self._subjects: dict[Hashable, _Subject] = {}

    def note(
        self,
        subject: Hashable,
        state: Hashable,
        initial: Hashable,
        level: int,
        line: Callable[[], str],
    ) -> None:
        """Note the state of a subject, and log it if a line is due.

        Args:
            subject: What the state belongs to.
            state: The state.
            initial: The state that needs no line if it is the first.
            level: The level of the line, as in `logging`.
            line: Returns the line that says what the state is.
        """
        known = self._subjects.get(subject)
        if known is None:
            known = self._subjects[subject] = _Subject(initial, initial, float("-inf"))
        if state != known.seen:
            known.seen = state
            known.changes += 1
        now = self._clock()
        if state == known.logged or now - known.logged_at < self._interval_s:
            return
        left_out = known.changes - 1
        self._log.log(
            level, "%s%s", line(), f" ({left_out} changes not logged)" if left_out else ""
        )
        known.logged, known.logged_at, known.changes = state, now, 0


def _show_error() -> None:
    """Print the exception that is being handled, as `logging` does with those of handlers."""
    if logging.raiseExceptions and sys.stderr:
        traceback.print_exc()


def flush_log(timeout: float = 1.0) -> bool:
    """Wait until all earlier lines are written; return whether they are.

    Args:
        timeout: Seconds; the log may be held up. Default: 1.
    """
    return _writer.flush(timeout)


def log_stuck_s() -> float:
    """Return the seconds spent so far on the line being written; 0.0 if there is none."""
    return _writer.stuck_s


def log_lines_dropped() -> int:
    """Return how many lines this process has dropped because too many waited."""
    return _writer.dropped.value


def _forget() -> None:
    global _writer  # noqa: PLW0603 - its thread is not in this process
    _writer = _LineWriter()


_writer = _LineWriter()
before_core_in_child(_forget)
after_core_at_exit(lambda: flush_log(_LAST_S))
