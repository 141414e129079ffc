"""`SourceThread`: plans and reads one source, and hands its chunks to the first stages."""

import logging
import math
import operator
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from batchqueue._core import Counter
from batchqueue.base.background_log import BackgroundLog, ChangeLog
from batchqueue.pipeline.chunks import ChunkCutter, Origin, SizedBatch
from batchqueue.pipeline.contract import Lag, Limit, Plan, Position, Source, Split, checked_position
from batchqueue.pipeline.runner.pressure import OPEN
from batchqueue.pipeline.runner.stage import CHUNKS_PER_WORKER, Ending, RunEnded, RunnerStage
from batchqueue.pipeline.settings import STALE_INTERVALS

_log = BackgroundLog("batchqueue.pipeline")

_GROUP = CHUNKS_PER_WORKER
"""The most chunks that are handed on together, if there is room for them."""

_FIRST_REST_S = 0.01
_LONGEST_REST_S = 0.5


class SourceThread:
    """A thread that reads a source as fast as the stages after it take its chunks.

    Attributes:
        name: The name of the source in the pipeline.
        source: The source itself.
        control: Pauses, holds and stops the thread.
        outlets: The stages that it feeds.
        rows_out: The rows that the outlets have accepted; likewise `bytes_out`.
        decision: How much of the room it may plan for; a signal lowers it.
        on_finished: Called when there is nothing more to read.
        on_split: Called after each split.
    """

    def __init__(
        self,
        name: str,
        source: Source,
        outlets: Sequence[RunnerStage],
        *,
        chunk_rows: int,
        ending: Ending,
        cut: Callable[[], int],
    ) -> None:
        """Prepare a thread; `start` starts it.

        Args:
            name: The name of the source.
            source: What to read.
            outlets: The stages that it feeds, which must already be running.
            chunk_rows: The most rows of a chunk.
            ending: What ends the run early.
            cut: Returns the number of the cut that chunks currently belong to.
        """
        self.name = name
        self.control = SourceControl()
        self.outlets = tuple(outlets)
        self.rows_out, self.bytes_out = Counter(), Counter()
        self.decision = OPEN
        self.source = source
        self._chunk_rows = chunk_rows
        self._ending = ending
        self._cut = cut
        self._replay: tuple[Position, Position] | None = None
        self._thread: threading.Thread | None = None
        self.on_finished: Callable[[], object] = lambda: None
        self.on_split: Callable[[], object] = lambda: None
        ending.notify(self.control.end)

    def start(self, position: Position, replay_to: Position | None) -> None:
        """Start reading.

        Args:
            position: Where to begin.
            replay_to: Where to stop until `control.release` is called; None for nowhere.
        """
        self.control.position = position
        if replay_to is not None:
            self._replay = (position, replay_to)
        # A daemon: a read that hangs must not keep the process alive.
        self._thread = threading.Thread(
            target=self._run, name=f"source {self.name}"[:60], daemon=True
        )
        self._thread.start()

    def join(self, timeout: float | None) -> None:
        """Wait until the thread has ended."""
        if self._thread is not None:
            self._thread.join(timeout)

    def commit(self, position: Position) -> None:
        """Have the source acknowledge a completed cut, when its thread gets to it."""
        self.control.request(lambda: self.source.commit(position))

    def _run(self) -> None:
        try:
            if self._replay is not None:
                self._read_again(*self._replay)
            self._read_on()
            self._finish()
            self.control.serve_until_closed()
        except RunEnded:
            pass
        except BaseException as error:
            self._ending.fail(self.name, error)
        finally:
            self._finish()

    def _finish(self) -> None:
        self.control.finish()
        self.on_finished()

    def _read_again(self, start: Position, end: Position) -> None:
        """Read what some sinks already have, exactly up to their cut."""
        splits = self.source.between(start, end)
        for number, split in enumerate(splits):
            self.control.begin_again()
            self._read(split)
            self.control.complete(end if number == len(splits) - 1 else split.end)
        self.control.position = end
        self.control.wait_behind_replay()

    def _read_on(self) -> None:
        rest = _FIRST_REST_S
        while self.control.may_plan():
            plan = self._planned(self._room())
            if plan.splits:
                rest = _FIRST_REST_S
                for number, split in enumerate(plan.splits):
                    if not self.control.begin():
                        return
                    self._read(split)
                    is_last = number == len(plan.splits) - 1
                    self.control.complete(plan.end if is_last else split.end)
                    self.on_split()
            else:
                self._move_on(plan.end)
                if self.source.bounded:
                    return
                self.control.rest(rest)
                rest = min(2 * rest, _LONGEST_REST_S)

    def _planned(self, limit: Limit) -> Plan:
        plan = self.source.plan(self.control.position, limit)
        for position in (plan.end, *(split.end for split in plan.splits)):
            checked_position(position, self.name)
        return plan

    def _move_on(self, end: Position) -> None:
        if end != self.control.position and self.control.begin():
            self.control.complete(end)

    def _room(self) -> Limit:
        """Wait until all first stages have room, and return the smallest."""
        rooms: list[Limit] = []
        for outlet in self.outlets:
            with outlet.waited_for:
                rooms.append(outlet.gate.free())
        rows, size = (min(values) for values in zip(*rooms, strict=True))
        return self.decision.limited(Limit(rows, size))

    def _read(self, split: Split) -> None:
        cutter = ChunkCutter(self._chunk_rows)
        position = checked_position(split.start, self.name)
        number = 0
        for batch in self.source.read(split):
            number = self._hand_on(cutter.add(batch), split.partition, position, number)
        self._hand_on(cutter.rest(), split.partition, position, number)

    def _hand_on(self, chunks: list[SizedBatch], partition: str, position: str, number: int) -> int:
        """Hand on chunks of a split, numbered from `number`; return the next number."""
        done = 0
        while done < len(chunks):
            self.control.wait_while_paused()
            cut = self._cut()
            parts = [
                (chunk, Origin(cut, partition, position, number + place))
                for place, chunk in enumerate(chunks[done : done + _GROUP], start=done)
            ]
            if len(self.outlets) == 1:
                count = self.outlets[0].put_ready(parts)
            else:
                count = 1
                for outlet in self.outlets:
                    outlet.put(*parts[0], None)
            handed = chunks[done : done + count]
            self.rows_out.add(sum([chunk.batch.num_rows for chunk in handed]))
            self.bytes_out.add(sum([chunk.size for chunk in handed]))
            done += count
        return number + done


class SourceControl:
    """Controls a source thread. A *pause* is a request and may last; a *hold* is part of a cut.

    The thread calls `begin` before each split, and `complete` after it. It reads nothing else, so
    nothing is skipped, and while it is held the position marks exactly what the stages have
    received. A hold waits for the current split, even during a pause.

    All fields are written under `_changed`; until the source thread has ended, it alone writes the
    position.

    Attributes:
        position: Where the source continues.
        has_finished: Whether the source has reached its end, or has stopped.
    """

    def __init__(self) -> None:
        self.position: Position = {}
        self._changed = threading.Condition()
        self._reasons: list[str] = []
        self._is_held = False
        self._is_awake = False
        self._is_reading = False
        self._is_replayed = False
        self._is_stopping = False
        self.has_finished = False
        self._is_closed = False
        self._has_ended = False
        self._requests: list[Callable[[], None]] = []
        self._paused_at: float | None = None
        self._paused: dict[str, float] = {}

    @contextmanager
    def _change(self) -> Iterator[None]:
        """Take the lock, and wake all threads that wait for a change."""
        with self._changed:
            yield
            self._changed.notify_all()

    # Called by other threads.

    def pause(self, reason: str) -> None:
        """Stop the source from planning and reading."""
        with self._change():
            self._account()
            if reason not in self._reasons:
                self._reasons.append(reason)

    def resume(self, reason: str | None = None) -> bool:
        """End the pause for a reason, or all pauses; return whether the source continues."""
        with self._change():
            self._account()
            self._reasons = [
                each for each in self._reasons if reason is not None and each != reason
            ]
            return not self._reasons

    def hold(self) -> None:
        """Stop the source from beginning another split."""
        with self._change():
            self._is_held = True

    def wait_until_held(self, timeout: float | None = None) -> bool:
        """Wait until it is reading no split; return False if time ran out.

        Raises:
            RunEnded: The run ends early.
        """
        return self._wait_until(lambda: not self._is_reading, timeout)

    def wait_until_replayed(self) -> None:
        """Wait until a replay is complete.

        Raises:
            RunEnded: The run ends early.
        """
        self._wait_until(lambda: self._is_replayed)

    def release(self) -> None:
        """End a hold."""
        with self._change():
            self._is_held = False

    def stop(self) -> None:
        """Make the source end after the current split."""
        with self._change():
            self._is_stopping = True

    def request(self, what: Callable[[], None]) -> None:
        """Have the thread do something between two splits, or after the end of the source."""
        with self._change():
            self._requests.append(what)

    def wake(self) -> None:
        """Wake a source that rests because it found nothing new."""
        with self._change():
            self._is_awake = True

    def close(self) -> None:
        """Make the thread end once it has served all requests."""
        with self._change():
            self._is_closed = True

    def end(self) -> None:
        """Make the thread end immediately."""
        with self._change():
            self._has_ended = True

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why it is paused; empty if it is not."""
        with self._changed:
            return tuple(self._reasons)

    @property
    def paused_seconds(self) -> dict[str, float]:
        """Seconds that it has been paused, by reason; concurrent reasons each count."""
        with self._changed:
            self._account()
            return dict(self._paused)

    def _wait_until(self, is_met: Callable[[], bool], timeout: float | None = None) -> bool:
        with self._changed:
            done = self._changed.wait_for(lambda: self._has_ended or is_met(), timeout)
            if self._has_ended:
                raise RunEnded
            return done

    # Called by the source thread.

    def may_plan(self) -> bool:
        """Wait while it is paused or held; return False if it is to stop."""
        return self._wait(lambda: self._is_stopping or not (self._reasons or self._is_held))

    def begin(self) -> bool:
        """Wait while it is paused or held, and begin a split; return False if it is to stop."""
        return self._wait(
            lambda: self._is_stopping or not (self._reasons or self._is_held), begins=True
        )

    def begin_again(self) -> None:
        """Wait while it is paused, and begin a split of a replay, which a stop does not end."""
        self._wait(lambda: self._is_stopping or not self._reasons)
        with self._changed:
            self._is_reading = True

    def complete(self, position: Position) -> None:
        """Note that all of a split is in the stages, and where to continue."""
        with self._change():
            self.position = position
            self._is_reading = False

    def wait_while_paused(self) -> None:
        """Wait within a split. A cut or a stop needs the rest of the split, so it ends the wait."""
        if self._reasons:  # read without the lock: a pause may just as well come a chunk later
            self._wait(
                lambda: self._is_stopping or self._is_held or not self._reasons, serves=False
            )

    def wait_behind_replay(self) -> None:
        """Note that a replay is complete, and wait until its cut is done."""
        with self._change():
            self._is_replayed = True
        self._wait(lambda: not self._is_held)

    def rest(self, seconds: float) -> None:
        """Wait, but not beyond a stop, a request or `wake`."""
        with self._changed:
            self._changed.wait_for(
                lambda: (
                    self._has_ended or self._is_stopping or self._is_awake or bool(self._requests)
                ),
                seconds,
            )
            self._is_awake = False
            self._serve()

    def finish(self) -> None:
        """Note that there is nothing more to read."""
        with self._change():
            self.has_finished = True
            self._is_reading = False

    def serve_until_closed(self) -> None:
        """Serve requests until `close`."""
        self._wait(lambda: self._is_closed)

    def _wait(self, is_met: Callable[[], bool], serves: bool = True, begins: bool = False) -> bool:
        """Wait for a condition; return whether the source is to continue."""
        with self._changed:
            while True:
                if self._has_ended:
                    raise RunEnded
                if serves and self._requests:
                    self._serve()
                elif is_met():
                    if begins:
                        self._is_reading = not self._is_stopping
                    return not self._is_stopping
                else:
                    self._changed.wait()

    def _serve(self) -> None:
        while self._requests and not self._has_ended:
            what = self._requests.pop(0)
            self._changed.release()
            try:
                what()
            finally:
                self._changed.acquire()

    def _account(self) -> None:
        now = time.monotonic()
        if self._paused_at is not None:
            for reason in self._reasons:
                self._paused[reason] = self._paused.get(reason, 0.0) + now - self._paused_at
        self._paused_at = now


_LATE_S = 30.0
"""Seconds after which a call that has not returned is logged."""


class _LagReading(NamedTuple):
    """An answer of the source."""

    lags: Mapping[str, Lag]
    read_at: float
    took_s: float


class LagReader:
    """Reads the lag of a source on request, on a thread that nothing waits for.

    A source whose `lag` is slow is asked again once it has answered. If `lag` hangs or raises, the
    lag is unknown, and the run continues.
    """

    def __init__(self, name: str, source: Source, interval_s: float) -> None:
        """Prepare; `start` starts the thread.

        Args:
            name: The name of the source in the pipeline.
            source: The source to ask.
            interval_s: Seconds between two calls of `ask`.
        """
        self._name = name
        self._source = source
        self._patience_s = STALE_INTERVALS * interval_s
        # All of these are read and written under `_changed`; `_last` is also read without it.
        self._changed = threading.Condition()
        self._wanted: Position | None = None
        self._began_at: float | None = None
        self._is_ending = False
        self._ended_at: float | None = None
        self._last = _LagReading({}, -math.inf, 0.0)
        self._failures = ChangeLog(_log, time.monotonic)  # of the thread
        self._hangs = ChangeLog(_log, time.monotonic)  # of the thread that asks

    def start(self) -> None:
        """Start waiting for `ask`."""
        # A daemon: a call that hangs must not keep the process alive.
        name = f"lag of {self._name}"[:60]
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def ask(self, position: Position) -> None:
        """Request a reading of the lag, after any call in progress.

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

        If the source takes longer than an interval to answer, the limit is three times that time.
        """
        last = self._last
        now = time.monotonic() if self._ended_at is None else self._ended_at
        if now - last.read_at > max(self._patience_s, STALE_INTERVALS * last.took_s):
            return _unknown(last.lags)
        return last.lags

    @property
    def stuck_s(self) -> float:
        """Seconds that the source has spent in its current call; 0.0 between two calls."""
        began = self._began_at
        return 0.0 if began is None else time.monotonic() - began

    def end(self, position: Position, until: float) -> None:
        """Read the lag a last time, and end the thread; a hung thread is left alone.

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
                self._last = _LagReading(lags, now, now - began)
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
