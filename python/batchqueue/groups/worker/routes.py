"""`Routes`: which handler gets a record."""

from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from itertools import chain
from types import MethodType, NoneType
from typing import Any, NamedTuple, Protocol, Self

from batchqueue.base.words import counted
from batchqueue.exceptions import BatchFailed, ConfigError
from batchqueue.groups.errors import UnhandledRecordError, quoted_value, shortened
from batchqueue.groups.messages import PREFIX, Command, Entry, SentRecord, without_origin
from batchqueue.groups.record import (
    Assignment,
    Chosen,
    Decoded,
    Headers,
    KeyValue,
    Record,
    check_name,
    checked_headers,
    key_bytes,
)
from batchqueue.queues.callbacks import check_result
from batchqueue.queues.handlers import HandlerMethods, HandlerOpening, blocking_methods

# `Batch`: the records passed to a handler.


class RecordRuns:
    """The records of a batch, before a handler asks for them."""

    __slots__ = ("_runs",)

    def __init__(self, runs: Sequence[Decoded | Chosen]) -> None:
        """Join runs of records, at least one."""
        self._runs = runs

    @property
    def first(self) -> int:
        """The offset of the first record."""
        return self._runs[0].first

    @property
    def last(self) -> int:
        """The offset of the last record."""
        return self._runs[-1].last

    @property
    def values(self) -> list[Any]:
        """The values of the records, in a new list."""
        return [*chain.from_iterable(run.values for run in self._runs)]

    @property
    def records(self) -> list[Record[Any]]:
        """The records, in a new list."""
        return [*chain.from_iterable(run.records() for run in self._runs)]

    def __len__(self) -> int:
        """Return the number of records."""
        return sum(map(len, self._runs))


class Batch:
    """Records of one partition, in the order of their offsets.

    Each attempt gets its own batch, even for the same records.

    Attributes:
        group: The group of the worker.
        stream: The stream.
        assignment: The assignment of the partition.
        records: The records, at least one.
        kind: The first class or tag that its handler takes; empty for a handler of all records.
        attempt: The number of this attempt at the records, from 1.
        runs_commands: Whether `commit_with` is possible.
        stores_records: Whether `send` is possible.
    """

    __slots__ = (
        *("group", "stream", "assignment", "attempt", "kind", "runs_commands", "stores_records"),
        *("_records", "_runs", "_values", "_commands", "_sent"),
    )

    def __init__(
        self,
        group: str,
        stream: str,
        assignment: Assignment,
        records: list[Record[Any]] | RecordRuns,
        *,
        attempt: int = 1,
        kind: str = "",
        runs_commands: bool = True,
        stores_records: bool = True,
    ) -> None:
        """Create a batch, for instance to test a handler. The arguments are its attributes."""
        self.group = group
        self.stream = stream
        self.assignment = assignment
        self.attempt = attempt
        self.kind = kind
        self.runs_commands = runs_commands
        self.stores_records = stores_records
        self._records = None if isinstance(records, RecordRuns) else records
        self._runs = records if isinstance(records, RecordRuns) else RecordRuns([Chosen(records)])
        self._values: list[Any] | None = None
        self._commands: list[Command] = []
        self._sent: list[SentRecord] = []

    @property
    def records(self) -> list[Record[Any]]:
        """The records. They are made when they are first asked for; `values` takes less time."""
        if self._records is None:
            self._records = self._runs.records
            self._runs = RecordRuns([Chosen(self._records)])  # lets go of what was read
        return self._records

    @property
    def partition(self) -> int:
        """The number of the partition, from 0."""
        return self.assignment.partition

    @property
    def token(self) -> int:
        """The token of the assignment. A sink should refuse any below the largest it has seen."""
        return self.assignment.token

    @property
    def first(self) -> int:
        """The offset of the first record."""
        return self._runs.first

    @property
    def last(self) -> int:
        """The offset of the last record."""
        return self._runs.last

    @property
    def values(self) -> list[Any]:
        """The values of the records."""
        if self._values is None:
            self._values = self._runs.values
        return self._values

    @property
    def commands(self) -> tuple[Command, ...]:
        """The commands passed to `commit_with`."""
        return tuple(self._commands)

    def commit_with(self, *commands: Sequence[bytes | str | int]) -> None:
        """Let the server run commands in the script that stores the offset of this batch.

        They run in order if this attempt returns, and not at all if the partition was lost. On
        Redis their keys must be in the slot of the partition: make them with `key`. If a command
        fails there, the script ends after the preceding ones, and the partition waits until the
        rest has run; under `OnFailure.STOP` the worker stops after the last attempt.

        Args:
            commands: Each a sequence of its name and its arguments.

        Raises:
            ConfigError: A command is not a sequence of bytes, str and int, or it is empty; or the
                server cannot run commands, as on Kafka.
        """
        if not self.runs_commands:
            raise ConfigError(
                "commit_with is not possible on Kafka, which stores offsets only: use a Fence in "
                "the transaction of your sink"
            )
        for command in commands:
            if (
                isinstance(command, (str, bytes))
                or not command
                or not all(isinstance(word, (bytes, str, int)) for word in command)
            ):
                raise ConfigError(
                    f"commit_with got {command!r}; give commands as sequences of bytes, str and "
                    'int, for instance ("INCRBY", batch.key("total"), 5)'
                )
        self._commands += [tuple(command) for command in commands]

    @property
    def sent(self) -> tuple[SentRecord, ...]:
        """The records passed to `send`."""
        return tuple(self._sent)

    def send(
        self,
        topic: str,
        value: bytes | str | None,
        *,
        key: KeyValue | None = None,
        headers: Headers = (),
    ) -> None:
        """Store a record in a topic of Kafka, in the transaction that commits this batch.

        Needs `KafkaStreams(..., exactly_once=True)`. Consumers that read committed records only see
        the record once if this attempt returns, and never otherwise. Records that the handlers of a
        partition send are in the order of these calls. They are held in memory until the commit.

        Args:
            topic: A topic of the same brokers. If it is missing, or a broker refuses the record,
                the partition waits, and the commit is repeated.
            value: The value; a str becomes UTF-8, and None is a tombstone of a compacted topic.
            key: The key, from which the partition follows as for Java's producers; an int is sent
                as its digits. Default: None, any partition.
            headers: Names and values, or pairs of both; a str becomes UTF-8. Default: none.

        Raises:
            ConfigError: The commit cannot store records, or an argument is invalid.
        """
        if not self.stores_records:
            remedy = (
                f'use commit_with(("XADD", batch.key({topic!r}), "*", "value", ...))'
                if self.runs_commands
                else "give KafkaStreams exactly_once=True"
            )
            raise ConfigError(
                f"send to {topic!r} is not possible: only a commit on Kafka with exactly_once=True "
                f"stores records: {remedy}"
            )
        if not isinstance(value, (bytes, str, NoneType)):
            raise ConfigError(
                f"send to {topic!r} got the value {quoted_value(value)}; give bytes, a str or None"
            )
        name = _topic(topic) if isinstance(topic, str) else check_name("the topic", topic)
        data = value.encode() if isinstance(value, str) else value
        checked = checked_headers(headers) if headers else ()
        self._sent.append(SentRecord(name, data, key_bytes(key), checked))

    def key(self, name: str) -> str:
        """Return a key for `commit_with`, in the slot of the partition on a Redis cluster."""
        return f"bq:{{{self.stream}/{self.partition}}}:{name}"

    def __len__(self) -> int:
        """Return the number of records."""
        return len(self._runs)

    def __repr__(self) -> str:
        """Say which records it holds."""
        return (
            f"<Batch {self.stream}/{self.partition} offsets {self.first}..{self.last}, "
            f"{counted(len(self), 'record')}, attempt {self.attempt}>"
        )


class SupportsBatches(Protocol):
    """A handler that is an object. `on_open` and `on_close` are optional."""

    def consume(self, batch: Batch, /) -> Any:
        """Handle one batch."""


_topic = lru_cache(partial(check_name, "the topic"))
"""Checks a name once, because a handler sends many records to few topics."""

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
    """A handler and the records that it takes.

    Attributes:
        handler: The registered handler; None if each partition has its own.
        kind: The name of the first class or tag that it takes, unique among the handlers; empty for
            all records without another handler.
        consume: The function to call with a batch, or None.
        protected: The object that at most one thread may be inside.
        on_close: The function to call at the end, or None.
    """

    def __init__(self, handler: Any, kind: type | str = "") -> None:
        """Create the route of a handler.

        Args:
            handler: An object with `consume`, or a function; None if a factory makes one for each
                partition.
            kind: The first class or tag that it takes.

        Raises:
            ConfigError: The handler is neither, or is a coroutine function.
        """
        self.handler = self.protected = handler
        # A class and a tag with the same name are two kinds.
        name = f"{kind.__module__}.{kind.__qualname__}" if isinstance(kind, type) else f"tag {kind}"
        self.kind = name if kind else ""
        self.consume: Callable[[Any], Any] | None = None
        self.on_close: Callable[[], Any] | None = None
        if handler is not None:
            methods = called_methods(handler)
            opening = HandlerOpening(methods)
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
        """By the tag, or by the identity of a class: its metaclass may redefine equality."""
        self._types: list[type] = []  # keeps the classes alive, and so their identities
        self._other: Route | None = None

    def add(self, item_type: type | str, handler: Any) -> None:
        """Send the records of a class, or with a tag, to a handler.

        Raises:
            ConfigError: The type is neither a class nor a str, or has a handler, or this one is
                invalid.
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
        """Send all records without another handler to this handler.

        Raises:
            ConfigError: There is one already, or this is not a handler.
        """
        self._check_other()
        self._other = Route(handler)

    def set_factory(self, factory: Any) -> None:
        """Create a handler for each partition, for all records without another handler.

        Raises:
            ConfigError: There is a handler for them already, or the factory is not callable.
        """
        self._check_other()
        if not callable(factory):
            raise ConfigError(
                f"handler_factory got {factory!r}; give a function that takes an Assignment and "
                "returns a handler"
            )
        made: Any = factory  # its result is checked when it is called
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
        # One route per handler, so that the handler gets the records of all its kinds in order.
        same = (each for each in self._by_type.values() if _is_same(each.handler, handler))
        return next(same, Route(handler, kind))


def called_methods(handler: Any) -> HandlerMethods:
    """Return the methods that a worker calls on a handler.

    Raises:
        ConfigError: It is not a handler, a method is a coroutine function, or it has a method that
            a worker does not call.
    """
    methods = blocking_methods(handler)
    for name in ("on_idle", "on_error"):
        if getattr(methods, name) is not None:
            raise ConfigError(
                f"{name} of {handler!r} would not be called by a worker, {_INSTEAD[name]}"
            )
    return methods


def check_handled(result: object) -> None:
    """Raise if the result of a handler means that it has not handled its batch.

    Raises:
        BatchFailed: The handler returned it instead of raising it. The whole batch has failed.
        ConfigError: The handler returned something that nothing runs.
        BaseException: The error of a failed future.
    """
    if isinstance(result, BatchFailed):
        raise result
    check_result(result)


def _is_same(first: Any, second: Any) -> bool:
    # Each lookup of a bound method creates a new object.
    return first is second or (isinstance(first, MethodType) and first == second)


def instance(handler: Any) -> Any:
    """Return the handler itself, or an instance if it is a class."""
    return handler() if isinstance(handler, type) else handler


def described(error: BaseException) -> str:
    """Return the class and the text of an error, shortened."""
    try:
        return shortened(f"{type(error).__name__}: {error}")
    except Exception:  # a user's class may raise
        return f"{type(error).__name__}, whose text cannot be made"


class Described:
    """An error in a log line; its text is made when the line is written."""

    def __init__(self, error: BaseException) -> None:
        self._error = error

    def __str__(self) -> str:
        """Return the text from `described`."""
        return described(self._error)


class CallFailure(NamedTuple):
    """An error that a handler raised. The user's code makes its texts, so without the lock."""

    error: BaseException
    text: str
    """The text from `described`."""
    reason: str
    """The reason in `HandlerFailedError`."""

    @classmethod
    def of(cls, error: BaseException) -> Self:
        """Return the failure of a call that raised. Without the lock."""
        return cls(error, described(error), quoted_value(error))


def dead_letter(entry: Entry, batch: Batch, error: str) -> Entry:
    """Return a record in the form that goes to the dead letters of its group.

    It keeps its offset, value, key and headers. Headers are added, as text in UTF-8: `dead-stream`,
    `dead-partition`, `dead-offset`, `dead-token`, `dead-tries` and `dead-error`. Those from before
    the record was last sent back are left out.

    Args:
        entry: The record.
        batch: The batch of its last attempt.
        error: The text of the error that the handler raised on it.
    """
    about = {
        "stream": batch.stream,
        "partition": batch.partition,
        "offset": entry.offset,
        "token": batch.token,
        "tries": batch.attempt,
        "error": error,
    }
    added = tuple(
        (PREFIX + name, str(value).encode("utf8", "replace")) for name, value in about.items()
    )
    return entry._replace(headers=without_origin(entry.headers) + added)
