"""`Handover`: the thread that calls the user's callbacks when partitions come and go."""

import enum
import threading
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from batchqueue.base.background_log import BackgroundLog
from batchqueue.exceptions import ConfigError
from batchqueue.groups.record import Assignment
from batchqueue.groups.worker.held import HeldPartition
from batchqueue.groups.worker.routes import called_methods, described
from batchqueue.queues.handlers import HandlerOpening

if TYPE_CHECKING:
    from batchqueue.groups.worker.membership import Membership

_log = BackgroundLog("batchqueue")


class Task(enum.Enum):
    """A task for a partition."""

    ASSIGN = "assign"
    """Create its lanes and its handler, call `on_assign`, and run it."""

    REVOKE = "revoke"
    """Call `on_revoke` and close its handler, once nothing of the partition runs any more."""

    LOST = "lost"
    """Call `on_lost`."""

    CLOSE = "close"
    """Close the handler of a partition that was lost."""


class Handover:
    """Runs tasks one after the other: a callback has returned before the next one is called.

    A slow callback delays only the partitions that come and go after it.
    """

    def __init__(self, membership: "Membership") -> None:
        self._membership = membership
        self._tasks: deque[tuple[Task, HeldPartition]] = deque()
        self._due = threading.Condition(membership.lock)
        self._is_stopping = False
        self._began_ms: float | None = None

    def stuck_ms(self, now_ms: float) -> float:
        """Return how long the thread has been busy with its task; 0 if it waits for one."""
        began = self._began_ms
        return 0.0 if began is None else now_ms - began

    def put(self, task: Task, held: HeldPartition) -> None:
        """Queue a task. Under the lock."""
        self._tasks.append((task, held))
        self._due.notify()

    def stop(self) -> None:
        """End the thread once no tasks are left. Under the lock."""
        self._is_stopping = True
        self._due.notify()

    def run(self) -> None:
        """Run tasks until `stop`; the body of the thread."""
        while True:
            with self._membership.lock:
                while not self._tasks:
                    if self._is_stopping:
                        return
                    self._due.wait()
                task, partitions = self._next()
                self._began_ms = self._membership.now_ms()
            try:
                with self._membership.user_code():
                    self._do(task, partitions)
            except BaseException as error:  # it continues: partitions that are lost now have an end
                self._membership.abort(error)
            self._began_ms = None

    def _next(self) -> tuple[Task, list[HeldPartition]]:
        """Return the first task, with the consecutive partitions that have it."""
        task, first = self._tasks.popleft()
        partitions = [first]
        while self._tasks and self._tasks[0][0] is task:
            partitions.append(self._tasks.popleft()[1])
        return task, partitions

    def _do(self, task: Task, partitions: list[HeldPartition]) -> None:
        settings = self._membership.settings
        if task is Task.ASSIGN:
            self._assign(partitions)
        elif task is Task.REVOKE:
            with self._membership.lock:
                lost = [held for held in partitions if held.is_over]
            kept = [held for held in partitions if held not in lost]
            try:
                self._call("on_revoke", settings.on_revoke, kept)
            finally:
                self._call("on_lost", settings.on_lost, lost)
            for held in partitions:
                self._close(held)
            with self._membership.lock:
                self._membership.handed_over(partitions)
        elif task is Task.LOST:
            self._call("on_lost", settings.on_lost, partitions)
        else:
            for held in partitions:
                self._close(held)

    def _assign(self, partitions: list[HeldPartition]) -> None:
        member = self._membership
        with member.lock:
            wanted = member.still_wanted(partitions)
        prepared = [held for held in wanted if self._prepares(held)]
        with member.lock:
            ready = member.announced(prepared)
        try:
            if member.settings.on_assign is not None and ready:
                member.settings.on_assign(_assignments(ready))
        except Exception as error:
            self._try_again(ready, error)
            return
        with member.lock:
            member.taken(ready)

    def _prepares(self, held: HeldPartition) -> bool:
        """Create the lanes and the handler of a partition; False if that has to be tried again."""
        member = self._membership
        try:
            if member.routes.factory is not None and held.handler is None:
                assert held.assignment is not None
                held.handler = HandlerOpening(
                    called_methods(member.routes.factory(held.assignment))
                )
            member.prepare(held)
        except Exception as error:
            if isinstance(error, ConfigError):  # a retry would fail as well
                with member.lock:
                    member.fail(error)
            self._try_again([held], error)
            return False
        return True

    def _try_again(self, partitions: list[HeldPartition], error: Exception) -> None:
        """Schedule another attempt to assign partitions."""
        member = self._membership
        _log.error(
            "%s: partitions %s cannot be taken, and it is tried again: %s",
            member.stream,
            [held.partition for held in partitions],
            described(error),
        )
        with member.lock:
            member.postponed(partitions)

    def _call(
        self,
        name: str,
        function: Callable[[list[Assignment]], Any] | None,
        partitions: list[HeldPartition],
    ) -> None:
        if function is None or not partitions:
            return
        try:
            function(_assignments(partitions))
        except Exception as error:
            _log.error("%s of %s raised: %s", name, self._membership.stream, described(error))

    def _close(self, held: HeldPartition) -> None:
        handler, held.handler = held.handler, None
        if handler is None:
            return
        try:
            handler.on_close()
        except Exception as error:
            stream = self._membership.stream
            _log.error(
                "on_close of the handler of %s/%d raised: %s",
                stream,
                held.partition,
                described(error),
            )


def _assignments(partitions: list[HeldPartition]) -> list[Assignment]:
    return [held.assignment for held in partitions if held.assignment is not None]
