"""`Producer`: adds values to a stream."""

import threading
from collections.abc import Callable, Iterable
from itertools import islice
from typing import TYPE_CHECKING, Any, Self

from batchqueue import _core
from batchqueue.base.checks import check_whole
from batchqueue.base.words import counted
from batchqueue.exceptions import ConfigError, QueueClosedError
from batchqueue.groups.backend import NewRecord
from batchqueue.groups.errors import StreamFullError
from batchqueue.groups.record import (
    Codec,
    Headers,
    KeyValue,
    checked_headers,
    codec_of,
    key_bytes,
)

if TYPE_CHECKING:
    from batchqueue.groups.backend import StreamSource


Key = Callable[[Any], KeyValue | None]

_RUN = 100
"""Records without a key that go to one partition before it is the next one's turn."""

_BLOCK = 1_000
"""Records added per call to the server."""


class Producer:
    """Adds values to a stream. It may be used by several threads.

    `send` may name the partition of a record. Otherwise it follows from the key, the same in every
    process for the same number of partitions. Records without a key go to the partitions in turn,
    100 each. The records of a partition are in the order in which they were sent.

    Attributes:
        partitions: The number of partitions of the stream.
    """

    def __init__(
        self,
        source: "StreamSource",
        *,
        codec: str | Codec = "bytes",
        key: Key | None = None,
        max_len: int | None = None,
        partitions: int | None = None,
    ) -> None:
        """Connect to a stream; `source.producer(...)` does the same.

        Args:
            source: The stream.
            codec: Encodes the values; the name of a codec, or a `Codec`. Default: "bytes".
            key: Returns the key of a value, a str, bytes or int, or None. Default: no keys.
            max_len: The most records per partition that some group has not done. Default: None, no
                limit.
            partitions: The number of partitions of a new stream, which an existing one must match.
                Default: None, the number of the source.

        Raises:
            ConfigError: A setting is invalid, or the stream has another number of partitions.
            StreamUnavailableError: The server cannot be reached.
        """
        check_whole("max_len", max_len, 1, give="an int from 1 up, or None", is_optional=True)
        if key is not None and not callable(key):
            raise ConfigError(f"key is {key!r}; give a function that returns the key of a value")
        self._stream = source.stream
        self._codec = codec_of(codec)
        self._key = key
        self._max_len = max_len
        self._writer = source.open_writer()
        given = source.partition_count if partitions is None else partitions
        self.partitions = self._writer.partitions(given)
        self._sent = 0
        self._is_closed = False
        self._lock = threading.Lock()

    def send(
        self,
        value: Any,
        *,
        key: KeyValue | None = None,
        partition: int | None = None,
        headers: Headers = (),
    ) -> int:
        """Add a value, and return its offset.

        Args:
            value: A value that the codec takes.
            key: Its key. Default: None, the result of the producer's function `key`.
            partition: Its partition, from 0. Default: None, by its key, or in turns.
            headers: Names and values, or pairs of both; a str becomes UTF-8. A record whose header
                `type` is the tag of a handler goes to that handler.

        Raises:
            QueueClosedError: The producer is closed.
            CodecError: The codec cannot encode the value.
            ConfigError: The partition does not exist, or the key or a header is invalid.
            StreamFullError: The partition holds `max_len` records that are not done.
            StreamUnavailableError: The server cannot be reached; the record may be added.
        """
        record = self._record(value, key, partition, headers)
        [offset] = self._writer.add([record], self._max_len)
        if offset is None:
            raise self._full(record.partition, 0)
        return offset

    def send_many(
        self, values: Iterable[Any], *, partition: int | None = None, headers: Headers = ()
    ) -> int:
        """Add values in order, 1,000 at a time, and return how many.

        Args:
            values: The values; an iterator is read as it is sent.
            partition: As in `send`, for all of them.
            headers: As in `send`, for all of them.

        Raises:
            CodecError: As in `send`. The complete thousands before were added.
            ConfigError: As in `send`.
            StreamFullError: A partition is full. `accepted` values were added, including later
                values of the last thousand in other partitions: check the keys before repeating it.
            StreamUnavailableError: As in `send`.
        """
        added, rest = 0, iter(values)
        while block := list(islice(rest, _BLOCK)):
            records = [self._record(value, None, partition, headers) for value in block]
            offsets = self._writer.add(records, self._max_len)
            added += sum(offset is not None for offset in offsets)
            for record, offset in zip(records, offsets, strict=True):
                if offset is None:
                    raise self._full(record.partition, added)
        return added

    def close(self) -> None:
        """Close the connection. Nothing can be sent afterwards."""
        self._is_closed = True
        self._writer.close()

    def __enter__(self) -> Self:
        """Return the producer."""
        return self

    def __exit__(self, *exc: object) -> None:
        """Close the connection."""
        self.close()

    def __repr__(self) -> str:
        """Say which stream it is for."""
        return f"<Producer of {self._stream!r} with {counted(self.partitions, 'partition')}>"

    def _record(
        self, value: Any, key: KeyValue | None, partition: int | None, headers: Headers
    ) -> NewRecord:
        if self._is_closed:
            raise QueueClosedError(f"the producer of {self._stream} is closed; make another one")
        if key is None and self._key is not None:
            key = self._key(value)
        if partition is None:
            partition = self._partition_of(key)
        elif not isinstance(partition, int) or not 0 <= partition < self.partitions:
            raise ConfigError(
                f"partition is {partition!r}; give an int from 0 to {self.partitions - 1}, or "
                "leave it out"
            )
        data = self._codec.encoded(value)
        about = checked_headers(headers) if headers else ()
        return NewRecord(partition, data, key_bytes(key), about)

    def _partition_of(self, key: KeyValue | None) -> int:
        if self._writer.chooses_partition:
            return -1
        return self._turn() if key is None else _core.partition_of_key(key, self.partitions)

    def _turn(self) -> int:
        with self._lock:
            self._sent += 1
            return (self._sent - 1) // _RUN % self.partitions

    def _full(self, partition: int, accepted: int) -> StreamFullError:
        assert self._max_len is not None
        return StreamFullError(self._stream, partition, self._max_len, accepted)
