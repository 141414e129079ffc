"""`TopicReader`: a consumer that reads partitions from any offset, without a group."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from batchqueue.groups.kafka.consumer import Waiting, keep, size_of
from batchqueue.groups.kafka.server import KafkaServer, MinuteLog, client_of

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Message

_WAIT_S = 0.1
_TOGETHER = 2_000

_SILENCE_S = 60
"""How long a partition that has records may send nothing."""

_MOST_BYTES = 16 << 20
"""With more records waiting, only partitions are fetched that are read soon; with twice as many,
only the one that is read. Each pause empties librdkafka's own buffer of the partition."""

_RECORD_BYTES = 200
"""What a record takes in memory beside its key and value."""

_OUT_OF_RANGE = ("_AUTO_OFFSET_RESET", "OFFSET_OUT_OF_RANGE")
_CORRUPT = ("_BAD_MSG", "_BAD_COMPRESSION", "_NOT_IMPLEMENTED", "CORRUPT_MESSAGE")


class UnreadableError(Exception):
    """A partition does not have the offset, or its records cannot be read.

    Attributes:
        is_silence: Whether nothing came for a minute.
        is_corrupt: Whether what came is corrupt.
    """

    def __init__(self, error: "KafkaError | None") -> None:
        super().__init__("nothing came" if error is None else error.str())
        self.is_silence = error is None
        self.is_corrupt = error is not None and error.name() in _CORRUPT


class TopicReader:
    """A consumer that reads partitions from any offset, without a group."""

    def __init__(self, server: KafkaServer, partitions: int) -> None:
        """Connect.

        Args:
            server: The brokers and the topic.
            partitions: How many partitions it will read, about.
        """
        from confluent_kafka import Consumer

        self._log = MinuteLog(f"consumer of {server.topic}")
        settings = {**server.reader_settings(max(1, partitions)), "error_cb": self._note_error}
        self._consumer: Consumer = client_of(Consumer, settings)
        self._server = server
        self._waiting: dict[int, Waiting] = {}
        self._next: dict[int, int] = {}

    def read(
        self,
        partition: int,
        at: int,
        end: int,
        soon: Sequence[int],
        on_wait: Callable[[], None],
    ) -> "Iterator[list[Message]]":
        """Read records of a partition from an offset to before another.

        Args:
            partition: The partition.
            at: The first offset.
            end: The offset after the last one.
            soon: The partitions that are read next, with this one.
            on_wait: Called at least ten times per second while nothing of the partition comes.

        Raises:
            UnreadableError: The partition does not have the offset, or cannot be read there.
            KafkaRefusedError: A right is missing.
        """
        if self._next.pop(partition, None) != at:
            self._forget(partition)
            self._assign({partition: at})
        self._resume(soon)
        waiting = self._waiting[partition]
        heard_s = time.monotonic()
        while True:
            run, _ = waiting.take(at - 1, end - at)
            rest = [each for each in run if each.offset() >= end] if run else []
            waiting.give_back(rest)
            run = run[: len(run) - len(rest)]
            if run:
                yield run
                at, heard_s = offset_after(run), time.monotonic()
            if at >= end or waiting.position >= end - 1 or (waiting.end or 0) >= end:
                break
            if waiting.failure is not None or time.monotonic() - heard_s > _SILENCE_S:
                self._forget(partition)
                raise UnreadableError(waiting.failure)
            self._receive(partition, soon)
            on_wait()
        self._next[partition] = end

    def begin(self, offsets: Mapping[int, int]) -> None:
        """Begin to read partitions that are not being read yet.

        Together, because a partition that is added waits for the fetch that is under way.
        """
        new = {number: at for number, at in offsets.items() if number not in self._waiting}
        if new:
            self._assign(new)
            self._next |= new

    def _assign(self, offsets: Mapping[int, int]) -> None:
        from confluent_kafka import TopicPartition

        topic = self._server.topic
        places = [TopicPartition(topic, number, at) for number, at in offsets.items()]
        self._consumer.incremental_assign(places)
        self._consumer.resume(places)  # a pause outlives an assignment
        self._waiting |= {number: Waiting(0, at - 1, _memory_of) for number, at in offsets.items()}

    def _forget(self, partition: int) -> None:
        if self._waiting.pop(partition, None) is not None:
            self._consumer.incremental_unassign(self._server.places([partition]))

    def _receive(self, partition: int, soon: Sequence[int]) -> None:
        """Receive records, some of which should be of the partition."""
        message = self._consumer.poll(_WAIT_S)
        if message is None:
            return
        keep([message], self._waiting, self._note)
        keep(self._consumer.consume(_TOGETHER, 0), self._waiting, self._note)
        held = sum(each.size for each in self._waiting.values())
        if held > _MOST_BYTES:
            self._pause_all_but(soon if held < 2 * _MOST_BYTES else [partition])

    def _pause_all_but(self, kept: Sequence[int]) -> None:
        paused = [
            number
            for number, each in self._waiting.items()
            if not each.is_paused and number not in kept
        ]
        for number in paused:
            self._waiting[number].is_paused = True
        if paused:
            self._consumer.pause(self._server.places(paused))

    def _resume(self, partitions: Sequence[int]) -> None:
        paused = [
            number
            for number in partitions
            if number in self._waiting and self._waiting[number].is_paused
        ]
        for number in paused:
            self._waiting[number].is_paused = False
        if paused:
            self._consumer.resume(self._server.places(paused))

    def _note(self, message: "Message", error: "KafkaError") -> None:
        from confluent_kafka import KafkaError

        waiting = self._waiting.get(message.partition())
        if error.code() == KafkaError._PARTITION_EOF:
            if waiting is not None:
                waiting.end = message.offset()
        elif error.name() in _OUT_OF_RANGE + _CORRUPT:
            if waiting is not None:
                waiting.failure = error
        elif error.name() == "TOPIC_AUTHORIZATION_FAILED":
            raise self._server.refused(None, error)
        else:
            self._note_error(error)

    def _note_error(self, error: "KafkaError") -> None:
        if error.name() != "GROUP_AUTHORIZATION_FAILED":  # it has no group
            self._log.warn_of(error)


def _memory_of(messages: Sequence["Message"]) -> int:
    """Return about how many bytes records take, without their headers."""
    keys = [message.key() for message in messages]
    return size_of(messages) + sum(len(key or b"") + _RECORD_BYTES for key in keys)


def offset_after(run: Sequence["Message"]) -> int:
    """Return the offset after the last record of a run."""
    return int(run[-1].offset()) + 1
