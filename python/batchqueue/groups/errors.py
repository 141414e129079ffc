"""The errors of partition groups. Each builds its message from its fields.

Invalid settings raise `ConfigError`, a missing package `MissingPackageError`, and a worker in a
forked child `QueueForkedError`, as everywhere in batchqueue. The errors here can be pickled,
because they may reach another process.
"""

import pickle
from dataclasses import dataclass
from functools import partial
from typing import Any

from batchqueue.base.words import counted
from batchqueue.exceptions import BatchQueueError

_LONGEST_QUOTE = 200

_REFUSED_REMEDY = "repair the key, or fix the command"


class _ErrorOfFields(BatchQueueError):
    """An error whose class is a dataclass: the fields are the arguments, so that it pickles."""

    def __post_init__(self) -> None:
        super().__init__(*vars(self).values())


@dataclass(eq=False, repr=False)
class StaleTokenError(_ErrorOfFields, RuntimeError):
    """A newer owner of the partition wrote first, so the sink refused an older token.

    A worker handles it: it drops the partition, and its records go to the newer owner.

    Attributes:
        stream: The stream.
        partition: The partition that the worker lost.
        token: The token that was refused.
        seen: The newer token that the sink had accepted.
        owner: The name of the worker that holds the newer token, or None if unknown.
    """

    stream: str
    partition: int
    token: int
    seen: int
    owner: str | None = None

    def __str__(self) -> str:
        owner = "" if self.owner is None else f" of worker {self.owner}"
        return (
            f"{self.stream}/{self.partition}: token {self.token} is older than {self.seen}{owner}: "
            "this worker lost the partition; nothing was stored"
        )


@dataclass(eq=False, repr=False)
class ReplacedError(_ErrorOfFields, RuntimeError):
    """Another process joined the group under this worker's name.

    Attributes:
        name: The name of both workers.
        host: The host of the other process, or None if unknown.
        pid: The process id of the other process, or None if unknown.
    """

    name: str
    host: str | None = None
    pid: int | None = None

    def __str__(self) -> str:
        known = [
            f"{word} {value}"
            for word, value in (("host", self.host), ("pid", self.pid))
            if value is not None
        ]
        process = f" ({', '.join(known)})" if known else ""
        return (
            f'worker "{self.name}" was replaced by another process{process}: '
            "give each process its own name, or none"
        )


@dataclass(eq=False, repr=False)
class CallRefusedError(_ErrorOfFields, RuntimeError):
    """The server refused a call for one partition, for instance a command of `commit_with`.

    A worker handles it: the partition waits, and the call is repeated. Under `OnFailure.STOP` a
    refused commit is the cause of a `HandlerFailedError`.

    Attributes:
        stream: The stream.
        partition: The partition.
        call: The call that was refused.
        reason: The reply of the server.
    """

    stream: str
    partition: int
    call: str
    reason: str

    def __str__(self) -> str:
        return (
            f"{self.stream}/{self.partition}: the server refused {self.call}: {self.reason}: "
            f"{_REFUSED_REMEDY}"
        )


class KafkaRefusedError(BatchQueueError, RuntimeError):
    """A Kafka broker refused a call, for instance because the user lacks a right.

    The message names the topic, the reason and the remedy.
    """


class HandlerFailedError(BatchQueueError, RuntimeError):
    """A handler raised in its last attempt, and the worker is set to stop on failures.

    Also raised if the commit was refused in the last attempt; `cause` is then a `CallRefusedError`.

    Attributes:
        stream: The stream.
        partition: The partition of the batch.
        first: The offset of the first record that failed.
        last: The offset of the last record that failed.
        tries: The number of attempts at the batch, including the first.
        cause: The last error of the handler. None after unpickling, if it could not be pickled.
        reason: The text of `cause`, shortened.
    """

    def __init__(
        self,
        stream: str,
        partition: int,
        *,
        first: int,
        last: int,
        tries: int,
        cause: BaseException | None,
        reason: str | None = None,
    ) -> None:
        super().__init__(stream, partition, first, last, tries)
        self.stream = stream
        self.partition = partition
        self.first = first
        self.last = last
        self.tries = tries
        self.cause = self.__cause__ = cause
        self.reason = _reason_of(cause) if reason is None else reason

    def __str__(self) -> str:
        what = (
            f"{self.stream}/{self.partition}: offsets {self.first}..{self.last} failed "
            f"{self.tries} time{'' if self.tries == 1 else 's'}, last: {self.reason}"
        )
        if isinstance(self.cause, KafkaRefusedError):
            return what  # the reason names the remedy
        is_refused = isinstance(self.cause, CallRefusedError)
        remedy = _REFUSED_REMEDY if is_refused else "fix the handler, or use OnFailure.DEAD_LETTER"
        return f"{what}: {remedy}"

    def __reduce__(self) -> tuple[Any, ...]:
        fields = {name: getattr(self, name) for name in ("first", "last", "tries", "reason")}
        cause = self.cause if _can_be_pickled(self.cause) else None
        return partial(type(self), self.stream, self.partition, cause=cause, **fields), ()


@dataclass(eq=False, repr=False)
class UnhandledRecordError(_ErrorOfFields, RuntimeError):
    """No handler of the worker takes a record. It is treated like a record whose handler raised.

    Attributes:
        stream: The stream.
        partition: The partition of the record.
        offset: The offset of the record.
        kind: The name of the class of its value.
    """

    stream: str
    partition: int
    offset: int
    kind: str

    def __str__(self) -> str:
        return (
            f"{self.stream}/{self.partition}: no handler takes the {self.kind} at offset "
            f"{self.offset}: add one for this class, or @worker.handler for all others"
        )


@dataclass(eq=False, repr=False)
class TruncatedError(_ErrorOfFields, RuntimeError):
    """Records were trimmed from the stream before the group read them.

    Attributes:
        stream: The stream.
        partition: The partition with the gap.
        offset: The last offset that the group had done before the gap.
        lost: The number of records that are missing.
    """

    stream: str
    partition: int
    offset: int
    lost: int

    def __str__(self) -> str:
        read = "was trimmed before it was" if self.lost == 1 else "were trimmed before they were"
        return (
            f"{self.stream}/{self.partition}: {counted(self.lost, 'record')} after offset "
            f"{self.offset} {read} read: raise the retention, "
            'or on_gap="skip"'
        )


@dataclass(eq=False, repr=False)
class StreamFullError(_ErrorOfFields, RuntimeError):
    """A partition of the stream holds as many unread records as its producers allow.

    Attributes:
        stream: The stream.
        partition: The partition that is full.
        max_len: The most unread records that a partition may hold.
        accepted: The records that `send_many` had already added; 0 for `send`.
    """

    stream: str
    partition: int
    max_len: int
    accepted: int = 0

    def __str__(self) -> str:
        return (
            f"{self.stream}/{self.partition} holds {counted(self.max_len, 'unread record')} "
            "(max_len): add workers, or wait"
        )


@dataclass(eq=False, repr=False)
class StreamUnavailableError(_ErrorOfFields, ConnectionError):
    """The server of a stream cannot be reached, or did not answer in time.

    A worker handles it by waiting until the server is back. A producer raises it, although the
    records of the call may have been added.

    Attributes:
        stream: The stream.
        reason: What failed.
        partitions: The affected partitions, if the others can be reached; None for all.
    """

    stream: str
    reason: str
    partitions: tuple[int, ...] | None = None

    def __str__(self) -> str:
        return f"stream {self.stream}: {self.reason}: check whether its server runs"


@dataclass(eq=False, repr=False)
class OffsetError(_ErrorOfFields, ValueError):
    """A record id cannot be written as an offset, or an offset cannot be written as an id.

    Attributes:
        value: The id or the offset.
        problem: What is wrong with it, and how to fix it.
    """

    value: bytes | str | int
    problem: str

    def __str__(self) -> str:
        kind = "offset" if isinstance(self.value, int) else "record id"
        return f"{kind} {quoted_value(self.value)} {self.problem}"


@dataclass(eq=False, repr=False)
class CodecError(_ErrorOfFields, ValueError):
    """A codec cannot decode a record, or cannot encode a value. Its cause is the codec's error.

    Attributes:
        codec: The name of the codec.
        reason: What is wrong.
        offset: The offset of the record, or None if unknown; None for a value.
        encoding: Whether the codec was encoding a value.
    """

    codec: str
    reason: str
    offset: int | None = None
    encoding: bool = False

    def __str__(self) -> str:
        if self.encoding:
            return (
                f"codec {self.codec} cannot encode the value: {self.reason}: "
                "send a value that it takes, or choose another codec"
            )
        return (
            f"codec {self.codec} cannot decode the record{_at(self.offset)}: {self.reason}: "
            "fix the producer, or use OnFailure.DEAD_LETTER"
        )


class RecordTooLargeError(CodecError):
    """A record has more bytes than its codec allows. It was not decoded, or not sent.

    Attributes:
        size: The size of the record in bytes.
        limit: The largest allowed size in bytes.
    """

    def __init__(
        self, codec: str, size: int, limit: int, offset: int | None = None, encoding: bool = False
    ) -> None:
        super().__init__(codec, f"{size:,} bytes are more than {limit:,}", offset, encoding)
        self.args = (codec, size, limit, offset, encoding)
        self.size = size
        self.limit = limit

    def __str__(self) -> str:
        return (
            f"codec {self.codec}: the record{_at(self.offset)} has {self.size:,} bytes, and "
            f"max_record_bytes is {self.limit:,}: send smaller records, or raise max_record_bytes"
        )


def quoted_value(value: object) -> str:
    """Return the `repr` of a value, shortened, because values may hold whole records."""
    try:
        return shortened(repr(value))
    except Exception:  # a user's class may raise in its repr
        return f"<{type(value).__name__} whose repr raises>"


def shortened(text: str) -> str:
    """Return a text, shortened to fit into a message."""
    return text if len(text) <= _LONGEST_QUOTE else f"{text[: _LONGEST_QUOTE - 1]}…"


def _reason_of(cause: BaseException | None) -> str:
    if isinstance(cause, CallRefusedError):
        return f"the server refused {cause.call}: {cause.reason}"
    if isinstance(cause, KafkaRefusedError):
        return str(cause)
    return quoted_value(cause)


def _at(offset: int | None) -> str:
    return "" if offset is None else f" at offset {offset}"


def _can_be_pickled(cause: BaseException | None) -> bool:
    try:
        # Many exceptions can be dumped but not loaded, because their class takes other arguments.
        pickle.loads(pickle.dumps(cause))
    except Exception:
        return False
    return True
