"""The handlers of an `AsyncBatchQueue`: how they are registered and removed."""

import weakref
from collections.abc import Awaitable, Callable
from typing import Any, Generic, TypeVar

from batchqueue import _core
from batchqueue._arguments import (
    check_factory,
    handler_options,
)
from batchqueue._item_types import check_decorated_type, check_item_type, named_item_type
from batchqueue._loop_handlers import HandlerLoops, methods_on_loop
from batchqueue.config import BatchQueueConfig
from batchqueue.dead_letters import DeadLetter
from batchqueue.handlers import (
    HandlerDecorator,
    HandlerMethods,
    SupportsConsume,
    is_coroutine_function,
)
from batchqueue.policies import RetryPolicy
from batchqueue.queue import T

H = TypeVar("H")

LoopDeadLetterHandler = (
    SupportsConsume[DeadLetter[H]] | Callable[[list[DeadLetter[H]]], Awaitable[Any] | Any]
)


class LoopRegistry(Generic[T]):
    """The base of `AsyncBatchQueue` that has its handlers."""

    config: BatchQueueConfig[T]
    _queue: _core.Queue

    def __init__(self, config: BatchQueueConfig[T]) -> None:
        self.config = config
        self._handler_loops: HandlerLoops = weakref.WeakValueDictionary()

    def add_handler(
        self,
        item_type: type[H] | str,
        handler: SupportsConsume[H] | Callable[[list[H]], Awaitable[Any] | Any],
        *,
        weight: float = 1.0,
        replace: bool = False,
        subclasses: bool = False,
        max_batch_items: int | None = None,
        max_delay_ms: float | None = None,
        retry: RetryPolicy | None = None,
        dead_letter: LoopDeadLetterHandler[H] | None = None,
    ) -> None:
        """Send the items of one type to a handler, as `BatchQueue.add_handler` does.

        This never waits: when it returns, a replaced handler may still be inside its last batch.

        Args:
            item_type: A class; items match by `type(item)`, and subclasses only with
                `subclasses`. Or a str, the tag of rows.
            handler: An object with `consume`, or a function that takes a list. Coroutine functions,
                and functions that return an awaitable, run on the current event loop; a handler
                that is registered again, with `replace`, moves to it.
            weight: Share of a partition under `PartitionPolicy.adaptive`, above 0. Default: 1.0.
            replace: As in `BatchQueue.add_handler`.
            subclasses: As in `BatchQueue.add_handler`.
            max_batch_items: As in `BatchQueue.add_handler`.
            max_delay_ms: As in `BatchQueue.add_handler`.
            retry: As in `BatchQueue.add_handler`.
            dead_letter: As in `BatchQueue.add_handler`; may be a coroutine function as well.

        Raises:
            ConfigError: As `BatchQueue.add_handler`; also if a method is a coroutine function and
                no loop is running.
            QueueClosedError: The queue is shut down.
            QueueForkedError: The queue was made before a fork.
        """
        check_item_type(item_type, self.config, subclasses=subclasses)
        options = handler_options(
            weight=weight,
            max_batch_items=max_batch_items,
            max_delay_ms=max_delay_ms,
            retry=retry,
            dead_letter=self._keeper(dead_letter),
            replace=replace,
            subclasses=subclasses,
        )
        _core.add_handlers(self._queue, item_type, [self._methods(handler)], options, wait=False)

    def add_handler_factory(
        self,
        item_type: type[H] | str,
        factory: Callable[[], SupportsConsume[H] | Callable[[list[H]], Awaitable[Any] | Any]],
        *,
        partitions: int,
        replace: bool = False,
        subclasses: bool = False,
        max_batch_items: int | None = None,
        max_delay_ms: float | None = None,
        retry: RetryPolicy | None = None,
        dead_letter: LoopDeadLetterHandler[H] | None = None,
    ) -> None:
        """Send the items of a hot type to several handlers.

        Otherwise as `BatchQueue.add_handler_factory`.

        Args:
            item_type: A class or a tag, as in `add_handler`.
            factory: Makes one handler. It is called once per partition, immediately.
            partitions: Number of partitions and handlers, 1 or more.
            replace: As in `add_handler`.
            subclasses: As in `add_handler`.
            max_batch_items: As in `add_handler`.
            max_delay_ms: As in `add_handler`.
            retry: As in `add_handler`.
            dead_letter: As in `add_handler`.

        Raises:
            ConfigError: As `BatchQueue.add_handler_factory`; also if a method is a coroutine
                function and no loop is running.
            QueueClosedError: The queue is shut down.
            QueueForkedError: The queue was made before a fork.
        """
        check_item_type(item_type, self.config, subclasses=subclasses)
        check_factory(factory, partitions)
        options = handler_options(
            max_batch_items=max_batch_items,
            max_delay_ms=max_delay_ms,
            retry=retry,
            dead_letter=self._keeper(dead_letter),
            replace=replace,
            subclasses=subclasses,
        )
        handlers = [self._methods(factory()) for _ in range(partitions)]
        _core.add_handlers(self._queue, item_type, handlers, options, wait=False)

    @named_item_type
    def handler(
        self,
        item_type: type[H] | str,
        *,
        weight: float = 1.0,
        replace: bool = False,
        subclasses: bool = False,
        max_batch_items: int | None = None,
        max_delay_ms: float | None = None,
        retry: RetryPolicy | None = None,
        dead_letter: LoopDeadLetterHandler[H] | None = None,
    ) -> HandlerDecorator[H]:
        """Register the decorated function, or an instance of the decorated class, as a handler.

        Args:
            item_type: A class or a tag, as in `add_handler`.
            weight: As in `add_handler`.
            replace: As in `add_handler`.
            subclasses: As in `add_handler`.
            max_batch_items: As in `add_handler`.
            max_delay_ms: As in `add_handler`.
            retry: As in `add_handler`.
            dead_letter: As in `add_handler`.

        Returns:
            A decorator that returns the decorated object unchanged.

        Raises:
            ConfigError: The type is missing, as in `@queue.handler`; also as `add_handler`, when
                the decorator is applied.
        """
        check_decorated_type(item_type)

        def register(handler: Any) -> Any:
            self.add_handler(
                item_type,
                handler() if isinstance(handler, type) else handler,
                weight=weight,
                replace=replace,
                subclasses=subclasses,
                max_batch_items=max_batch_items,
                max_delay_ms=max_delay_ms,
                retry=retry,
                dead_letter=dead_letter,
            )
            return handler

        return register

    def remove_handler(self, item_type: type[Any] | str) -> bool:
        """Remove the handler of a type. Items of the type are unhandled from now on.

        That includes items that wait in a partition: await `flush` before, so that the handler gets
        them.

        This never waits: when it returns, the handler may still get the batch that a drain thread
        has in hand, and then `on_close`.

        Args:
            item_type: A class or a tag, as in `add_handler`.

        Returns:
            True if the type had a handler. False if it had none, or the queue is shut down.

        Raises:
            ConfigError: `item_type` is neither a class nor a str.
            QueueForkedError: The queue was made before a fork.
        """
        return _core.remove_handler_soon(self._queue, item_type)

    def _methods(self, handler: Any) -> HandlerMethods:
        methods = methods_on_loop(handler, self._handler_loops)
        elsewhere = methods.works_elsewhere or is_coroutine_function(self.config.error_handler)
        return methods._replace(works_elsewhere=elsewhere)

    def _keeper(self, dead_letter: Any) -> HandlerMethods | None:
        return None if dead_letter is None else self._methods(dead_letter)
