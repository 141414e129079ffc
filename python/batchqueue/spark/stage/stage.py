"""A stage: one queue that an attempt or a commit makes, feeds, closes and then answers for."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import wraps
from types import MethodType, SimpleNamespace
from typing import Any, Self

from batchqueue import BatchQueue, BatchQueueConfig, BatchQueueError, SupportsConsume
from batchqueue.aggregation import Aggregator
from batchqueue.handlers import HandlerMethods, blocking_methods
from batchqueue.spark.errors import SinkError
from batchqueue.spark.stage.stage_summary import StageSummary


@dataclass(frozen=True)
class LossMessage:
    """What a stage says when it did not handle all of its items.

    Attributes:
        error: What to raise.
        consequence: What that means for the user, after "so".
        unhandled: What to do about types without a handler, after "; ".
    """

    error: type[BatchQueueError]
    consequence: str
    unhandled: str


_OF_THE_SINK = LossMessage(
    SinkError,
    "nothing of this epoch is committed",
    "every type that `items` makes must be in the job's metrics or handlers, and every tag in one of `arrow`",
)

Handler = SupportsConsume[Any] | Callable[[list[Any]], Any]


class Stage:
    """A context in which a queue runs. It ends when all items are handled and all handlers closed, or raises.

    Once a handler has failed for good, none is given anything more but `on_close`. What comes after
    a batch that is missing would be taken for what was in it, by a handler that counts; and all of
    it will come again.

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
        loss: LossMessage = _OF_THE_SINK,
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
        self._left_out = False
        handlers = dict(handlers or {})
        watched = self._watched(handlers.values())
        self._queue: BatchQueue[Any] = BatchQueue(
            name, replace(config, error_handler=self._note_error)
        )
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
        if error is None and not self.has_failed and self._queue.config.retry is not None:
            self._queue.flush()  # a shutdown ends the waits between tries, and the last batch needs them, too
        # However long it takes: a drain thread that lived on could write to a transaction that is
        # over.
        self._queue.shutdown()
        stats = self._queue.stats()
        self.summary = StageSummary.from_stats(stats, self._peak_used_percent)
        self.thread_items = tuple(thread.items for thread in stats.drain_threads)
        self.drain_cpu_s = sum(thread.cpu_s for thread in stats.drain_threads)
        if error is None:
            self._check()

    def _watched(self, handlers: Iterable[Any]) -> dict[int, Handler]:
        """Wrap handlers to see all of their errors, and to end what they get; by their ids."""
        watched: dict[int, Handler] = {}
        # Bound methods last: no two threads may be in the object that one belongs to, nor in the
        # wrapper of that.
        for handler in sorted(handlers, key=lambda one: not hasattr(one, "consume")):
            if id(handler) in watched:
                continue
            if isinstance(handler, Aggregator) and not handler.emits:
                # Wrapped, it would need the interpreter. It has no errors but those that the queue
                # tells of.
                watched[id(handler)] = handler
                continue
            methods = blocking_methods(handler)
            if methods.consume is handler:
                owner = watched.get(id(methods.protected), methods.protected)
                watched[id(handler)] = MethodType(self._until_failed(methods.consume), owner)
            else:
                watched[id(handler)] = self._watched_object(handler, methods)
        return watched

    def _watched_object(self, handler: object, methods: HandlerMethods) -> SupportsConsume[Any]:
        def on_error(batch: list[Any], error: BaseException) -> None:
            self._note_error(batch, error)
            if methods.on_error is not None:
                methods.on_error(batch, error)

        def on_idle() -> None:
            if self._first_error is None and methods.on_idle is not None:
                methods.on_idle()

        # Logs name a handler by its class.
        make: Any = type(type(handler).__name__, (SimpleNamespace,), {})
        watched: SupportsConsume[Any] = make(
            consume=MethodType(self._until_failed(methods.consume), handler),
            on_error=on_error,
            on_idle=methods.on_idle and self._noting(on_idle),
            on_close=methods.on_close and self._noting(methods.on_close),
        )
        return watched

    def _until_failed(self, consume: Callable[[list[Any]], Any]) -> Callable[[Any, list[Any]], Any]:
        @wraps(consume)  # logs name a function
        def call(_owner: Any, batch: list[Any]) -> Any:
            if self._first_error is None:
                return consume(batch)
            self._left_out = True
            return None

        return call

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
            f"{counts.abandoned} abandoned{', more left out after the first error' * self._left_out}), "
            f"so {self._loss.consequence}"
        )
        if counts.unhandled:
            message += f"; {self._loss.unhandled}"
        if first is not None:
            message += f"; first error: {type(first).__name__}: {first}"
        raise self._loss.error(message) from first
