"""`Ending`: what ends a run before its time, and who has to know."""

import threading
from collections.abc import Callable

from batchqueue.pipeline.chunks.origin import Origin
from batchqueue.pipeline.errors import OperatorError, StageFailedError


class RunEnded(Exception):
    """The run ends early: what has not been handled is dropped, and comes again with the next."""


class Ending:
    """The first error of a run, or that it is given up. Either way nothing more is handled.

    Attributes:
        failure: The first error, or None. Written once, before `has_begun`.
        has_begun: Whether the run ends early. Read by all threads between two chunks.
    """

    def __init__(self) -> None:
        self.failure: StageFailedError | None = None
        self.has_begun = False
        self._lock = threading.Lock()
        self._callbacks: list[Callable[[], None]] = []

    def notify(self, callback: Callable[[], None]) -> None:
        """Have a function called when the run ends early, or now if it does already."""
        with self._lock:
            self._callbacks.append(callback)
            is_late = self.has_begun
        if is_late:
            callback()

    def fail(self, stage: str, error: BaseException, origin: Origin | None = None) -> None:
        """End the run with an error. Later errors are not kept: they may follow from the first."""
        cause = error
        if isinstance(error, OperatorError) and isinstance(error.__cause__, Exception):
            cause = error.__cause__
        where = "" if origin is None else f", with {origin}"
        text = (
            str(error) if isinstance(error, OperatorError) else f"{type(cause).__name__}: {cause}"
        )
        failure = StageFailedError(
            f"stage {stage!r} failed{where}: {text}; the run has ended, and the next one continues "
            "behind the last cut",
            stage,
            None if origin is None else origin.position,
        )
        failure.__cause__ = cause
        self._begin(failure)

    def give_up(self) -> None:
        """End the run without an error: there is no more time."""
        self._begin(None)

    def _begin(self, failure: StageFailedError | None) -> None:
        with self._lock:
            if self.has_begun:
                return
            self.failure = failure
            self.has_begun = True
            callbacks = list(self._callbacks)
        for callback in callbacks:
            callback()
