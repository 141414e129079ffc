"""One queue, from its opening to its final counts. Runs in tasks and in the commit."""

import gc
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from functools import wraps
from itertools import islice
from types import MethodType, SimpleNamespace
from typing import Any, Self

from batchqueue import _core
from batchqueue.aggregation import Aggregator, Metrics
from batchqueue.exceptions import BatchQueueError
from batchqueue.queues.config import BatchQueueConfig
from batchqueue.queues.handlers import (
    HandlerMethods,
    HandlerOpening,
    SupportsConsume,
    blocking_methods,
)
from batchqueue.queues.queue import BatchQueue
from batchqueue.queues.stats import BatchQueueStats
from batchqueue.spark.requirements import SinkError

# The final counts of a stage.


@dataclass(frozen=True)
class StageSummary:
    """Counts of the items of one stage: one queue, or the queues of all successful attempts.

    Attributes:
        produced: Items that the queue accepted.
        consumed: Items that a handler took.
        failed: Items whose handler raised, after all retries.
        refused: Items that the queue did not accept.
        unhandled: Items without a handler.
        abandoned: Items that a shutdown left behind.
        peak_used_percent: Highest observed fill of the fullest partition, 0 to 100.
        dead_lettered: Items whose handler raised, and that the `dead_letter` of the config kept.
    """

    produced: int = 0
    consumed: int = 0
    failed: int = 0
    refused: int = 0
    unhandled: int = 0
    abandoned: int = 0
    peak_used_percent: float = 0.0
    dead_lettered: int = 0

    @classmethod
    def from_stats(cls, stats: BatchQueueStats, peak_used_percent: float) -> Self:
        """Return the counts of a queue that has shut down."""
        counts = {name: getattr(stats, name) for name in _COUNTS}
        return cls(**counts, peak_used_percent=round(peak_used_percent, 2))

    @classmethod
    def total(cls, stages: Sequence["StageSummary"]) -> Self:
        """Return the sum over queues that ran concurrently."""
        counts = {name: sum(getattr(stage, name) for stage in stages) for name in _COUNTS}
        peak = max((stage.peak_used_percent for stage in stages), default=0.0)
        return cls(**counts, peak_used_percent=peak)

    def with_merged(self, items: int) -> Self:
        """Return the counts plus items that were merged without the queue."""
        return replace(self, produced=self.produced + items, consumed=self.consumed + items)

    @property
    def lost(self) -> int:
        """Items that were neither consumed nor kept as dead letters."""
        return self.failed + self.refused + self.unhandled + self.abandoned


_COUNTS = tuple(each.name for each in fields(StageSummary) if each.name != "peak_used_percent")


# A stage: one queue that an attempt or a commit opens, feeds and closes, and whose losses raise.


@dataclass(frozen=True)
class LossMessage:
    """The error of a stage that did not handle all of its items.

    Attributes:
        error: The class to raise.
        consequence: What that means for the user; follows "so " in the message.
        unhandled: What to do about types without a handler; follows "; " in the message.
    """

    error: type[BatchQueueError]
    consequence: str
    unhandled: str


_SINK_LOSS = LossMessage(
    SinkError,
    "nothing of this epoch is committed",
    "every type that `items` makes must be in the job's metrics or handlers, and every tag in one "
    "of `arrow`",
)

Handler = SupportsConsume[Any] | Callable[[list[Any]], Any]


class QueueStage:
    """A context in which a queue runs. At its end all items are handled and all handlers closed.

    The end raises if an item was lost. Once a handler has failed, after all retries, no handler is
    called any more, except for `on_close` of those that are open: a handler that counts positions
    would mistake later items for those of the missing batch, and all of them will be delivered
    again. A batch that the `dead_letter` of the config keeps does not count as failed.

    Attributes:
        summary: The counts; set at the end.
        thread_items: Items that each drain thread handled; set at the end.
        drain_cpu_s: CPU seconds of the drain threads; set at the end.
    """

    summary: StageSummary
    thread_items: tuple[int, ...]
    drain_cpu_s: float

    def __init__(
        self,
        name: str,
        config: BatchQueueConfig[Any],
        handlers: Mapping[type | str, Any] | None = None,
        loss: LossMessage = _SINK_LOSS,
    ) -> None:
        """Start the queue.

        Args:
            name: Name of the queue.
            config: Its `error_handler` is replaced, or dropped if there is a `dead_letter`. Its
                `default_handler` is wrapped like the other handlers.
            handlers: By item type or tag; None if the config has a consumer.
            loss: What to raise when items were lost.
        """
        self._loss = loss
        self._first_error: BaseException | None = None
        self._peak_used_percent = 0.0
        self._lost = 0
        self._skipped = False
        self._keeps_failed = config.dead_letter is not None
        handlers = dict(handlers or {})
        default = config.default_handler
        wrapped = self._wrapped([*handlers.values(), *([] if default is None else [default])])
        self._queue: BatchQueue[Any] = BatchQueue(
            name,
            replace(
                config,
                error_handler=None if self._keeps_failed else self._record_error,
                default_handler=None if default is None else wrapped[id(default)],
            ),
        )
        try:
            for item_type, handler in handlers.items():
                self._queue.add_handler(item_type, wrapped[id(handler)])
        except BaseException:
            self._queue.shutdown()  # the caller has no stage to close
            raise

    def produce_many(self, items: Iterable[Any]) -> int:
        """Enqueue items, waiting for space, and return how many were accepted."""
        accepted: int = self._queue.produce_many(items)
        self._sample_stats()
        return accepted

    def produce_arrow(self, batch: Any, type_column: str) -> int:
        """Enqueue rows, waiting for space, and return how many were accepted."""
        accepted: int = self._queue.produce_arrow(batch, type_column=type_column)
        self._sample_stats()
        return accepted

    @property
    def has_failed(self) -> bool:
        """Whether the stage will raise at its end, as of the last call that enqueued items."""
        return self._first_error is not None or self._lost > 0

    def _sample_stats(self) -> None:
        stats = self._queue.stats()
        self._lost = stats.failed + stats.refused + stats.unhandled
        fullest = stats.top_n(1)[0]
        self._peak_used_percent = max(self._peak_used_percent, fullest.used_percentage)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _type: object, error: BaseException | None, _traceback: object) -> None:
        if error is None and not self.has_failed and self._queue.config.retry is not None:
            # A shutdown cuts the waits between retries short; the last batch needs them as well.
            self._queue.flush()
        # Without a timeout: a drain thread that outlived the stage could write to a transaction
        # that has ended.
        self._queue.shutdown()
        stats = self._queue.stats()
        self.summary = StageSummary.from_stats(stats, self._peak_used_percent)
        self.thread_items = tuple(thread.items for thread in stats.drain_threads)
        self.drain_cpu_s = sum(thread.cpu_s for thread in stats.drain_threads)
        if error is None:
            self._check()

    def _wrapped(self, handlers: Iterable[Any]) -> dict[int, Handler]:
        """Return handlers by id, wrapped to record errors and skip calls after the first one."""
        wrapped: dict[int, Handler] = {}
        # Bound methods last: the queue serializes calls by object, so a bound method must share the
        # wrapper of the object that it belongs to.
        for handler in sorted(handlers, key=lambda handler: not hasattr(handler, "consume")):
            if id(handler) in wrapped:
                continue
            if isinstance(handler, Aggregator) and not handler.emits:
                # Unwrapped, it runs without the interpreter. The queue reports all of its errors.
                wrapped[id(handler)] = handler
                continue
            methods = blocking_methods(handler)
            if methods.consume is handler:
                owner = wrapped.get(id(methods.protected), methods.protected)
                wrapped[id(handler)] = MethodType(self._until_failed(methods.consume), owner)
            else:
                wrapped[id(handler)] = self._wrapped_object(handler, methods)
        return wrapped

    def _wrapped_object(self, handler: object, methods: HandlerMethods) -> SupportsConsume[Any]:
        def on_error(batch: list[Any], error: BaseException) -> None:
            if not self._keeps_failed:
                self._record_error(batch, error)
            if methods.on_error is not None:
                methods.on_error(batch, error)

        # The queue does not see `on_open`, which must not run either once a handler has failed.
        opening = HandlerOpening(methods)

        def on_idle() -> None:
            if self._first_error is None:
                opening.on_idle()

        # Logs name a handler by its class.
        wrapper: Any = type(type(handler).__name__, (SimpleNamespace,), {})
        wrapped: SupportsConsume[Any] = wrapper(
            consume=MethodType(self._until_failed(opening.consume), handler),
            on_error=None if self._keeps_failed and methods.on_error is None else on_error,
            on_idle=methods.on_idle and self._recording_errors(on_idle),
            on_close=methods.on_close and self._recording_errors(opening.on_close),
        )
        return wrapped

    def _until_failed(self, consume: Callable[[list[Any]], Any]) -> Callable[[Any, list[Any]], Any]:
        @wraps(consume)  # logs name a function
        def call(_owner: Any, batch: list[Any]) -> Any:
            if self._first_error is None:
                return consume(batch)
            self._skipped = True
            return None

        return call

    def _recording_errors(self, method: Callable[[], Any]) -> Callable[[], None]:
        def call() -> None:
            try:
                method()
            except BaseException as error:
                self._record_error([], error)
                raise

        return call

    def _record_error(self, _batch: list[Any], error: BaseException) -> None:
        if self._first_error is None:
            self._first_error = error

    def _check(self) -> None:
        counts, first = self.summary, self._first_error
        if counts.lost == 0 and first is None:
            return
        types = ", ".join(_core.unhandled_types(self._queue)) if counts.unhandled else ""
        message = (
            f"queue {self._queue.name!r} lost {counts.lost} of "
            f"{counts.produced + counts.refused} items ({counts.failed} failed, "
            f"{counts.refused} refused, {counts.unhandled} without a handler"
            f"{f' ({types})' * bool(types)}, "
            f"{counts.abandoned} abandoned"
            f"{', more skipped after the first error' * self._skipped}), "
            f"so {self._loss.consequence}"
        )
        if counts.unhandled:
            message += f"; {self._loss.unhandled}"
        if first is not None:
            message += f"; first error: {type(first).__name__}: {first}"
        raise self._loss.error(message) from first


class InlineStage:
    """A stage without a queue: the thread that has the items calls the handler with them.

    Attributes:
        summary: The counts; set at the end.
        drain_cpu_s: 0: there are no drain threads.
    """

    summary: StageSummary
    drain_cpu_s = 0.0

    def __init__(self, handler: Any) -> None:
        """Make the stage.

        Args:
            handler: Takes metrics in `consume`; it may have `on_close`.
        """
        self._handler = handler
        self._taken = 0

    def produce_many(self, items: Iterable[Metrics]) -> int:
        """Hand items over in lists, and return how many there were.

        Raises:
            SinkError: The handler has raised.
        """
        before, waiting = self._taken, iter(items)
        while batch := list(islice(waiting, _ITEMS_AT_ONCE)):
            try:
                self._handler.consume(batch)
            except SinkError:
                raise  # of a stage behind this one
            except Exception as error:
                raise not_stored({item.name for item in batch}, error) from error
            self._taken += len(batch)
        return self._taken - before

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _type: object, error: BaseException | None, _traceback: object) -> None:
        if error is None and hasattr(self._handler, "on_close"):
            self._handler.on_close()
        self.summary = StageSummary().with_merged(self._taken)


_ITEMS_AT_ONCE = 10_000


def not_stored(metrics: Iterable[str], error: BaseException) -> SinkError:
    """Return the error of a commit in which metrics could not be stored."""
    names = sorted(metrics)
    what = f"metric {names[0]!r} was" if len(names) == 1 else f"one of {', '.join(names)} was"
    return SinkError(
        f"{what} not stored, so nothing of this epoch is committed; first error: "
        f"{type(error).__name__}: {error}"
    )


# The process that a stage runs in: its CPU time and its garbage collector.


_THRESHOLD = 50_000
"""New objects between two collections; Python's own setting is 700.

Items are created by the hundred thousand and are hardly ever part of a cycle. Each collection would
scan all items that wait in the queue and the buffers, and free nothing.
"""


@dataclass(frozen=True)
class CpuSummary:
    """CPU seconds of a process while it wrote or committed.

    Attributes:
        drain_s: CPU seconds of the drain threads, handlers included.
        rest_s: CPU seconds of everything else: rows from Spark, items from rows, Arrow, the store.
        wall_s: Elapsed seconds.
    """

    drain_s: float = 0.0
    rest_s: float = 0.0
    wall_s: float = 0.0


class CpuMeter:
    """Measures CPU and wall time since it was created.

    The CPU time is that of the process. Commits that a driver runs concurrently for two queries
    each include the other's time.
    """

    def __init__(self) -> None:
        self._cpu_s = time.process_time()
        self._wall_s = time.monotonic()

    def read(self, drain_cpu_s: float) -> CpuSummary:
        """Return the time since the start, split into drain threads and the rest.

        Args:
            drain_cpu_s: CPU seconds of the drain threads, as the queues counted them.
        """
        cpu_s = time.process_time() - self._cpu_s
        return CpuSummary(drain_cpu_s, cpu_s - drain_cpu_s, time.monotonic() - self._wall_s)


class _GcThreshold:
    """The threshold of the collector, which all threads of the process share."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._before = gc.get_threshold()

    def raise_threshold(self) -> None:
        with self._lock:
            if self._users == 0:
                self._before = gc.get_threshold()
                gc.set_threshold(_THRESHOLD, *self._before[1:])
            self._users += 1

    def restore(self) -> None:
        with self._lock:
            self._users -= 1
            if self._users == 0:
                gc.set_threshold(*self._before)


_threshold = _GcThreshold()


@contextmanager
def infrequent_gc() -> Iterator[None]:
    """Collect garbage less often while at least one such context is open in this process."""
    _threshold.raise_threshold()
    try:
        yield
    finally:
        _threshold.restore()
