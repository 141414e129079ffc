"""`TopicReader`: a consumer that reads partitions from any offset, without a group."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from batchqueue.groups.kafka.consumer import Waiting, keep
from batchqueue.groups.kafka.server import KafkaServer, MinuteLog, client_of

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Message

_WAIT_S = 0.1
_TOGETHER = 2_000
_MOST_RECORDS, _MOST_BYTES, _LEAST_BYTES = 20_000, 16 << 20, 64 << 10
"""A partition with more records waiting than these, or more than its share of the bytes, is paused
until it is read. That empties librdkafka's own buffer, so it should not happen often."""


class OutOfRangeError(Exception):
    """The partition does not have the offset."""


class TopicReader:
    """A consumer that reads partitions from any offset, without a group."""

    def __init__(self, server: KafkaServer) -> None:
        """Connect.

        Args:
            server: The brokers and the topic.
        """
        from confluent_kafka import Consumer

        self._log = MinuteLog(f"consumer of {server.topic}")
        settings = {**server.reader_settings(), "error_cb": self._note_error}
        self._consumer: Consumer = client_of(Consumer, settings)
        self._server = server
        self._waiting: dict[int, Waiting] = {}
        self._next: dict[int, int] = {}

    def read(
        self, partition: int, at: int, end: int, on_wait: Callable[[], None]
    ) -> "Iterator[list[Message]]":
        """Read records of a partition from an offset to before another.

        Args:
            partition: The partition.
            at: The first offset.
            end: The offset after the last one.
            on_wait: Called ten times per second while nothing comes.

        Raises:
            OutOfRangeError: The partition does not have the offset.
            KafkaRefusedError: A right is missing.
        """
        if self._next.pop(partition, None) != at:
            self._forget(partition)
            self._assign({partition: at})
        waiting = self._waiting[partition]
        while True:
            run = waiting.take(at - 1, end - at)
            rest = [each for each in run if each.offset() >= end] if run else []
            waiting.give_back(rest)
            run = run[: len(run) - len(rest)]
            if run:
                yield run
                at = offset_after(run)
            if at >= end or waiting.position >= end - 1 or (waiting.end or 0) >= end:
                break
            if waiting.failure is not None:
                self._forget(partition)
                raise OutOfRangeError
            if not self._receive(partition):
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
        self._waiting |= {number: Waiting(0, at - 1) for number, at in offsets.items()}

    def _forget(self, partition: int) -> None:
        if self._waiting.pop(partition, None) is not None:
            self._consumer.incremental_unassign(self._server.places([partition]))

    def _receive(self, partition: int) -> bool:
        """Receive records, some of which should be of the partition; return whether any came."""
        self._resume(partition)
        message = self._consumer.poll(_WAIT_S)
        if message is None:
            return False
        keep([message], self._waiting, self._note)
        keep(self._consumer.consume(_TOGETHER, 0), self._waiting, self._note)
        share = max(_LEAST_BYTES, _MOST_BYTES // len(self._waiting))
        full = [
            number
            for number, each in self._waiting.items()
            if number != partition and not (each.is_paused or each.is_below(_MOST_RECORDS, share))
        ]
        for number in full:
            self._waiting[number].is_paused = True
        if full:
            self._consumer.pause(self._server.places(full))
        return True

    def _resume(self, partition: int) -> None:
        if self._waiting[partition].is_paused:
            self._waiting[partition].is_paused = False
            self._consumer.resume(self._server.places([partition]))

    def _note(self, message: "Message", error: "KafkaError") -> None:
        from confluent_kafka import KafkaError

        waiting = self._waiting.get(message.partition())
        if error.code() == KafkaError._PARTITION_EOF:
            if waiting is not None:
                waiting.end = message.offset()
        elif error.name() in ("_AUTO_OFFSET_RESET", "OFFSET_OUT_OF_RANGE"):
            if waiting is not None:
                waiting.failure = error
        elif error.name() == "TOPIC_AUTHORIZATION_FAILED":
            raise self._server.refused(None, error)
        else:
            self._note_error(error)

    def _note_error(self, error: "KafkaError") -> None:
        if error.name() != "GROUP_AUTHORIZATION_FAILED":  # it has no group
            self._log.warn_of(error)


def offset_after(run: Sequence["Message"]) -> int:
    """Return the offset after the last record of a run."""
    return int(run[-1].offset()) + 1
