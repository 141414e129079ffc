"""A stage: one queue that an attempt or a commit makes, feeds, closes and then answers for."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any, Self

from batchqueue import BatchQueue, BatchQueueConfig, BatchQueueError, SupportsConsume
from batchqueue.aggregation import Aggregator
from batchqueue.handlers import handler_methods
from batchqueue.spark.errors import SinkError
from batchqueue.spark.summary import StageSummary


@dataclass(frozen=True)
class Loss:
    """What a stage says when it did not handle all of its items.

    Attributes:
        error: What to raise.
        consequence: What that means for the user, after "so".
        unhandled: What to do about types without a handler, after "; ".
    """

    error: type[BatchQueueError]
    consequence: str
    unhandled: str


_OF_THE_SINK = Loss(
    SinkError,
    "nothing of this epoch is committed",
    "every type that `items` makes must be in the job's metrics or handlers, and every tag in one of `arrow`",
)

Handler = SupportsConsume[Any] | Callable[[list[Any]], Any]


class Stage:
    """A context in which a queue runs. It ends when all items are handled and all handlers closed, or raises.

    Attributes:
        summary: The counts, after the end.
        thread_items: Items that each drain thread handled, after the end.
        drain_cpu_s: CPU seconds of the drain threads, after the end.
    """

    summary: StageSummary
    thread_items: tuple[int, ...]
    drain_cpu_s: float

    def __init__(
        self,
        name: str,
        config: BatchQueueConfig[Any],
        handlers: Mapping[type | str, Any] | None = None,
        loss: Loss = _OF_THE_SINK,
    ) -> None:
        """Start the queue.

        Args:
            name: Name of the queue.
            config: Its `error_handler` is replaced.
            handlers: By item type or tag; None if the config has a consumer.
            loss: What to say when items were lost.
        """
        self._loss = loss
        self._first_error: BaseException | None = None
        self._peak_used_percent = 0.0
        self._lost = 0
        handlers = handlers or {}
        watched = {id(handler): self._watched(handler) for handler in handlers.values()}
        self._queue: BatchQueue[Any] = BatchQueue(name, replace(config, error_handler=self._note_error))
        try:
            for item_type, handler in handlers.items():
                self._queue.add_handler(item_type, watched[id(handler)])
        except BaseException:
            self._queue.shutdown()  # whoever made this stage has nothing to close
            raise

    def produce_many(self, items: Iterable[Any]) -> int:
        """Put items in, waiting for space; return how many were accepted."""
        accepted: int = self._queue.produce_many(items)
        self._look_at_use()
        return accepted

    def produce_arrow(self, batch: Any, type_column: str) -> int:
        """Put rows in, waiting for space; return how many were accepted."""
        accepted: int = self._queue.produce_arrow(batch, type_column=type_column)
        self._look_at_use()
        return accepted

    @property
    def has_failed(self) -> bool:
        """Whether the stage will raise at its end: something was lost by the last call that put items in."""
        return self._first_error is not None or self._lost > 0

    def _look_at_use(self) -> None:
        stats = self._queue.stats()
        self._lost = stats.failed + stats.refused + stats.unhandled
        fullest = stats.top_n(1)[0]
        self._peak_used_percent = max(self._peak_used_percent, fullest.used_percentage)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _type: object, error: BaseException | None, _traceback: object) -> None:
        if error is None and self._queue.config.retry is not None:
            self._queue.flush()  # a shutdown ends the waits between tries, and the last batch needs them, too
        # However long it takes: a drain thread that lived on could write to a transaction that is over.
        self._queue.shutdown()
        stats = self._queue.stats()
        self.summary = StageSummary.of(stats, self._peak_used_percent)
        self.thread_items = tuple(thread.items for thread in stats.drain_threads)
        self.drain_cpu_s = sum(thread.cpu_s for thread in stats.drain_threads)
        if error is None:
            self._check()

    def _watched(self, handler: Handler) -> Handler:
        """Wrap a handler to see all of its errors; those of on_idle and on_close the queue only logs."""
        if isinstance(handler, Aggregator) and not handler.hands_on:
            # Wrapped, it would need the interpreter. This one does nothing in on_idle and on_close.
            return handler
        methods = handler_methods(handler)
        if methods.on_idle is None and methods.on_error is None and methods.on_close is None:
            # The queue tells of its errors. And it knows the object that a bound method belongs to, so that no two
            # threads enter two methods of one object; a wrapper would hide that.
            return handler

        def on_error(batch: list[Any], error: BaseException) -> None:
            self._note_error(batch, error)
            if methods.on_error is not None:
                methods.on_error(batch, error)

        # Logs name a handler by its class.
        make: Any = type(type(handler).__name__, (SimpleNamespace,), {})
        watched: SupportsConsume[Any] = make(
            consume=methods.consume,
            on_error=on_error,
            on_idle=methods.on_idle and self._noting(methods.on_idle),
            on_close=methods.on_close and self._noting(methods.on_close),
        )
        return watched

    def _noting(self, method: Callable[[], Any]) -> Callable[[], None]:
        def call() -> None:
            try:
                method()
            except BaseException as error:
                self._note_error([], error)
                raise

        return call

    def _note_error(self, _batch: list[Any], error: BaseException) -> None:
        if self._first_error is None:
            self._first_error = error

    def _check(self) -> None:
        counts, first = self.summary, self._first_error
        if counts.lost == 0 and first is None:
            return
        message = (
            f"queue {self._queue.name!r} lost {counts.lost} of {counts.produced + counts.refused} items "
            f"({counts.failed} failed, {counts.refused} refused, {counts.unhandled} without a handler, "
            f"{counts.abandoned} abandoned), so {self._loss.consequence}"
        )
        if counts.unhandled:
            message += f"; {self._loss.unhandled}"
        if first is not None:
            message += f"; first error: {type(first).__name__}: {first}"
        raise self._loss.error(message) from first
