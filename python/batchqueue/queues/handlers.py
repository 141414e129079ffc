"""Handlers: the protocol that a queue requires, and a base class for convenience."""

import inspect
from collections.abc import Callable
from types import ModuleType
from typing import Any, Generic, NamedTuple, Protocol, TypeVar, overload

from batchqueue import _core
from batchqueue.base.words import a_type
from batchqueue.exceptions import ConfigError
from batchqueue.queues.callbacks import check_result

H = TypeVar("H")
R = TypeVar("R")


class SupportsConsume(Protocol[H]):
    """The protocol of handlers, which must have `consume`.

    `on_open`, `on_idle`, `on_error` and `on_close` are optional.
    """

    def consume(self, batch: list[H], /) -> Any:
        """Handle one batch: the items of one type that one drain cycle took.

        Args:
            batch: One to `max_batch_items` items, or record batches. The list belongs to the
                handler.
        """


class HandlerDecorator(Protocol[H]):
    """The type of `@queue.handler(Order)`: takes a handler of lists of orders and returns it."""

    @overload
    def __call__(self, handler: type[SupportsConsume[H]], /) -> type[Any]: ...

    @overload
    def __call__(self, handler: Callable[[list[H]], R], /) -> Callable[[list[H]], R]: ...

    @overload
    def __call__(self, handler: SupportsConsume[H], /) -> Any: ...

    def __call__(self, handler: Any, /) -> Any:
        """Register a handler: a function, an instance, or a class that is instantiated."""


class HandlerConsumer(Generic[H]):
    """A base class for handlers. Any other object with `consume`, or a plain function, works too.

    The queue never runs two methods of one instance concurrently, even if the instance serves
    several types or queues. State inside a handler therefore needs no lock.

    `on_open`, `on_idle`, `on_error` and `on_close` do nothing by default, and the queue calls only
    those that a subclass overrides: an idle queue with a thousand handlers costs nothing unless
    some of them define `on_idle`.

    Example:
        >>> class Total(HandlerConsumer[int]):
        ...     def __init__(self) -> None:
        ...         self.value = 0
        ...     def consume(self, batch: list[int]) -> None:
        ...         self.value += sum(batch)
        >>> total = Total()
        >>> total.consume([1, 2, 3])
        >>> total.value
        6
    """

    def consume(self, batch: list[H]) -> None:
        """Handle one batch of items of one type, in the order that the queue promises.

        Args:
            batch: One to `max_batch_items` items. The list belongs to the handler.

        Raises:
            NotImplementedError: The subclass does not define `consume`.
        """
        raise NotImplementedError(f"{type(self).__name__} must define consume(batch)")

    def on_open(self) -> None:
        """Called once per instance and queue, on a drain thread, before the first batch.

        Open what the handler needs here, such as a connection. If `on_open` raises, the batch fails
        with that error, as if `consume` had raised it, and the next attempt or batch calls
        `on_open` again. Until it has returned, `consume`, `on_idle` and `on_close` are not called.

        Later calls may come from other drain threads, one at a time, so a `sqlite3` connection
        needs `check_same_thread=False`. With a `consumer_factory`, all of them come from the same
        thread.
        """

    def on_idle(self) -> None:
        """Called after an empty cycle of the handler's drain thread, to flush buffered items."""

    def on_error(self, batch: list[H], error: BaseException) -> None:
        """Called instead of the queue's `error_handler` when `consume` raised.

        Args:
            batch: The list that `consume` got, as `consume` left it.
            error: The exception that `consume` raised.
        """

    def on_close(self) -> None:
        """Called once per instance and queue, after the last batch of the instance.

        A handler whose `on_open` never succeeded gets no `on_close`.
        """


METHOD_NAMES = ("consume", "on_open", "on_idle", "on_error", "on_close")


class HandlerMethods(NamedTuple):
    """The methods of one handler that the queue calls; None for those that it does not define."""

    instance: Any
    protected: Any
    """Entered by at most one thread: the handler, or the owner of a bound method."""
    consume: Callable[[list[Any]], Any]
    on_idle: Callable[[], Any] | None = None
    on_error: Callable[[list[Any], BaseException], Any] | None = None
    on_close: Callable[[], Any] | None = None
    works_elsewhere: bool = False
    """Whether the methods run on an event loop while the drain thread waits."""
    on_open: Callable[[], Any] | None = None

    def coroutine_functions(self) -> list[str]:
        """Return the names of the methods that must run on an event loop."""
        return [name for name in METHOD_NAMES if is_coroutine_function(getattr(self, name))]


class HandlerOpening:
    """The `on_open` and `on_close` of a handler, paired for callers other than the queue.

    The queue pairs them for its own handlers. A worker of a group, and a wrapper that may leave out
    calls, give the queue the methods of this object instead: `consume` opens the handler if that is
    due, and a handler that is not open is not closed. Calls must not overlap.
    """

    def __init__(self, methods: HandlerMethods) -> None:
        """Take the methods of a handler, none of which has been called yet."""
        self._methods = methods
        self._is_open = methods.on_open is None

    def consume(self, batch: Any) -> Any:
        """Call `on_open` if it has not returned yet, and then `consume`."""
        if not self._is_open and self._methods.on_open is not None:
            check_result(self._methods.on_open())
            self._is_open = True
        return self._methods.consume(batch)

    def on_idle(self) -> None:
        """Call `on_idle` if the handler is open."""
        if self._is_open and self._methods.on_idle is not None:
            self._methods.on_idle()

    def on_close(self) -> None:
        """Call `on_close` if the handler is open. The next batch opens the handler again."""
        was_open, self._is_open = self._is_open, self._methods.on_open is None
        if was_open and self._methods.on_close is not None:
            self._methods.on_close()


def is_coroutine_function(function: object) -> bool:
    """Whether a call returns a coroutine: `async def`, or an object with `async def __call__`."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(function, "__call__", None)  # noqa: B004 - not a test whether it is callable
    )


def blocking_methods(handler: SupportsConsume[Any] | Callable[[list[Any]], Any]) -> HandlerMethods:
    """Find the methods of a handler that runs on drain threads, as `handler_methods` does.

    Raises:
        ConfigError: As `handler_methods`; also if a method is a coroutine function.
    """
    methods = handler_methods(handler)
    refuse_coroutine_functions(handler, methods.coroutine_functions())
    return methods


def refuse_coroutine_functions(handler: object, names: list[str]) -> None:
    """Raise ConfigError if there are any names: a drain thread has no event loop."""
    if names:
        raise ConfigError(
            f"{' and '.join(names)} of {handler!r} must run on an event loop, which a BatchQueue "
            "does not have: use AsyncBatchQueue, or a plain function"
        )


def refuse_generator_function(described: str, function: object) -> None:
    """Raise ConfigError for a function with `yield`: calling it runs nothing."""
    candidates = [function]
    if not inspect.isroutine(function):
        candidates.append(getattr(function, "__call__", None))  # noqa: B004 - as above
    for candidate in candidates:
        if inspect.isgeneratorfunction(candidate) or inspect.isasyncgenfunction(candidate):
            raise ConfigError(
                f"{described} is a generator function: a call of it runs nothing, and its batches "
                "would be lost; write a function without `yield`"
            )


def handler_methods(handler: SupportsConsume[Any] | Callable[[list[Any]], Any]) -> HandlerMethods:
    """Find the methods of a handler: an object with `consume`, or a plain function.

    Raises:
        ConfigError: `handler` is neither, or an optional method is not callable.
    """
    consume = getattr(handler, "consume", None)
    if consume is None and callable(handler) and not isinstance(handler, type):
        refuse_generator_function(repr(handler), handler)
        return HandlerMethods(handler, _protected(handler), handler)
    if not callable(consume) or isinstance(handler, type):
        kind = f"the class {handler.__name__}" if isinstance(handler, type) else a_type(handler)
        raise ConfigError(
            f"{kind} cannot be a handler: it has no method consume(batch); "
            "give an instance that defines it, or a function that takes a list"
        )
    optional: dict[str, Any] = {name: _overridden(handler, name) for name in METHOD_NAMES[1:]}
    methods = HandlerMethods(handler, handler, consume, **optional)
    for name in METHOD_NAMES:
        refuse_generator_function(f"{name} of {handler!r}", getattr(methods, name))
    if methods.on_open is not None:
        _refuse_unopened_aggregator(handler)
    return methods


def _refuse_unopened_aggregator(handler: object) -> None:
    """Raise ConfigError for an aggregator that runs without the interpreter and has `on_open`."""
    if isinstance(handler, _core.Aggregator) and type(handler).consume is _core.Aggregator.consume:
        raise ConfigError(
            f"on_open of {handler!r} would not be called: an Aggregator runs without the "
            "interpreter; open what it needs before, or define consume(batch) as well, which calls "
            "super().consume(batch)"
        )


def _protected(function: Any) -> Any:
    owner = getattr(function, "__self__", None)
    return function if owner is None or isinstance(owner, ModuleType) else owner


def _overridden(handler: object, name: str) -> Callable[..., Any] | None:
    if getattr(type(handler), name, None) is getattr(HandlerConsumer, name):
        return None
    method = getattr(handler, name, None)
    if method is not None and not callable(method):
        raise ConfigError(
            f"{name} of {type(handler).__name__} is {method!r}; it must be a method, or be left out"
        )
    return method
