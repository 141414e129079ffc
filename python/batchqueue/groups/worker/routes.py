"""`Routes`: which handler gets a record."""

from collections.abc import Callable
from types import MethodType
from typing import Any, Protocol

from batchqueue._callbacks import check_result
from batchqueue.exceptions import BatchFailed, ConfigError
from batchqueue.groups.errors import UnhandledRecordError
from batchqueue.groups.record import Assignment, Record
from batchqueue.groups.worker.batch import Batch
from batchqueue.handlers import HandlerMethods, Opening, blocking_methods


class SupportsBatches(Protocol):
    """A handler that is an object. `on_open` and `on_close` are optional."""

    def consume(self, batch: Batch, /) -> Any:
        """Handle one batch."""


Factory = Callable[[Assignment], SupportsBatches | Callable[[Batch], Any]]

_INSTEAD = {
    "on_idle": "which commits what `consume` has returned from, so that what is kept for later "
    "would be lost in a crash: write it in `consume`",
    "on_error": "whose `on_failure` decides what becomes of records that failed: leave the method "
    "out, and catch in `consume` what it should see",
}

TAG_HEADER = "type"
"""The header whose value, in UTF-8, is the tag of a record."""


class Route:
    """A handler.

    Attributes:
        handler: What was registered; None if each partition has its own handler.
        kind: The name of the first class or tag that it takes, unlike that of any other handler;
            empty for all records without another handler.
        consume: What to call with a batch, or None.
        protected: What at most one thread may be inside of.
        on_close: What to call at the end, or None.
    """

    def __init__(self, handler: Any, kind: type | str = "") -> None:
        """Take a handler.

        Args:
            handler: An object with `consume`, or a function; None if a factory makes one for each
                partition.
            kind: The first class or tag that it takes.

        Raises:
            ConfigError: It is neither, or a coroutine function.
        """
        self.handler = self.protected = handler
        # A class and a tag of the same name are two kinds.
        name = f"{kind.__module__}.{kind.__qualname__}" if isinstance(kind, type) else f"tag {kind}"
        self.kind = name if kind else ""
        self.consume: Callable[[Any], Any] | None = None
        self.on_close: Callable[[], Any] | None = None
        if handler is not None:
            methods = called_methods(handler)
            opening = Opening(methods)
            self.consume = opening.consume
            self.on_close = methods.on_close and opening.on_close
            self.protected = methods.protected


class Routes:
    """The handlers of a worker.

    Attributes:
        factory: Makes the handler of a partition for records without another one, or None.
    """

    def __init__(self) -> None:
        self.factory: Factory | None = None
        self._by_type: dict[int | str, Route] = {}
        """By the tag, or by the identity of a class: its metaclass may say what equals it."""
        self._types: list[type] = []  # which keeps their identities
        self._other: Route | None = None

    def add(self, item_type: type | str, handler: Any) -> None:
        """Send the records of a class, or with a tag, to a handler.

        Raises:
            ConfigError: It is neither a class nor a str, it has a handler, or this one is invalid.
        """
        if not isinstance(item_type, (type, str)):
            raise ConfigError(
                f"{item_type!r} is neither a class nor a str; give the class of the decoded "
                f'values, or the value of the header "{TAG_HEADER}"'
            )
        key = item_type if isinstance(item_type, str) else id(item_type)
        if key in self._by_type:
            raise ConfigError(f"{item_type!r} has a handler already; give each type one")
        self._by_type[key] = self._route(handler, item_type)
        if isinstance(item_type, type):
            self._types.append(item_type)

    def set_other(self, handler: Any) -> None:
        """Send all records without another handler to this one.

        Raises:
            ConfigError: There is one already, or this is not a handler.
        """
        self._check_other()
        self._other = Route(handler)

    def set_factory(self, factory: Any) -> None:
        """Make a handler for each partition, for all records without another handler.

        Raises:
            ConfigError: There is a handler for them already, or it is not callable.
        """
        self._check_other()
        if not callable(factory):
            raise ConfigError(
                f"handler_factory got {factory!r}; give a function that takes an Assignment and "
                "returns a handler"
            )
        made: Any = factory  # what it returns is checked when it is called
        self.factory = made
        self._other = Route(None)

    @property
    def all(self) -> list[Route]:
        """All routes, each once."""
        routes = [*self._by_type.values(), *([self._other] if self._other else [])]
        return list(dict.fromkeys(routes))

    @property
    def only(self) -> Route | None:
        """The route of all records; None if it depends on the record."""
        return None if self._by_type else self._other

    def find(self, stream: str, partition: int, record: Record[Any]) -> Route:
        """Return the route of a record.

        Raises:
            UnhandledRecordError: No handler takes it.
        """
        if self._by_type:
            route = self._tagged(record) or self._by_type.get(id(type(record.value)))
            if route is not None:
                return route
        if self._other is None:
            kind = type(record.value).__qualname__
            raise UnhandledRecordError(stream, partition, record.offset, kind)
        return self._other

    def _tagged(self, record: Record[Any]) -> Route | None:
        for name, value in record.headers:
            if name == TAG_HEADER:
                return self._by_type.get(value.decode("utf8", "replace"))
        return None

    def _check_other(self) -> None:
        if self._other is not None:
            raise ConfigError(
                "the worker has a handler for all records already; give types to the others with "
                "add_handler"
            )

    def _route(self, handler: Any, kind: type | str) -> Route:
        # One route per handler, so that it gets the records of all its kinds in order.
        same = (each for each in self._by_type.values() if _is_same(each.handler, handler))
        return next(same, Route(handler, kind))


def called_methods(handler: Any) -> HandlerMethods:
    """Find what a worker calls on a handler.

    Raises:
        ConfigError: It is not a handler, a method is a coroutine function, or it has a method that
            is not called.
    """
    methods = blocking_methods(handler)
    for name in ("on_idle", "on_error"):
        if getattr(methods, name) is not None:
            raise ConfigError(
                f"{name} of {handler!r} would not be called by a worker, {_INSTEAD[name]}"
            )
    return methods


def check_handled(result: object) -> None:
    """Raise if a handler returned what means that it has not handled its batch.

    Raises:
        BatchFailed: It returned one instead of raising it. The whole batch has failed.
        ConfigError: It returned something that nothing runs.
        BaseException: The error of a failed future.
    """
    if isinstance(result, BatchFailed):
        raise result
    check_result(result)


def _is_same(first: Any, second: Any) -> bool:
    # A bound method is a new object each time it is looked up.
    return first is second or (isinstance(first, MethodType) and first == second)


def instance(handler: Any) -> Any:
    """Return the handler itself, or an instance if it is a class."""
    return handler() if isinstance(handler, type) else handler
