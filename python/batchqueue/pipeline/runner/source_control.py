"""`SourceControl`: pauses, holds and stops a source, always between two of its steps."""

import threading
import time
from collections.abc import Callable

from batchqueue.pipeline.contract import Position
from batchqueue.pipeline.runner.ending import RunEnded


class SourceControl:
    """What a source thread obeys. A *pause* is a wish and may last; a *hold* is part of a cut.

    The thread calls `begin` before each split, and `complete` behind it. It reads nothing else, so
    nothing is skipped, and while it is held the position says exactly what the stages have got. A
    hold waits for the split in hand, even in a pause.

    All fields are read and written under `_changed`, the position by the source thread alone until
    it has ended.
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
        self._has_finished = False
        self._is_closed = False
        self._has_ended = False
        self._requests: list[Callable[[], None]] = []
        self._paused_at: float | None = None
        self._paused: dict[str, float] = {}

    # What others call.

    def pause(self, reason: str) -> None:
        """Let the source plan and read nothing more."""
        with self._changed:
            self._account()
            if reason not in self._reasons:
                self._reasons.append(reason)
            self._changed.notify_all()

    def resume(self, reason: str | None = None) -> bool:
        """End the pause for a reason, or all pauses; return whether the source continues."""
        with self._changed:
            self._account()
            self._reasons = [
                each for each in self._reasons if reason is not None and each != reason
            ]
            self._changed.notify_all()
            return not self._reasons

    def hold(self) -> None:
        """Let the source begin no other split."""
        with self._changed:
            self._is_held = True
            self._changed.notify_all()

    def wait_until_held(self, timeout: float | None = None) -> bool:
        """Wait until it has no split in hand; return False if time ran out.

        Raises:
            RunEnded: The run ends early.
        """
        with self._changed:
            done = self._changed.wait_for(lambda: self._has_ended or not self._is_reading, timeout)
            if self._has_ended:
                raise RunEnded
            return done

    def wait_until_replayed(self) -> None:
        """Wait until a replay is complete.

        Raises:
            RunEnded: The run ends early.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._has_ended or self._is_replayed)
            if self._has_ended:
                raise RunEnded

    def release(self) -> None:
        """End a hold."""
        with self._changed:
            self._is_held = False
            self._changed.notify_all()

    def stop(self) -> None:
        """Let the source end behind the split in hand."""
        with self._changed:
            self._is_stopping = True
            self._changed.notify_all()

    def request(self, what: Callable[[], None]) -> None:
        """Have the thread do something when it has no split in hand, also after its end."""
        with self._changed:
            self._requests.append(what)
            self._changed.notify_all()

    def wake(self) -> None:
        """End the rest of a source that found nothing new."""
        with self._changed:
            self._is_awake = True
            self._changed.notify_all()

    def close(self) -> None:
        """Let the thread end once it has done what was requested."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def end(self) -> None:
        """Let the thread end immediately."""
        with self._changed:
            self._has_ended = True
            self._changed.notify_all()

    @property
    def has_finished(self) -> bool:
        """Whether the source has come to its end, or has stopped."""
        with self._changed:
            return self._has_finished

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why it is paused; empty if it is not."""
        with self._changed:
            return tuple(self._reasons)

    @property
    def paused_seconds(self) -> dict[str, float]:
        """How long it was paused so far, by reason; several reasons count each."""
        with self._changed:
            self._account()
            return dict(self._paused)

    # What the source thread calls.

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
        with self._changed:
            self.position = position
            self._is_reading = False
            self._changed.notify_all()

    def wait_while_paused(self) -> None:
        """Wait within a split. A cut or a stop needs the rest of it, so they end the wait."""
        if self._reasons:  # read without the lock: a pause may as well come a chunk later
            self._wait(
                lambda: self._is_stopping or self._is_held or not self._reasons, serves=False
            )

    def wait_behind_replay(self) -> None:
        """Note that a replay is complete, and wait until its cut is done."""
        with self._changed:
            self._is_replayed = True
            self._changed.notify_all()
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
        with self._changed:
            self._has_finished = True
            self._is_reading = False
            self._changed.notify_all()

    def serve_until_closed(self) -> None:
        """Do what is requested, until `close`."""
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
