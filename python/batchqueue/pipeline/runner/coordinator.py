"""`Coordinator`: the thread that takes the cuts of a run, and ends it."""

import threading
import time

from batchqueue._background_log import BackgroundLog
from batchqueue.pipeline.runner.assembly import LEAVE_S, Assembly
from batchqueue.pipeline.runner.ending import RunEnded
from batchqueue.pipeline.runner.flow_watch import FlowWatch
from batchqueue.pipeline.sources.push import PushSource

_log = BackgroundLog("batchqueue.pipeline")

_CLOSE_S = 5.0
"""Seconds that each part of a run has to release what it holds, once it is idle or has failed."""


class Coordinator:
    """Takes a cut each interval, and the last one when the sources have ended or are stopped.

    Attributes:
        done: Set when the run is over and everything is closed.
        is_complete: Whether all that was read is part of a cut.
        is_stopping: Whether it is to stop.
        ended_at: When the run was over, on the monotonic clock.
    """

    def __init__(self, parts: Assembly, interval_s: float, watch: FlowWatch) -> None:
        self.done = threading.Event()
        self.is_complete = False
        self.is_stopping = False
        self.ended_at: float | None = None
        self._parts = parts
        self._interval_s = interval_s
        self._watch = watch
        self._wake = threading.Event()
        self._is_wanted = False
        parts.ending.notify(self._wake.set)
        for source in parts.sources:
            source.on_finished = self._wake.set
            if isinstance(source.source, PushSource):
                source.on_split = self.cut_soon
                source.source.open()

    def start(self) -> None:
        """Start the sources, and the thread."""
        parts = self._parts
        self._watch.start()
        if parts.replay_to is not None:
            for source in parts.sources:
                source.control.hold()
        for source in parts.sources:
            replay_to = None if parts.replay_to is None else parts.replay_to.get(source.name)
            source.start(parts.positions[source.name], replay_to)
        name = f"pipeline {parts.pipeline}"[:60]
        # A daemon: a sink that hangs must not keep the process alive.
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def stop(self) -> None:
        """Stop the sources; the last cut follows."""
        self.is_stopping = True
        self._watch.stop()
        for source in self._parts.sources:
            source.control.stop()
        self._wake.set()

    def cut_soon(self) -> None:
        """Take a cut without waiting for the interval; one follows a cut that is being taken."""
        self._is_wanted = True
        self._wake.set()

    def _run(self) -> None:
        parts = self._parts
        try:
            self._work()
            self.is_complete = True
        except RunEnded:
            pass
        except BaseException as error:
            parts.ending.fail("checkpoint", error)
        finally:
            try:
                self._close()
            finally:
                self._watch.end()
                for source in parts.sources:
                    if isinstance(source.source, PushSource):
                        source.source.drop(parts.ending.failure)
                self.ended_at = time.monotonic()
                self.done.set()

    def _work(self) -> None:
        parts = self._parts
        if parts.replay_to is not None:
            for source in parts.sources:
                source.control.wait_until_replayed()
            parts.cutter.cut(skipping=parts.ahead)
            parts.skip(frozenset())
        while True:
            is_last = self._wait()
            if is_last:
                parts.cutter.hold()
            if parts.cutter.is_due:
                parts.cutter.cut()
            if is_last:
                return

    def _wait(self) -> bool:
        """Wait for the time of the next cut; return whether it is the last one.

        Raises:
            RunEnded: The run ends early.
        """
        parts = self._parts
        due = time.monotonic() + self._interval_s
        while True:
            # Cleared first: what is set from now on is seen by the checks, or ends the wait.
            self._wake.clear()
            if parts.ending.has_begun:
                raise RunEnded
            finished = all(source.control.has_finished for source in parts.sources)
            if finished or self.is_stopping:
                return True
            left = due - time.monotonic()
            if left <= 0 or self._is_wanted:
                # A split that is complete from here on asks again.
                self._is_wanted = False
                return False
            self._wake.wait(left)

    def _close(self) -> None:
        parts = self._parts
        is_idle = self.is_complete
        for source in parts.sources:
            source.control.close()
        for source in parts.sources:
            source.join(_CLOSE_S if is_idle else 0.0)
            source.control.end()
        # After an error, what runs may finish; when time has run out, it is not waited for.
        waits = is_idle or parts.ending.failure is not None
        for name in parts.shut_down(_CLOSE_S if waits else LEAVE_S):
            _log.warning("stage %s is still busy, and is left alone", name)
        if parts.checkpoint is not None:
            parts.checkpoint.close()
