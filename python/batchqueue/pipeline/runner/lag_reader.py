"""`LagReader`: the thread that asks a source how far it is behind."""

import logging
import math
import operator
import threading
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

from batchqueue.pipeline.backpressure.change_log import ChangeLog
from batchqueue.pipeline.contract import Lag, Position, Source

_STALE_INTERVALS = 3
_LATE_S = 30.0
"""Seconds after which a call that has not returned is logged."""


class _Reading(NamedTuple):
    """What the source answered."""

    lags: Mapping[str, Lag]
    read_at: float
    took_s: float


class LagReader:
    """Reads the lag of a source whenever it is asked to, on a thread that nothing waits for.

    A source whose `lag` is slow is asked again when it has answered. One that hangs or raises has
    an unknown lag, and its run continues.
    """

    def __init__(self, name: str, source: Source, interval_s: float) -> None:
        """Prepare; `start` starts the thread.

        Args:
            name: The name of the source in the pipeline.
            source: What is asked.
            interval_s: Seconds between two calls of `ask`.
        """
        self._name = name
        self._source = source
        self._patience_s = _STALE_INTERVALS * interval_s
        # All of these are read and written under `_changed`; `_last` is also read without it.
        self._changed = threading.Condition()
        self._wanted: Position | None = None
        self._began_at: float | None = None
        self._is_ending = False
        self._ended_at: float | None = None
        self._last = _Reading({}, -math.inf, 0.0)
        self._failures = ChangeLog(time.monotonic)  # of the thread
        self._hangs = ChangeLog(time.monotonic)  # of the thread that asks

    def start(self) -> None:
        """Begin to wait for `ask`."""
        # A daemon: a call that hangs must not keep the process alive.
        name = f"lag of {self._name}"[:60]
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def ask(self, position: Position) -> None:
        """Have the lag read, behind a call that is under way.

        Args:
            position: Where to measure it from.
        """
        with self._changed:
            self._wanted = dict(position)
            self._changed.notify_all()
        is_late = self.stuck_s >= _LATE_S
        self._hangs.note("hangs", is_late, False, logging.WARNING, lambda: self._hang(is_late))

    @property
    def lags(self) -> Mapping[str, Lag]:
        """The lag by partition, as last read; unknown if that was more than three intervals ago.

        Of a source that takes longer than an interval, it holds for three times as long.
        """
        last = self._last
        now = time.monotonic() if self._ended_at is None else self._ended_at
        if now - last.read_at > max(self._patience_s, _STALE_INTERVALS * last.took_s):
            return _unknown(last.lags)
        return last.lags

    @property
    def stuck_s(self) -> float:
        """For how many seconds the source has been in its call; 0.0 between two calls."""
        began = self._began_at
        return 0.0 if began is None else time.monotonic() - began

    def end(self, position: Position, until: float) -> None:
        """Read the lag a last time, and end the thread; one that hangs is left alone.

        Args:
            position: Where the run has ended.
            until: How long to wait for the answer, on the monotonic clock.
        """
        with self._changed:
            self._wanted = dict(position)
            self._is_ending = True
            self._changed.notify_all()
            self._changed.wait_for(
                lambda: self._wanted is None and self._began_at is None,
                max(0.0, until - time.monotonic()),
            )
            self._wanted = None
            self._ended_at = time.monotonic()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._wanted is not None or self._is_ending)
                if self._wanted is None:
                    return
                position, self._wanted = self._wanted, None
                self._began_at = time.monotonic()
            self._read(position)
            with self._changed:
                self._began_at = None
                self._changed.notify_all()

    def _read(self, position: Position) -> None:
        began = time.monotonic()
        try:
            lags, problem = _checked(self._source.lag(position)), ""
        except BaseException as error:  # of the program's source
            lags, problem = _unknown(self._last.lags), f"{type(error).__name__}: {error}"
        now = time.monotonic()
        with self._changed:
            if self._ended_at is None:
                self._last = _Reading(lags, now, now - began)
        if not self._is_ending:  # else what it needs may be gone
            level = logging.WARNING if problem else logging.INFO
            self._failures.note("raises", bool(problem), False, level, lambda: self._line(problem))

    def _line(self, problem: str) -> str:
        if problem:
            return f"source {self._name!r}: its lag is not known, because lag() failed: {problem}"
        return f"source {self._name!r}: its lag is known again"

    def _hang(self, is_late: bool) -> str:
        if is_late:
            return (
                f"source {self._name!r}: its lag is not known, because lag() has not returned for "
                f"{self.stuck_s:.0f} s; nothing else waits for it"
            )
        return f"source {self._name!r}: lag() has returned"


def _checked(found: Any) -> dict[str, Lag]:
    if not isinstance(found, Mapping):
        raise TypeError(f"it returned {found!r}; give a dict with a Lag per partition")
    return {str(name): _lag(*each) for name, each in found.items()}


def _lag(records: Any, seconds: Any) -> Lag:
    rows = None if records is None else operator.index(records)
    age = None if seconds is None or math.isnan(seconds) else float(seconds)
    return Lag(None if rows is None or rows < 0 else rows, None if age is None or age < 0 else age)


def _unknown(lags: Mapping[str, Lag]) -> dict[str, Lag]:
    return dict.fromkeys(lags, Lag(None, None))
