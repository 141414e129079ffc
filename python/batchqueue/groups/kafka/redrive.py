"""`KafkaRedrive`: sends dead letters of a group back to their topic, each once.

The topic of dead letters belongs to all groups, and keeps its records. How far a group is in each
of its partitions is the committed offset of another group, `<group>.redrive`, which has no members.
Brokers forget such offsets after a week, so a *mark*, a record without a value, says the same in
the partition itself. It stays as long as the letters before it.

One transaction sends letters, writes the mark and commits the offset, so a redrive that is
interrupted has done all or nothing of it. All redrives of a group have the same transactional id:
one that begins aborts the transaction of the one before, which can send nothing more.
"""

import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from batchqueue.base.words import counted
from batchqueue.exceptions import BatchQueueError
from batchqueue.groups.backend import NewRecord, Redriven
from batchqueue.groups.errors import CodecError, KafkaRefusedError, StreamUnavailableError
from batchqueue.groups.kafka.connection import headers_of
from batchqueue.groups.kafka.server import (
    CALL_S,
    LARGEST_RECORD,
    PERMANENT,
    Bounds,
    KafkaAdmin,
    KafkaServer,
    client_of,
    known,
)
from batchqueue.groups.messages import Headers, without_origin

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Message

_BLOCK, _BLOCK_BYTES = 500, 4_000_000
"""The most letters of a transaction, and about the most bytes of their values."""

_BEGIN_S = 30.0
"""How long it waits until an earlier redrive has ended, or the brokers have made their topic."""

_POLL_S = 0.5
_PAUSE_S = 0.05

_NAMED = 10
"""The most offsets that a note names."""

_MARK = "dead-redriven"
"""The header of a mark."""

_FENCED = ("_FENCED", "INVALID_PRODUCER_EPOCH", "PRODUCER_FENCED")
"""Names of errors of a redrive after which another has begun."""


class Letter(NamedTuple):
    """A dead letter of the group."""

    offset: int
    """Its offset in the topic of dead letters."""
    origin: int
    """The partition of its record; -1 if that is unknown."""
    record: NewRecord
    is_whole: bool
    """Whether it has the value of its record."""


_FORM = "bqr1"


class Progress(NamedTuple):
    """How far letters in a partition of the topic of dead letters were sent back."""

    offset: int
    """All letters before this offset were."""
    ahead: Mapping[int, int]
    """For partitions of records whose letters were sent further: the offset for these letters."""

    def covers(self, letter: Letter) -> bool:
        """Return whether a letter was sent back."""
        return letter.offset < max(self.offset, self.ahead.get(letter.origin, 0))

    def __str__(self) -> str:
        """Return it as the metadata of a commit, and as the header of a mark."""
        further = ",".join(f"{origin}:{offset}" for origin, offset in sorted(self.ahead.items()))
        return f"{_FORM};{self.offset};{further}"

    @classmethod
    def of(cls, text: str | None) -> "Progress | None":
        """Return the progress in a text; None if another program made it."""
        form, _, rest = (text or "").partition(";")
        offset, _, further = rest.partition(";")
        if form != _FORM:
            return None
        pairs = (pair.split(":") for pair in further.split(",") if pair)
        return cls(int(offset), {int(origin): int(to) for origin, to in pairs})


@dataclass
class _Walk:
    """A walk through a partition of the topic of dead letters.

    Attributes:
        partition: That partition.
        selected: The partition of records whose letters are sent; None for all.
        progress: What is committed.
        passed: The offset of the first letter that was passed over because it is not selected; None
            if there was none.
    """

    partition: int
    selected: int | None
    progress: Progress
    passed: int | None = None

    def at(self, offset: int) -> Progress:
        """Return the progress once all selected letters before an offset are sent."""
        ahead, base = {**self.progress.ahead}, offset
        if self.selected is not None and self.passed is not None and self.passed < offset:
            base = self.passed
            ahead[self.selected] = max(offset, ahead.get(self.selected, 0))
        return Progress(base, {origin: to for origin, to in ahead.items() if to > base})


class KafkaRedrive:
    """A redrive; see `backend.Administration.redrive`."""

    def __init__(
        self,
        server: KafkaServer,
        group: str,
        selected: int | None,
        limit: int | None,
        redriven: Redriven,
    ) -> None:
        """Prepare to connect.

        Args:
            server: The brokers, and the topic of the records.
            group: The group.
            selected: The partition of records whose letters are sent; None for all.
            limit: The most letters to send; None for all.
            redriven: What is done.
        """
        self._server = server
        self._dead = server.of_dead_letters
        self._group = group.encode()
        self._name = f"{group}.redrive"
        self._selected = selected
        self._limit = limit
        self._redriven = redriven

    def run(self) -> None:
        """Send letters back, until those are sent that there are now."""
        try:
            admin = KafkaAdmin(self._dead)
            bounds = admin.bounds(range(admin.known_partitions()), CALL_S)
            if all(first == end for first, end in map(known, bounds.values())):
                return
            self._partitions = KafkaAdmin(self._server).known_partitions()
            self._connect()  # an earlier redrive can move the offsets no longer
            self._reader = self._dead.reader(self._name, "read_committed")
            with closing(self._reader):
                committed = self._dead.committed_of(self._reader, bounds)
                for partition, found in bounds.items():
                    if self._redriven.sent != self._limit:
                        self._send_all(partition, known(found), *known(committed[partition]))
        except KafkaRefusedError as error:
            if str(error).endswith(("on the group", "on the transactional id")):
                raise KafkaRefusedError(f"{error} {self._name}") from None
            raise

    def _connect(self) -> None:
        """Connect a producer, and end the redrive before."""
        from confluent_kafka import KafkaException, Producer

        settings = {
            **self._server.producer_settings(),
            "message.max.bytes": LARGEST_RECORD,
            "enable.idempotence": True,
            "transactional.id": self._name,
        }
        self._producer = client_of(Producer, settings)
        try:
            self._producer.init_transactions(_BEGIN_S)
        except KafkaException as error:
            raise self._error_of(error.args[0]) from None

    def _progress(
        self, partition: int, bounds: Bounds, committed: int, metadata: str | None
    ) -> Progress:
        """Return how far letters of a partition were sent back."""
        (first, end), where = bounds, f"{self._dead.topic}/{partition}"
        if committed < 0:
            found = Progress(first, {})
            for message in self._messages(partition, first, end):
                headers = dict(self._headers_of(message))
                if _MARK in headers:
                    found = Progress.of(headers[_MARK].decode()) or found
        else:
            found = Progress.of(metadata) or Progress(committed, {})
            if found.offset != committed:  # another program has set it
                found = Progress(committed, {})
        if found.offset > end:
            self._redriven.notes.append(
                f"{where} ends before offset {found.offset}, up to which letters were sent back, "
                "as if the topic had been created anew: all of its letters are sent"
            )
            return Progress(first, {})
        if found.offset < first:
            self._redriven.notes.append(
                f"offsets {found.offset} to {first - 1} of {where} were removed by its retention; "
                "letters of the group may have been among them"
            )
        return found

    def _send_all(
        self, partition: int, bounds: Bounds, committed: int, metadata: str | None
    ) -> None:
        """Send the letters of a partition of the topic of dead letters."""
        progress = self._progress(partition, bounds, committed, metadata)
        walk = _Walk(partition, self._selected, progress)
        letters: list[Letter] = []
        left: list[int] = []
        size, reached = 0, max(progress.offset, bounds.first)
        for message in self._messages(partition, reached, bounds.end):
            reached = message.offset() + 1
            letter = self._letter(message)
            if letter is None or progress.covers(letter):
                continue
            if self._selected not in (None, letter.origin):
                walk.passed = letter.offset if walk.passed is None else walk.passed
            elif not letter.is_whole:
                left.append(letter.offset)
            else:
                letters.append(letter)
                size += len(letter.record.value or b"")
                if self._redriven.sent + len(letters) == self._limit:
                    break
                if len(letters) == _BLOCK or size >= _BLOCK_BYTES:
                    self._send(walk, letters, reached)
                    letters, size = [], 0
        self._send(walk, letters, reached)
        if left:
            offsets = ", ".join(map(str, left[:_NAMED]))
            self._redriven.left += len(left)
            self._redriven.notes.append(
                f"{counted(len(left), 'dead letter')} of {self._dead.topic}/{partition} left, "
                "because the topic had refused the value as too large; dead-partition and "
                f"dead-offset say where the record was: offset {offsets}"
                f"{', ...' if len(left) > _NAMED else ''}"
            )

    def _messages(self, partition: int, first: int, end: int) -> Iterator["Message"]:
        """Read the records of a partition from an offset up to another one."""
        from confluent_kafka import KafkaError, TopicPartition

        if first >= end:
            return
        self._reader.assign([TopicPartition(self._dead.topic, partition, first)])
        heard_at = time.monotonic()
        while True:
            message = self._reader.poll(_POLL_S)
            error = None if message is None else message.error()
            if message is not None and error is None:
                if message.offset() < end:
                    yield message
                if message.offset() >= end - 1:
                    return
                heard_at = time.monotonic()
            elif error is not None and error.code() == KafkaError._PARTITION_EOF:
                if message.offset() >= end:
                    return  # the last offsets are markers of transactions
            elif error is not None and error.name().endswith("_AUTHORIZATION_FAILED"):
                raise self._dead.error_of(error, "READ")
            elif time.monotonic() > heard_at + CALL_S:
                reason = f"the brokers sent no records of partition {partition}"
                raise StreamUnavailableError(self._dead.topic, reason)

    def _headers_of(self, message: "Message") -> Headers:
        """Return the headers of what the group wrote; none of other records."""
        try:
            headers = headers_of(message)
        except CodecError:
            return ()
        return headers if dict(headers).get("dead-group") == self._group else ()

    def _letter(self, message: "Message") -> Letter | None:
        """Return a letter; None for a mark, and for what other groups and programs wrote."""
        headers = self._headers_of(message)
        about = dict(headers)
        if not headers or _MARK in about:
            return None
        number = about.get("dead-partition", b"")
        origin = int(number) if number.isdigit() else -1
        # From a partition that there is no longer: where a record with its key goes now.
        to = origin if origin < self._partitions else -1
        record = NewRecord(to, message.value(), message.key(), without_origin(headers))
        return Letter(message.offset(), origin, record, "dead-bytes" not in about)

    def _send(self, walk: _Walk, letters: list[Letter], reached: int) -> None:
        """Send letters, and commit that those before an offset are sent."""
        from confluent_kafka import KafkaException

        progress = walk.at(reached)
        if not letters and progress == walk.progress:
            return
        try:
            self._commit(walk.partition, letters, progress)
        except KafkaException as error:
            if len(letters) < 2 or error.args[0].name() not in PERMANENT:
                raise self._error_of(error.args[0]) from None
            # One of them is refused, or all because their batch is too large. The sequence numbers
            # of this producer have a gap now.
            self._connect()
            half = len(letters) // 2
            self._send(walk, letters[:half], letters[half].offset)
            self._send(walk, letters[half:], reached)
            return
        walk.progress = progress
        self._redriven.sent += len(letters)

    def _commit(self, partition: int, letters: list[Letter], progress: Progress) -> None:
        """Send letters and commit the progress in a transaction."""
        from confluent_kafka import KafkaException, TopicPartition

        producer, topic = self._producer, self._dead.topic
        place = TopicPartition(topic, partition, progress.offset, str(progress))
        try:
            producer.begin_transaction()
            for each in letters:
                self._produce(self._server.topic, *each.record)
            if letters:
                about = ((_MARK, str(progress).encode()), ("dead-group", self._group))
                self._produce(topic, partition, None, None, about)
            while producer.flush(CALL_S):
                pass  # each is delivered or has failed after the time limit of a delivery
            members = self._reader.consumer_group_metadata()
            producer.send_offsets_to_transaction([place], members, CALL_S)
            producer.commit_transaction(CALL_S)
        except BaseException as error:
            try:  # an open one would hide later records from workers until it times out
                producer.abort_transaction(CALL_S)
            except KafkaException as cause:
                if isinstance(error, KafkaException) and error.args[0].name() == "_FATAL":
                    raise cause from None  # which `produce` does not say
            raise

    def _produce(
        self,
        topic: str,
        partition: int,
        value: bytes | None,
        key: bytes | None,
        headers: Headers,
    ) -> None:
        while True:
            try:
                self._producer.produce(topic, value, key, partition, headers=list(headers))
                return
            except BufferError:
                self._producer.poll(_PAUSE_S)

    def _error_of(self, error: "KafkaError") -> BatchQueueError:
        """Return the error of a transaction."""
        if error.name() in _FENCED:
            return KafkaRefusedError(
                f"{self._server.topic}: another redrive of this group has begun, and ended this "
                "one: run it again when that one is done"
            )
        return self._server.error_of(error, "WRITE")
