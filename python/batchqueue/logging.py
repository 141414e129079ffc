"""`QueueHandler`: a handler of `logging` that ships records to a handler of a queue, in batches.

The thread that logs renders the message and puts the record into a `BatchQueue`; the queue's drain
thread calls the target. A call takes no lock, unless it starts the queue, so that it may be made in
a signal handler, a `__del__` or a forked child, wherever that interrupts another call.
"""

import atexit
import contextlib
import json
import logging
import os
import pkgutil
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import partial
from logging import LogRecord
from typing import Any, Literal, cast

from batchqueue._core import Counter, PartitionPolicy, ThreadPolicy, stats_of
from batchqueue.base.checks import check_choice, check_finite
from batchqueue.base.words import a_type, counted, type_name
from batchqueue.exceptions import (
    BatchFailed,
    BatchQueueError,
    ConfigError,
    ProduceTimeoutError,
    QueueForkedError,
    ReentrantProduceError,
)
from batchqueue.queues.callbacks import DeadLetter, describe_error
from batchqueue.queues.config import BatchQueueConfig, BufferStrategy, RetryPolicy
from batchqueue.queues.handlers import SupportsConsume, blocking_methods
from batchqueue.queues.queue import BatchQueue
from batchqueue.queues.stats import BatchQueueStats

__all__ = ["QueueHandler", "QueueHandlerStats", "as_dict", "as_json"]

Target = SupportsConsume[Any] | Callable[[list[Any]], Any] | logging.Handler
"""What gets the records: a handler of a queue, or a handler of `logging`."""

Form = Literal["records", "dicts", "json", "text"]

_FORMS = ("records", "dicts", "json", "text")

_REPORT_S = 60.0
"""The least seconds between two reports of what was dropped, and of a target that fails."""

_START_S = 1.0
"""The most seconds that a call waits for another thread that starts the queue."""

_DEFAULT_RETRY = RetryPolicy(attempts=10, jitter=0.5)

_PACKAGE = "batchqueue"
"""The logger of the core's lines."""

_Item = dict[str, Any] | tuple[type[LogRecord], dict[str, Any]]
"""What is in the queue: the fields of a record, with its class if that is not `LogRecord`."""

_shipping: dict[int | None, int] = {None: 0}
"""The threads that are inside a target now, with their process.

What they log comes from a target, or from a library that it uses, and is not shipped by any
`QueueHandler`: two handlers would otherwise ship each other's lines forever. A record whose thread
is None, because `logging.logThreads` is off, needs a closer check.
"""

_handlers: "weakref.WeakSet[QueueHandler]" = weakref.WeakSet()

_default_formatter = logging.Formatter()


# Records as other objects.


_NOT_EXTRA = {
    *vars(LogRecord("", 0, "", 0, "", None, None)),
    *("message", "asctime", "taskName", "exc_type"),
}
"""The names of the fields of a record that do not come from `extra`."""


def as_dict(record: LogRecord) -> dict[str, Any]:
    """Return a record as a dict: one key per field, and those of `extra` beside them.

    `exc_type`, `exc_text` and `stack_info` are left out if the record has none. A key of `extra`
    that has the name of a field gets a `_` at its end.

    Example:
        >>> import logging
        >>> fields = {"name": "shop", "levelname": "INFO", "msg": "paid", "created": 0.0}
        >>> record = logging.makeLogRecord(fields | {"order": 7})
        >>> shown = as_dict(record)
        >>> shown["time"], shown["level"], shown["logger"], shown["message"], shown["order"]
        ('1970-01-01T00:00:00.000000+00:00', 'INFO', 'shop', 'paid', 7)
    """
    fields = vars(record)
    message = fields.get("message")
    found = {
        "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="microseconds"),
        "level": record.levelname,
        "logger": record.name,
        "message": record.getMessage() if message is None else message,
        "path": record.pathname,
        "line": record.lineno,
        "function": record.funcName,
        "process": record.process,
        "thread": record.threadName,
    }
    for name in ("taskName", "exc_type", "exc_text", "stack_info"):
        value = fields.get(name)
        if value is not None:
            found[name] = value
    for name in fields.keys() - _NOT_EXTRA:
        found[f"{name}_" if name in found else name] = fields[name]
    return found


def as_json(record: LogRecord) -> str:
    """Return `as_dict` of a record as JSON on one line, in ASCII.

    Values that JSON does not have are shown as their `repr`, and so is each value of `extra` if one
    of them contains itself, or is not a finite number.
    """
    fields = as_dict(record)
    try:
        return json.dumps(fields, default=_shown, allow_nan=False)
    except (ValueError, TypeError, RecursionError):
        known = (str, int, type(None))
        plain = {
            str(name): value if isinstance(value, known) else _shown(value)
            for name, value in fields.items()
        }
        return json.dumps(plain)


def _shown(value: object) -> str:
    try:
        return repr(value)
    except Exception as error:  # from the program's class; the rest of the record is kept
        return f"<{type(value).__name__} whose repr raised {type(error).__name__}>"


# From the queue to the target.


class _LogTarget:
    """The consumer of the queue: makes records of what the queue has, and calls the target.

    It does not know its `QueueHandler`: a queue that is dropped delivers what it has and ends, and
    a queue that its consumer refers to would never be dropped.

    Attributes:
        formatter: The formatter of the handler, which runs here.
    """

    def __init__(self, target: Target, form: Form) -> None:
        self.formatter: logging.Formatter | None = None
        self._form = form
        if isinstance(target, logging.Handler):
            self._consume: Callable[[list[Any]], Any] = partial(_give_to_handler, target)
            self.on_close: Callable[[], None] | None = self._guarded(target.flush)
            self.on_open = self.on_idle = None
        else:
            methods = blocking_methods(target)
            self._consume = methods.consume
            self.on_open = self._guarded(methods.on_open)
            self.on_idle = self._guarded(methods.on_idle)
            self.on_close = self._guarded(methods.on_close)
        self._complaints = _Complaints()
        self._tried_again: dict[int, tuple[_Item, Any]] = {}
        """By the identity of an item of the queue: the item, and what the target has named failed.

        The target gets the same object again, because an exporter knows by it what it has sent.
        """

    def consume(self, batch: list[_Item]) -> Any:
        """Call the target with records, or with what they are to be made into."""
        thread = threading.get_ident()
        _shipping[thread] = os.getpid()
        try:
            items = self._items_of(batch)
            given = items.copy()  # the target may change its list
            try:
                result = self._consume(items)
            except BatchFailed as failed:
                raise self._by_index(failed, batch, given) from failed.__cause__
            if isinstance(result, BatchFailed):
                return self._by_index(result, batch, given)
            return result
        finally:
            _shipping.pop(thread, None)

    def on_error(self, batch: list[_Item], error: BaseException) -> None:
        """Report on stderr that records are lost: a line of the log could be lost as well."""
        thread = threading.get_ident()
        _shipping[thread] = os.getpid()
        for item in batch:
            self._tried_again.pop(id(item), None)
            if isinstance(error, BatchFailed):
                error.error_of(item)  # as for a dead letter, so that an exporter forgets the item
        try:
            records = counted(len(batch), "record")
            self._complaints.add(f"{records} could not be delivered: {describe_error(error)}")
        finally:
            _shipping.pop(thread, None)

    def keep(self, letters: list[DeadLetter[_Item]]) -> Any:
        """Call the target with records that another target did not take."""
        try:
            return self.consume([letter.item for letter in letters])
        finally:
            self._tried_again.clear()  # they are not tried again

    def _items_of(self, batch: list[_Item]) -> list[Any]:
        """Return what the target gets for items of the queue."""
        if not self._tried_again:
            return self._made_of([_record_of(item) for item in batch])
        known = [self._tried_again.pop(id(item), None) for item in batch]
        new = [_record_of(item) for item, pair in zip(batch, known, strict=True) if pair is None]
        made = iter(self._made_of(new))
        return [next(made) if pair is None else pair[1] for pair in known]

    def _made_of(self, records: list[LogRecord]) -> list[Any]:
        if self._form == "records":
            return cast("list[Any]", records)
        if self._form == "dicts":
            return [as_dict(record) for record in records]
        if self._form == "json":
            return [as_json(record) for record in records]
        return [self._text_of(record) for record in records]

    def _text_of(self, record: LogRecord) -> str:
        try:
            return (self.formatter or _default_formatter).format(record)
        except Exception as error:  # a formatter that fails must not hold up the other records
            self._complaints.add(f"the formatter failed: {describe_error(error)}")
            return str(vars(record)["message"])

    def _by_index(self, failed: BatchFailed, batch: list[_Item], given: list[Any]) -> BatchFailed:
        """Return the same failure for the items of the queue, and keep what is tried again."""
        if failed.items is None:
            return failed
        places: dict[int, list[int]] = {}
        for index in range(len(given) - 1, -1, -1):
            places.setdefault(id(given[index]), []).append(index)
        indexes = []
        for item in failed.items:
            left = places.get(id(item))
            if not left:
                return BatchFailed(indexes=range(len(given)), cause=failed.cause)
            indexes.append(left.pop())
        for index in indexes:
            self._tried_again[id(batch[index])] = (batch[index], given[index])
        made = {id(batch[index]): given[index] for index in indexes}
        return RecordsFailed(failed, made, indexes)

    def _guarded(self, method: Callable[[], Any] | None) -> Callable[[], Any] | None:
        """Return a method of the target that is called with its thread marked."""
        if method is None:
            return None

        def call() -> Any:
            thread = threading.get_ident()
            _shipping[thread] = os.getpid()
            try:
                return method()
            finally:
                _shipping.pop(thread, None)

        return call


def _record_of(item: _Item) -> LogRecord:
    kind, fields = (LogRecord, item) if isinstance(item, dict) else item
    record = object.__new__(kind)
    record.__dict__ = fields
    record.message = fields["msg"]
    return record


def _give_to_handler(handler: logging.Handler, records: list[LogRecord]) -> None:
    for record in records:
        if record.levelno >= handler.level:
            handler.handle(record)


class RecordsFailed(BatchFailed):
    """What a target raised for its items, with their positions: the queue has other items."""

    def __init__(self, failed: BatchFailed, made: dict[int, Any], indexes: list[int]) -> None:
        """Take a failure, what was made of each item of the queue that failed, and its position."""
        super().__init__(indexes=indexes, cause=failed.cause)
        self._failed, self._made = failed, made

    def error_of(self, item: Any) -> BaseException:
        """Return the error that the target has for an item."""
        return self._failed.error_of(self._made.get(id(item), item))

    def __reduce__(self) -> tuple[Any, ...]:
        return BatchFailed(indexes=self.indexes, cause=self.cause).__reduce__()


class _Complaints:
    """Lines for stderr, at most one per `_REPORT_S`; a later line counts those left out."""

    def __init__(self) -> None:
        self._next_at = float("-inf")
        self._left_out = 0

    def add(self, text: str) -> None:
        """Print a line if one is due."""
        now = time.monotonic()
        if now < self._next_at:
            self._left_out += 1
            return
        left_out, self._left_out, self._next_at = self._left_out, 0, now + _REPORT_S
        _print_error(text + (f" ({left_out} earlier lines left out)" if left_out else ""))


def _print_error(text: str) -> None:
    """Print a line as handlers of `logging` do: not if the program wants no such lines."""
    if logging.raiseExceptions and sys.stderr:
        try:
            sys.stderr.write(f"batchqueue.logging: {text}\n")
        except Exception:  # closed, or a replacement that fails
            return


# From the caller to the queue.


@dataclass(frozen=True)
class QueueHandlerStats:
    """What became of the records that a `QueueHandler` got in this process.

    Each record is accepted, dropped or excluded. At rest, `accepted` is the sum of `delivered`,
    `failed`, `kept` and `abandoned`; before, `waiting` is the rest.

    Attributes:
        accepted: Records put into the buffer, with the lines that report dropped ones.
        dropped: Records not accepted: the buffer was full for `block_s`, the message could not be
            rendered, or the handler was being closed.
        excluded: Records not accepted because they came from a target, from a library inside it,
            or from the queue of this handler.
        delivered: Records that the target took.
        failed: Records that the target did not take in its last attempt.
        kept: Records that the `fallback` took instead.
        abandoned: Records given up because closing took longer than `shutdown_timeout`.
        waiting: Records in the buffer or in a call of the target.
    """

    accepted: int
    dropped: int
    excluded: int
    delivered: int
    failed: int
    kept: int
    abandoned: int
    waiting: int

    def to_dict(self) -> dict[str, int]:
        """Return the fields by name."""
        return asdict(self)


class _Counts:
    """The counts of one handler in one process."""

    def __init__(self) -> None:
        self.dropped = Counter()
        self.excluded = Counter()
        self.printed = Counter()
        """Dropped records of which `handleError` has printed the reason."""
        self.reported = 0
        """Other dropped records that a report has counted. Written with `_reporting`."""
        self.ended: tuple[int, ...] = (0, 0, 0, 0, 0)
        """The counts of queues that have ended, as `_counts_of` returns them."""

    def unreported(self) -> int:
        """Return how many dropped records have been neither printed nor reported."""
        return self.dropped.value - self.printed.value - self.reported


class QueueHandler(logging.Handler):
    """A handler of `logging` that ships records to a target in batches, from another thread.

    The thread that logs runs the filters, renders the message and the traceback, and puts the
    record into a buffer; it never waits longer than `block_s`. A drain thread gives lists of
    records to the target. Those are copies with `message` set, `args` and `exc_info` None, the
    traceback in `exc_text`, and the class of the exception in `exc_type`; other handlers still see
    the original.

    What a target or a library inside it logs is not shipped. A library that logs from its own
    threads is not recognized: exclude its logger by a filter.

    After `close`, and after `logging.config.dictConfig` has closed all handlers, the next record
    starts a new queue. So does the first record in a forked child, whose queue is empty.

    Args:
        target: A function that takes a list, an object with `consume(batch)`, or another handler of
            `logging`. For `dictConfig` also the name of one ("package.module.name", or
            "package.module:name"), or a dict: the name of a factory under "()", and its arguments.
        items: What the target gets: "records", "dicts" (as of `as_dict`), "json" (a line each, as
            of `as_json`), or "text" (what the formatter returns). Default: "records".
        level: The lowest level that is shipped. Default: NOTSET, all.
        name: The name of the queue, in its log lines and metrics. Default: "logging".
        buffer_size: The most records that wait. Default: 20 000.
        max_batch_items: The most records per call of the target. Default: 1 000.
        max_delay_ms: How long a record may wait for its batch to fill. Default: 200 ms.
        block_s: Seconds that a call may wait while the buffer is full, before the record is
            dropped. Default: 0.
        retry: How a batch is retried whose target raised: a `RetryPolicy`, or a dict of its
            arguments; None means never. Default: ten attempts, within about 20 seconds.
        fallback: A target that gets the records that failed for good, in the same form. Default:
            None, they are lost and counted.
        shutdown_timeout: Seconds that `close`, `flush`, and the exit of the interpreter wait for
            the delivery of accepted records. Default: 5 s.

    Raises:
        ConfigError: An argument is invalid.

    Example:
        >>> import logging
        >>> from batchqueue.logging import QueueHandler
        >>> shipped = []
        >>> handler = QueueHandler(shipped.extend, items="text")
        >>> log = logging.getLogger("shop")
        >>> log.addHandler(handler)
        >>> log.warning("order %d is late", 7)
        >>> handler.flush()
        True
        >>> shipped
        ['order 7 is late']
        >>> log.removeHandler(handler)
        >>> handler.close()
    """

    def __init__(
        self,
        target: Target | str | Mapping[str, Any],
        *,
        items: Form = "records",
        level: int | str = logging.NOTSET,
        name: str = "logging",
        buffer_size: int = 20_000,
        max_batch_items: int = 1_000,
        max_delay_ms: float = 200,
        block_s: float = 0,
        retry: RetryPolicy | Mapping[str, Any] | None = _DEFAULT_RETRY,
        fallback: Target | str | Mapping[str, Any] | None = None,
        shutdown_timeout: float = 5,
    ) -> None:
        """Check the arguments. The drain thread starts with the first record."""
        check_choice("items", items, _FORMS)
        check_finite("block_s", block_s, 0, ", in seconds")
        check_finite("shutdown_timeout", shutdown_timeout, 0, ", in seconds")
        if not isinstance(name, str) or not name.isprintable() or not name:
            raise ConfigError(f"name is {name!r}; give a str of printable characters, at least one")
        self._targets = [_LogTarget(_checked("target", _found("target", target), items), items)]
        if fallback is not None:
            found = _checked("fallback", _found("fallback", fallback), items)
            self._targets.append(_LogTarget(found, items))
        config: BatchQueueConfig[_Item] = BatchQueueConfig(
            threads=ThreadPolicy.fixed(1),
            partitions=PartitionPolicy.fixed(1),
            consumer=self._targets[0],
            buffer_size=buffer_size,
            strategy=BufferStrategy.BLOCKING if block_s else BufferStrategy.IF_POSSIBLE,
            max_batch_items=max_batch_items,
            max_delay_ms=max_delay_ms or None,
            retry=RetryPolicy(**retry) if isinstance(retry, Mapping) else retry,
            dead_letter=None if fallback is None else self._targets[1].keep,
            shutdown_timeout=shutdown_timeout,
        )
        self._config = config
        self._queue_name = name
        self._block_s = block_s
        self._shutdown_timeout = shutdown_timeout
        self._counts = _Counts()
        self._queue: BatchQueue[_Item] | None = None
        self._live: list[BatchQueue[_Item]] = []
        """The queue, until `_counts` has what became of its records."""
        self._produce: Callable[[_Item], bool] = self._first_produce
        self._pid, self._starting = os.getpid(), threading.RLock()
        self._is_starting = False
        """Whether the thread that has `_starting` is starting the queue."""
        self._early: deque[_Item] = deque()
        self._reporting = threading.Lock()
        self._next_report_at = float("-inf")
        self._of_parents: list[BatchQueue[_Item]] = []
        super().__init__(level)
        _handlers.add(self)

    def createLock(self) -> None:
        """Make no lock: the handler needs none, and `logging.shutdown` waits while it holds it."""
        self.lock = None

    def _at_fork_reinit(self) -> None:
        """Do nothing: there is no lock."""

    def setFormatter(self, fmt: logging.Formatter | None) -> None:
        """Set the formatter. Its `format` runs in the drain thread, if `items` is "text"."""
        super().setFormatter(fmt)
        for target in self._targets:
            target.formatter = fmt

    def handle(self, record: LogRecord) -> Any:
        """Ship a record if the filters pass it; return whether they do."""
        if self.filters:
            passed: Any = self.filter(record)
            if not passed:
                return passed
            if isinstance(passed, LogRecord):  # from Python 3.12 on, a filter may replace it
                record = passed
        self.emit(record)
        return True

    def emit(self, record: LogRecord) -> None:
        """Render a record and put it into the buffer; drop it if that is full for `block_s`."""
        try:
            if (record.thread in _shipping or record.name == _PACKAGE) and self._is_own(record):
                self._counts.excluded.add(1)
                return
            # A copy: a later handler may change the record before the drain thread sees it.
            fields = record.__dict__.copy()
            item: _Item = fields
            if type(record) is LogRecord:
                message = fields["msg"]
                if type(message) is not str:
                    message = str(message)
                if fields["args"]:
                    message %= fields["args"]
            else:
                message = record.getMessage()
                item = type(record), fields
            fields["msg"] = message
            fields["args"] = None
            if fields["exc_info"]:
                self._render_error(fields)
            if not self._produce(item):
                self._refuse(item)
        except Exception as error:
            self._fail(record, error)

    def flush(self, timeout: float | None = None) -> bool:  # type: ignore[override]
        """Wait until the records accepted so far are delivered; return whether they are.

        It does not wait inside `logging.config.dictConfig`, which holds a lock that the target may
        need, nor inside the target.

        Args:
            timeout: Seconds. Default: None, which means `shutdown_timeout`.
        """
        queue = self._queue_here()
        if queue is None:
            return True
        if self._may_not_wait():
            return False
        try:
            if queue.running:
                return queue.flush(self._shutdown_timeout if timeout is None else timeout)
            return _stats_of(queue).total_used == 0
        except BatchQueueError:
            return False

    def close(self) -> None:
        """Deliver what was accepted, within `shutdown_timeout`, and end the drain thread.

        Inside `logging.config.dictConfig`, which holds a lock that the target may need, and inside
        the target, it does not wait: the queue delivers and ends once the handler is collected.
        """
        super().close()
        if self._may_not_wait():
            return
        queue = self._queue_here()
        if queue is not None:
            if queue.running:
                self._report_drops(queue, is_last=True)
            queue.shutdown(self._shutdown_timeout)
            self._forget(queue)
        self._print_drops()

    def stats(self) -> QueueHandlerStats:
        """Return what became of the records so far, in this process."""
        queue = self._queue_here()
        counts = self._counts
        live = (0, 0, 0, 0, 0, 0) if queue is None else _counts_of(queue)
        accepted, delivered, failed, kept, abandoned = map(
            sum, zip(counts.ended, live[:5], strict=True)
        )
        return QueueHandlerStats(
            accepted=accepted,
            dropped=counts.dropped.value,
            excluded=counts.excluded.value,
            delivered=delivered,
            failed=failed,
            kept=kept,
            abandoned=abandoned,
            waiting=live[5],
        )

    def _queue_here(self) -> "BatchQueue[_Item] | None":
        """Return the queue of this process, if it has one."""
        if self._pid != os.getpid():
            self._leave_parent()
        return self._queue

    def _is_own(self, record: LogRecord) -> bool:
        """Return whether a record comes from a target, or from the queue of this handler."""
        thread = threading.get_ident() if record.thread is None else record.thread
        process = _shipping.get(thread)
        if process is not None and process == (record.process or os.getpid()):
            return True
        return record.name == _PACKAGE and record.getMessage().startswith(
            f"queue {self._queue_name}: "
        )

    def _render_error(self, fields: dict[str, Any]) -> None:
        """Replace the exception of a record, which refers to frames, by text."""
        info, fields["exc_info"] = fields["exc_info"], None
        if not isinstance(info, tuple) or info[0] is None:
            return
        if not fields["exc_text"]:
            formatter = self.formatter or _default_formatter
            fields["exc_text"] = formatter.formatException(info)
        fields["exc_type"] = type_name(info[0])

    def _first_produce(self, item: _Item) -> bool:
        """Start a queue, unless another thread has, and put a record into it."""
        self._queue_here()
        if not self._starting.acquire(timeout=_START_S):
            return False
        try:
            if self._is_starting:
                # A signal handler or a `__del__` interrupted the start, which adds the record.
                self._early.append(item)
                return True
            queue = self._queue
            if queue is not None:
                self._produce = self._producer(queue)
                return self._produce(item)
            self._is_starting = True
            try:
                return self._start(item)
            finally:
                self._is_starting = False
        finally:
            self._starting.release()

    def _start(self, item: _Item) -> bool:
        _exit.register()
        try:
            queue: BatchQueue[_Item] = BatchQueue(self._queue_name, self._config)
        except BatchQueueError:  # the interpreter is ending
            self._counts.dropped.add(len(self._early))
            self._early.clear()
            return False
        produce = self._producer(queue)
        self._live.append(queue)
        self._queue, self._produce = queue, produce
        is_accepted = produce(item)
        while self._early:
            if not produce(self._early.popleft()):
                self._counts.dropped.add(1)
        return is_accepted

    def _producer(self, queue: "BatchQueue[_Item]") -> Callable[[_Item], bool]:
        return partial(queue.produce, timeout=self._block_s) if self._block_s else queue.produce

    def _refuse(self, item: _Item) -> None:
        """Drop a record that the queue did not accept, unless a new queue can take it."""
        # Without a queue, the call was late for one that has ended.
        if (self._forget_ended() or self._queue is None) and self._first_produce(item):
            return
        if self._queue is None:
            self._produce = self._first_produce  # it may be that of a queue that has ended
        self._drop()

    def _forget_ended(self) -> bool:
        """Return whether a new queue may start because the exit has ended the current one.

        If it could not deliver what it had, no other queue would.
        """
        queue = self._queue
        if queue is None or queue.running:
            return False
        stats = _stats_of(queue)
        if stats.total_used or stats.abandoned:
            return False
        self._forget(queue)
        return True

    def _drop(self) -> None:
        self._counts.dropped.add(1)
        queue = self._queue
        if queue is not None and queue.running:
            # Until a report is in the queue, each call tries to put it there first.
            self._produce = partial(self._produce_after_drop, queue)

    def _produce_after_drop(self, queue: "BatchQueue[_Item]", item: _Item) -> bool:
        if queue is not self._queue:  # it has ended, perhaps before this call was chosen
            self._produce = self._first_produce
            return self._first_produce(item)
        if self._report_drops(queue):
            self._produce = self._producer(queue)
        return self._producer(queue)(item)

    def _report_drops(self, queue: "BatchQueue[_Item]", *, is_last: bool = False) -> bool:
        """Put a record that counts the dropped ones into the queue; return whether none is due."""
        now = time.monotonic()
        if now < self._next_report_at and not is_last:
            return False
        # Not waited for: the call that has the lock may be one that this call has interrupted.
        if not self._reporting.acquire(blocking=False):
            return False
        try:
            new = self._counts.unreported()
            if new <= 0:
                return True
            text = f"{counted(new, 'record')} dropped: the buffer of {self._queue_name!r} was full"
            line = LogRecord(__name__, logging.WARNING, __file__, 0, text, None, None)
            with contextlib.suppress(BatchQueueError):
                if queue.produce(vars(line), timeout=0 if self._block_s else None):
                    self._counts.reported += new
                    self._next_report_at = now + _REPORT_S
                    return True
            return False
        finally:
            self._reporting.release()

    def _print_drops(self) -> None:
        """Print how many dropped records no report in the queue has counted."""
        if self._reporting.acquire(blocking=False):
            try:
                new = self._counts.unreported()
                self._counts.reported += new
            finally:
                self._reporting.release()
            if new > 0:
                _print_error(f"{counted(new, 'record')} of {self._queue_name!r} dropped")

    def _fail(self, record: LogRecord, error: Exception) -> None:
        """Drop a record that could not be rendered or enqueued."""
        if isinstance(error, (ProduceTimeoutError, ReentrantProduceError)):
            self._drop()
            return
        if isinstance(error, QueueForkedError):  # the first record of a child
            self._leave_parent()
            self.emit(record)
            return
        if isinstance(error, RecursionError):  # there is no room for another call
            self._drop()
            return
        self._counts.dropped.add(1)
        self._counts.printed.add(1)
        self.handleError(record)

    def _forget(self, queue: "BatchQueue[_Item]") -> None:
        """Let the next record start a new queue, and keep the counts of this one."""
        try:
            self._live.remove(queue)  # a single step, so that each queue is counted once
        except ValueError:
            return  # another call has
        self._produce = self._first_produce
        self._queue = None
        ended = _counts_of(queue)
        self._counts.ended = tuple(map(sum, zip(self._counts.ended, ended[:5], strict=True)))

    def _leave_parent(self) -> None:
        """Begin anew in a forked child."""
        if self._queue is not None:
            self._of_parents.append(self._queue)  # not dropped before the core has left its parent
        self._queue = None
        self._live.clear()
        self._produce = self._first_produce
        self._pid, self._starting = os.getpid(), threading.RLock()  # it may be held in the parent
        self._is_starting = False
        self._early.clear()
        self._counts = _Counts()
        self._reporting = threading.Lock()
        self._next_report_at = float("-inf")

    @staticmethod
    def _may_not_wait() -> bool:
        """Return whether a target may need what this thread holds, or is what called."""
        lock: Any = getattr(logging, "_lock", None)
        owned = getattr(lock, "_is_owned", None)
        is_target = _shipping.get(threading.get_ident()) == os.getpid()
        return is_target or (owned is not None and bool(owned()))


def _stats_of(queue: "BatchQueue[_Item]") -> BatchQueueStats:
    """Return what `queue.stats()` does, without its import, which a signal may interrupt."""
    return BatchQueueStats.from_snapshot(stats_of(queue))


def _counts_of(queue: "BatchQueue[_Item]") -> tuple[int, ...]:
    """Return how many records a queue accepted, delivered, lost, kept, gave up, and has."""
    stats = _stats_of(queue)
    return (
        stats.produced,
        stats.consumed,
        stats.failed + stats.unhandled,
        stats.dead_lettered,
        stats.abandoned,
        stats.total_used,
    )


def _found(argument: str, given: Any) -> Any:
    """Return a target that is given by its name, or by a factory."""
    if isinstance(given, str):
        try:
            return pkgutil.resolve_name(given)
        except (ImportError, AttributeError, ValueError) as error:
            raise ConfigError(
                f'{argument} is {given!r}, which cannot be imported ({error}); give "package.name"'
            ) from error
    if isinstance(given, Mapping):
        if "()" not in given:
            raise ConfigError(
                f'{argument} is a dict without "()", the name of a factory; add it, or, if it is '
                "the configuration of a handler that is made later, give that handler a name that "
                "sorts before this one"
            )
        arguments = {str(name): given[name] for name in given}
        factory = arguments.pop("()")
        return (_found(argument, factory) if isinstance(factory, str) else factory)(**arguments)
    return given


def _checked(argument: str, target: Any, items: Form) -> Target:
    if isinstance(target, QueueHandler):
        raise ConfigError(f"{argument} is another QueueHandler; give its target")
    if isinstance(target, logging.Handler) and items != "records":
        raise ConfigError(
            f"items is {items!r} and {argument} is {a_type(target)}, which takes records; leave "
            "items out, and give the formatter to that handler"
        )
    return cast("Target", target)


# The exit.


class _Exit:
    """The exit of the interpreter, which ends each queue in the reverse order of their making.

    Functions that run later may log: for them another queue starts, which the end of the package
    delivers.
    """

    is_registered = False

    def register(self) -> None:
        """Call `queues_ended` at the exit, after the queues that are made from now on have ended.

        It saves the first record after that the detour through the ended queue, which logs that it
        refused an item.
        """
        if not self.is_registered:
            self.is_registered = True
            atexit.register(self.queues_ended)

    def queues_ended(self) -> None:
        """Let the next record of each handler start a new queue."""
        for handler in list(_handlers):
            handler._forget_ended()


_exit = _Exit()
