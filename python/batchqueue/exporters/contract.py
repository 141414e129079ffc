"""The contract of exporters: what `export` returns, and how the queue acts on it."""

import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Self, TypeVar

from batchqueue.base.words import a_type, counted
from batchqueue.exceptions import BatchFailed, ConfigError
from batchqueue.queues.queue import live_stats

T = TypeVar("T")

_log = logging.getLogger("batchqueue")


# What became of an item.


@dataclass(frozen=True, slots=True)
class NotDelivered:
    """The outcome of an item that was not delivered, or of which that is unknown.

    Attributes:
        error: Why. A dead letter of the item has it.
        retry: Whether the item is tried again, as the `RetryPolicy` of the queue says. Without
            that, it has failed for good: it becomes a dead letter, whatever attempts are left.
            Default: True.
    """

    error: BaseException
    retry: bool = True


Outcome = NotDelivered | None
"""What became of an item: None if it was delivered."""


class NotRetried(BaseException):
    """The cause of a batch whose items failed for good.

    It is not an `Exception`, so that the default `RetryPolicy.retry_on` does not cover it.
    """


class ExportFailed(BatchFailed):
    """What an exporter raises for the items of a batch that were not delivered.

    A dead letter has the error of its item instead.

    Attributes:
        failures: The outcome of each of `items`.
    """

    def __init__(self, items: Sequence[Any], failures: Sequence[NotDelivered]) -> None:
        """Name the items that failed, and why. They are tried again if any of them should be."""
        again = next((failure.error for failure in failures if failure.retry), None)
        cause = again
        if cause is None:
            cause = NotRetried(*(str(failure.error) for failure in failures[:1]))
            cause.__cause__ = failures[0].error
        super().__init__(items, cause=cause)
        self.failures = list(failures)
        self._by_item = {
            id(item): failure.error for item, failure in zip(items, failures, strict=True)
        }
        self._on_dead_letter: Callable[[], object] | None = None

    def error_of(self, item: Any) -> BaseException:
        """Return the error of one of the items, for its dead letter."""
        if self._on_dead_letter is not None:
            self._on_dead_letter()
        return self._by_item.get(id(item), self)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.items, self.failures)


# The base class.


class Exporter(Generic[T]):
    """A handler that sends items to another system, and says what became of each.

    Give it to a queue as any handler: `queue.add_handler(Order, exporter)`. The queue makes the
    batches, retries as its `RetryPolicy` says, passes what fails for good to its `dead_letter`, and
    counts; it never runs two calls of one exporter concurrently. For several drain threads, use
    `add_handler_factory`, so that each has an exporter.

    A subclass defines `export`; `disconnect` and `forget` if it keeps a connection.

    Example:
        >>> from batchqueue import BatchQueue
        >>> stored = []
        >>> class Names(Exporter[str]):
        ...     def export(self, items):
        ...         outcomes = []
        ...         for name in items:
        ...             bad = ValueError("a name has letters") if not name.isalpha() else None
        ...             if bad is None:
        ...                 stored.append(name)
        ...             outcomes.append(bad and NotDelivered(bad, retry=False))
        ...         return outcomes
        >>> letters = []
        >>> with BatchQueue("names") as queue:
        ...     queue.add_handler(str, Names(), dead_letter=letters.extend)
        ...     queue.produce_many(["Ada", "4711", "Emmy"])
        3
        >>> stored, [(letter.item, letter.error) for letter in letters]
        (['Ada', 'Emmy'], [('4711', ValueError('a name has letters'))])
    """

    _exporter_state: "_ProcessState"

    def __new__(cls, *_args: Any, **_options: Any) -> Self:
        """Make the state, so that a subclass need not call `super().__init__()`."""
        exporter = super().__new__(cls)
        exporter._exporter_state = _ProcessState()
        return exporter

    def export(self, items: list[T]) -> Sequence[Outcome] | None:
        """Send items, in order.

        An exception means that the outcome of all of them is unknown: the batch is tried again
        under the `RetryPolicy` of the queue, if its `retry_on` covers the exception.

        Args:
            items: One item or more.

        Returns:
            The outcome of each item: None if it was delivered, or a `NotDelivered`. Instead of a
            list, None means that all were delivered.
        """
        raise NotImplementedError(f"{type(self).__name__} must define export(items)")

    def disconnect(self) -> None:
        """Close what `export` has opened. The next call of `export` opens it again."""

    def forget(self) -> None:
        """Drop, in a forked child, what the parent has opened, without a word to the other side."""

    def close(self, timeout: float | None = None) -> list[T]:
        """Disconnect, once the call that may be inside has returned; it stops waiting.

        The queue calls this after the last batch. From other threads it may be called at any time.

        Args:
            timeout: Seconds to wait for the call. Default: None, no limit.

        Returns:
            The items of a call that has not returned in time, which may or may not be delivered;
            otherwise an empty list, because the queue holds all other items.
        """
        state = _state_of(self)
        state.closing.set()
        try:
            if not state.lock.acquire(timeout=-1 if timeout is None else max(0.0, timeout)):
                return list(state.inside)
            try:
                self.disconnect()
            finally:
                state.lock.release()
        finally:
            state.closing.clear()
        return []

    def pause(self, seconds: float) -> bool:
        """Wait inside `export`, for instance because the other side asks for it.

        Returns:
            Whether the time has passed. It ends early when `close` is called, or when a queue of
            this process is shutting down: the attempt may be the last one.
        """
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            if _is_shutting_down() or self._exporter_state.closing.wait(min(left, 0.1)):
                return False
        return True

    def consume(self, batch: list[T]) -> list[None]:
        """Export a batch of a queue.

        Returns:
            None for each item, as the results of submitted items.

        Raises:
            ExportFailed: Some items were not delivered.
        """
        state = _state_of(self)
        with state.lock:
            state.inside = batch
            try:
                failed = state.export(self, batch)
            finally:
                state.inside = []
        if failed is not None:
            raise failed
        return [None] * len(batch)

    def on_close(self) -> None:
        """Disconnect after the last batch of the queue."""
        left = self.close(0)
        if left:
            _log.error("%r was closed with %s undelivered", self, counted(len(left), "item"))


class _ProcessState:
    """What an exporter has in one process."""

    def __init__(self) -> None:
        self.process = os.getpid()
        self.lock = threading.Lock()
        """Held by a call of `export`, and by `close` while it disconnects."""
        self.closing = threading.Event()
        """Set while `close` waits; ends a `pause`."""
        self.inside: list[Any] = []
        """The items of the call that runs now."""
        self._dead = _DeadItems()

    def export(self, exporter: Exporter[Any], batch: list[Any]) -> ExportFailed | None:
        """Export those items of a batch whose outcome is open; return what to raise."""
        known = self._dead.take(batch)
        if known is None:
            outcomes = _checked(exporter, batch, exporter.export(list(batch)))
        else:
            rest = [item for item, outcome in zip(batch, known, strict=True) if outcome is None]
            try:
                found = iter(_checked(exporter, rest, exporter.export(list(rest))))
            except Exception as error:
                found = iter([NotDelivered(error)] * len(rest))
            outcomes = [next(found) if outcome is None else outcome for outcome in known]
        failures = [outcome for outcome in outcomes if outcome is not None]
        if not failures:
            return None
        items = [item for item, outcome in zip(batch, outcomes, strict=True) if outcome is not None]
        failed = ExportFailed(items, failures)
        if any(failure.retry for failure in failures):
            failed._on_dead_letter = self._dead.keep(items, failures)
        return failed


def _state_of(exporter: Exporter[Any]) -> _ProcessState:
    """Return the state in this process: a forked child has nothing of its parent's."""
    if exporter._exporter_state.process != os.getpid():
        exporter._exporter_state = _ProcessState()
        exporter.forget()
    return exporter._exporter_state


def _checked(exporter: Exporter[Any], items: list[Any], returned: Any) -> list[Outcome]:
    """Check what `export` returned. A mistake would be repeated, so it is not retried."""
    if returned is None:
        return [None] * len(items)
    what = a_type(returned)
    if isinstance(returned, Iterable) and not isinstance(returned, (str, bytes)):
        outcomes = list(returned)
        wrong = [
            each for each in outcomes if each is not None and not isinstance(each, NotDelivered)
        ]
        if len(outcomes) == len(items) and not wrong:
            return outcomes
        what = repr(wrong[0]) if wrong else counted(len(outcomes), "outcome")
    error = ConfigError(
        f"export of {type(exporter).__name__} returned {what} for {counted(len(items), 'item')}; "
        "return None, or a list with None or a NotDelivered for each item"
    )
    return [NotDelivered(error, retry=False)] * len(items)


class _DeadItems:
    """The items that failed for good in batches of which other items are tried again.

    The queue has one outcome for all items that a call names. So those that failed for good stay
    with the others until none is to be tried again; they are not exported again meanwhile. A batch
    that is not found here is exported as a whole, and the other side refuses its bad items again.
    """

    _MOST = 100

    def __init__(self) -> None:
        self._batches: dict[int, tuple[list[Any], list[NotDelivered]]] = {}
        """By the identity of the first item, which is kept, so that it stays the same."""

    def keep(self, items: list[Any], failures: list[NotDelivered]) -> Callable[[], object] | None:
        """Note a batch that comes again; return what drops it, if any item has failed for good."""
        if all(failure.retry for failure in failures):
            return None
        while len(self._batches) >= self._MOST:
            self._batches.pop(next(iter(self._batches)))
        key, batch = id(items[0]), (items, failures)
        self._batches[key] = batch

        def drop() -> None:
            if self._batches.get(key) is batch:
                self._batches.pop(key, None)

        return drop

    def take(self, batch: list[Any]) -> list[Outcome] | None:
        """Return what is known of a batch that comes again: a `NotDelivered` for the dead items."""
        if not self._batches:
            return None
        items, failures = self._batches.pop(id(batch[0]), ([], []))
        if len(items) != len(batch) or any(a is not b for a, b in zip(items, batch, strict=True)):
            return None
        return [None if failure.retry else failure for failure in failures]


def _is_shutting_down() -> bool:
    """Whether a queue that is being shut down waits for a call."""
    return any(not queue.running and counts.in_flight for queue, counts in live_stats())


# Waits that the other side asks for.

_MOST_PAUSE_S = 5.0
"""The longest wait inside one call. A longer one takes several attempts."""


class AskedWait:
    """The time before which the other side wants no request.

    Args:
        most_s: The most seconds that are respected.
    """

    def __init__(self, most_s: float) -> None:
        self._most_s = most_s
        self._end = 0.0
        """A time of the monotonic clock."""
        self._failure: NotDelivered | None = None

    def ask(self, seconds: float, failure: NotDelivered) -> None:
        """Note that the other side asks for a wait, and what it has not taken until then."""
        self._end = time.monotonic() + min(seconds, self._most_s)
        self._failure = failure

    def before(self, exporter: Exporter[Any]) -> NotDelivered | None:
        """Wait, but not for long; return the outcome of all items if that was not long enough."""
        left = self._end - time.monotonic()
        if left <= 0:
            return None
        has_waited = exporter.pause(min(left, _MOST_PAUSE_S))
        return self._failure if left > _MOST_PAUSE_S and has_waited else None


# Batches of which the other side refuses a part, without a word on which.

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Halve:
    """What became of rows that were refused together: each half is sent alone."""

    error: BaseException


def send_in_halves(
    rows: list[R], send: Callable[[list[R]], Sequence[Outcome] | Halve]
) -> list[Outcome]:
    """Send rows in order, in ever smaller parts where they are refused together.

    After a part that is to be tried again nothing else is sent, so that no row overtakes another.

    Args:
        rows: The rows to send.
        send: Sends some of them. Returns an outcome for each, or a `Halve`.

    Returns:
        The outcome of each row.
    """
    outcomes: list[Outcome] = []
    parts = [rows] if rows else []
    while parts:
        part = parts.pop()
        sent = send(part)
        if isinstance(sent, Halve):
            if len(part) > 1:
                middle = len(part) // 2
                parts += [part[middle:], part[:middle]]
                continue
            sent = [NotDelivered(sent.error, retry=False)]
        outcomes += sent
        again = next((each for each in sent if each is not None and each.retry), None)
        if again is not None:
            outcomes += [again] * (len(rows) - len(outcomes))
            break
    return outcomes
