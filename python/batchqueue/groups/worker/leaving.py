"""`Leaving`: how a worker ends, and when it has nothing to do."""

import atexit
import math
import threading
import time
from collections.abc import Callable

from batchqueue._background_log import BackgroundLog, flush_log
from batchqueue._signals import Flag, wait_for
from batchqueue.groups.worker.membership import Membership
from batchqueue.groups.worker.metrics import summary_of
from batchqueue.groups.worker.summary import WorkerSummary

_log = BackgroundLog("batchqueue")

_POLL_S = 0.05

LAST_SHUTDOWN_S = 5.0
"""How long the local queue may take to end when nothing is in hand."""


class Leaving:
    """The end of a worker. Several threads may ask for it: one does it, and the others wait.

    Attributes:
        leaver: The thread that does it, or None.
        is_over: Whether it is done.
    """

    def __init__(
        self,
        member: Membership,
        threads: list[threading.Thread],
        at_exit: Callable[[], None],
    ) -> None:
        self.leaver: int | None = None
        self._member = member
        self._threads = threads
        self._at_exit = at_exit
        self._by = math.inf
        self._done = threading.Event()
        self._summary: WorkerSummary | None = None
        self._interrupt: BaseException | None = None

    @property
    def is_over(self) -> bool:
        """Whether it is done."""
        return self._done.is_set()

    def leave(self, grace: float, give_up: Flag) -> WorkerSummary:
        """Leave the group, and return what the worker has done; raise why it stopped, if it did.

        Args:
            grace: Seconds for what is in hand. The shortest of all callers counts.
            give_up: Set to end the grace.
        """
        member = self._member
        if member.is_called_by_handler:
            with member.lock:
                member.control.leave()
                member.control_due.notify()
            return summary_of(member)
        with member.lock:
            self._by = min(self._by, time.monotonic() + grace)
            is_first, self.leaver = self.leaver is None, self.leaver or threading.get_ident()
        if is_first:
            try:
                self._do(give_up)
            finally:
                self._done.set()
        elif self.leaver == threading.get_ident() and not self.is_over:
            return summary_of(member)  # called by a signal handler in the middle of `leave`
        wait_for(self._done)
        with member.lock:
            error, member.error = member.error, None
        if error is not None:
            raise error
        return self._summary or summary_of(member)

    def _do(self, give_up: Flag) -> None:
        member = self._member
        with member.lock:
            member.control.leave()
            member.control_due.notify()
        self._wait(lambda: self._by, give_up)
        with member.lock:
            if not member.control.ended:
                member.control.give_up()
                member.obey(member.control.orders())
                member.control_due.notify()
        end = time.monotonic() + member.control.timeout_ms / 1_000
        self._wait(lambda: end, Flag())
        with member.lock:
            self._summary = summary_of(member)
            member.stop_threads()
        unfinished = member.notes.unfinished
        if unfinished:
            _log.warning(
                "%s: records in hand were given up, by partition: %s",
                member.stream,
                dict(unfinished),
            )
        member.connection.close()
        # Whatever still runs there is ignored, so a handler that hangs is not waited for.
        member.queue.shutdown(0 if unfinished else LAST_SHUTDOWN_S)
        if not member.lanes:  # else the local queue has closed the handlers
            for route in member.routes.all:
                if route.on_close is not None:
                    route.on_close()
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(1.0)
        flush_log()
        atexit.unregister(self._at_exit)
        if self._interrupt is not None:
            raise self._interrupt

    def _wait(self, end: Callable[[], float], give_up: Flag) -> None:
        """Wait until the control side has ended, the time is over, or `give_up` is set.

        Ctrl-C ends the wait too, and is raised when the worker has ended.
        """
        member = self._member
        try:
            while not (member.control.ended or member.is_stopping):
                left = end() - time.monotonic()
                if left <= 0 or give_up.is_set:
                    return
                with member.lock:
                    if not member.control.ended:
                        member.over.wait(min(left, _POLL_S))
        except BaseException as interrupt:
            self._interrupt = self._interrupt or interrupt


def is_idle(member: Membership, seconds: float) -> bool:
    """Whether all that it holds was read to the end, and nothing came for some seconds."""
    with member.lock:
        notes = member.notes
        if not member.control.is_settled:
            return False
        if notes.assigned == 0 and notes.idle_s < member.settings.lease_ms / 1_000:
            return False  # the first plan may still come
        waiting = any(not (held.is_caught_up or held.is_paused) for held in member.held.values())
        busy = waiting or member.counts.in_hand > 0 or bool(member.dirty)
        busy = busy or any(held.refused is not None for held in member.held.values())
        return not busy and notes.idle_s >= seconds
