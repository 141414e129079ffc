"""`Inbox`: what other threads ask the thread of a consumer for, while they wait for the replies."""

import threading
from collections import deque
from concurrent.futures import Future
from typing import Any, Generic, NamedTuple, TypeVar

from batchqueue.groups.errors import StreamUnavailableError

W = TypeVar("W")


class Asked(NamedTuple, Generic[W]):
    """What was asked for, and where the reply goes."""

    what: W
    reply: "Future[Any]"


class Inbox(Generic[W]):
    """Requests, in the order in which they came."""

    def __init__(self, topic: str) -> None:
        """Begin without requests.

        Args:
            topic: The topic, for errors.
        """
        self._topic = topic
        self._changed = threading.Condition()
        self._asked: deque[Asked[W]] = deque()
        self._is_closed = False

    def ask(self, what: W, timeout_s: float) -> Any:
        """Ask for something, and return the reply.

        Args:
            what: The request.
            timeout_s: How long to wait.

        Raises:
            StreamUnavailableError: It takes longer, or the consumer is closed.
        """
        reply: Future[Any] = Future()
        with self._changed:
            if self._is_closed:
                raise self._closed()
            self._asked.append(Asked(what, reply))
        try:
            return reply.result(timeout_s)
        except TimeoutError:
            reply.cancel()
            reason = f"the consumer did not answer in {timeout_s:g} s"
            raise StreamUnavailableError(self._topic, reason) from None

    def take(self) -> Asked[W] | None:
        """Remove the next request for which someone waits; return None if there is none."""
        while self._asked:
            asked = self._asked.popleft()
            if asked.reply.set_running_or_notify_cancel():
                return asked
        return None

    def __bool__(self) -> bool:
        """Whether there are requests."""
        return bool(self._asked)

    def close(self) -> None:
        """Refuse the requests that wait, and those that come later."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
            while (asked := self.take()) is not None:
                asked.reply.set_exception(self._closed())

    def wait_closed(self, wait_s: float) -> None:
        """Wait until it is closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_closed, wait_s)

    def _closed(self) -> StreamUnavailableError:
        return StreamUnavailableError(self._topic, "the consumer is closed")
