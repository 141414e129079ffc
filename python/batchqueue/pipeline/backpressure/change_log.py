"""`ChangeLog`: lines for the log when something has changed, and not too often."""

from collections.abc import Callable, Hashable
from dataclasses import dataclass

from batchqueue._background_log import BackgroundLog

_log = BackgroundLog("batchqueue.pipeline")


@dataclass
class _Subject:
    logged: Hashable
    seen: Hashable
    logged_at: float
    changes: int = 0


class ChangeLog:
    """Logs the state of a subject when it differs from the state that was logged last.

    A subject has at most one line per `interval_s`. What changes sooner is logged when the time
    has come, if it is still different, and the line says how many changes were left out.
    """

    def __init__(self, clock: Callable[[], float], interval_s: float = 60.0) -> None:
        """Begin without subjects.

        Args:
            clock: Returns the time, in seconds.
            interval_s: Seconds between two lines of a subject. Default: 60.
        """
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
        """Take note of a state.

        Args:
            subject: What it is the state of.
            state: The state.
            initial: The state that needs no line, if it is the first.
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
        _log.log(level, "%s%s", line(), f" ({left_out} changes not logged)" if left_out else "")
        known.logged, known.logged_at, known.changes = state, now, 0
