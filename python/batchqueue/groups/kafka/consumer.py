"""`ConsumerThread`: the thread that owns a Kafka consumer (K1).

It keeps polling while partitions are paused and while handlers run for minutes, so that the group
keeps its member. Only a revoke holds it up, until the handlers of its partitions have returned.
Meanwhile it still makes the calls that other threads give it. Commits are synchronous: none is
under way when the broker takes a partition back (K3).
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from batchqueue.groups.backend import CommitRequest, Fetch
from batchqueue.groups.errors import StreamUnavailableError
from batchqueue.groups.kafka.ownership import Owned, Ownership, metadata_of
from batchqueue.groups.kafka.server import MinuteLog, client_of
from batchqueue.groups.kafka.transactions import CommitErrors, Transactions

if TYPE_CHECKING:
    from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

T = TypeVar("T")

_IDLE_S = 0.02
"""How long a poll waits for a record, and so how long a call may wait for the poll."""

_TOGETHER = 2_000
"""Records taken from the consumer at a time."""

_MOST_RECORDS, _MOST_BYTES = 20_000, 64 << 20
"""A partition with more records waiting, or more than its share of the bytes, is paused. It
continues when half of that is free, because each pause empties librdkafka's own buffer."""

_LEAST_BYTES = 1 << 20
"""The smallest share."""

_REVOKE_STEP_S = 0.01

_SEEKS = 20
"""How often seeks are tried while the fetchers of partitions start, 10 ms apart."""

_WAKE_S = 1.0
"""The limit of a call that only has to be sent."""


GONE = "UNKNOWN_MEMBER_ID"
"""The name of the error of a commit when the group has continued without the consumer.

Another generation is not a sign of that: the broker checks the member first, and a commit that
waits for a rebalance to end comes with the generation before.
"""

_PERMANENT = (
    "_FATAL",
    "TOPIC_AUTHORIZATION_FAILED",
    "GROUP_AUTHORIZATION_FAILED",
    "INCONSISTENT_GROUP_PROTOCOL",
    "INVALID_SESSION_TIMEOUT",
    "GROUP_MAX_SIZE_REACHED",
)
"""Names of errors after which a consumer will never own a partition."""


class Waiting:
    """Records of a partition that wait for the reader.

    Attributes:
        token: The token under which they are read.
        count: The number of records.
        size: The size of their values in bytes, or what `memory_of` says.
        position: The offset of the last one that was received.
        end: The offset after everything that the consumer can see, once it has received all of
            that; else None.
        is_paused: Whether the consumer fetches no more of them.
        failure: Why no more can be read, or None.
    """

    def __init__(
        self,
        token: int,
        position: int,
        memory_of: "Callable[[Sequence[Message]], int] | None" = None,
    ) -> None:
        self._size_of = memory_of or size_of
        self.token = token
        self.count = self.size = 0
        self.position = position
        self.end: int | None = None
        self.is_paused = False
        self.failure: KafkaError | None = None
        self._runs: deque[tuple[list[Message], int]] = deque()

    def add(self, run: list["Message"]) -> None:
        """Add records in the order of their offsets, except those that are known."""
        if run[0].offset() <= self.position:
            run = [each for each in run if each.offset() > self.position]
        if run:
            self.position = run[-1].offset()
            self.end = None
            size = self._size_of(run)
            self.count += len(run)
            self.size += size
            self._runs.append((run, size))

    def take(self, after: int, limit: int) -> tuple[list["Message"], int]:
        """Remove the next records behind an offset, at most `limit`, and return their size too."""
        taken: list[Message] = []
        total = 0
        while self._runs and len(taken) < limit:
            run, size = self._runs.popleft()
            left = limit - len(taken)
            if len(run) > left:
                rest, rest_size = run[left:], size
                run = run[:left]
                size = self._size_of(run)
                self._runs.appendleft((rest, rest_size - size))
            self.count -= len(run)
            self.size -= size
            if run[0].offset() <= after:
                run = [each for each in run if each.offset() > after]
                size = self._size_of(run)
            taken += run
            total += size
        return taken, total

    def give_back(self, run: list["Message"]) -> None:
        """Put records back that were taken last."""
        if run:
            size = self._size_of(run)
            self.count += len(run)
            self.size += size
            self._runs.appendleft((run, size))

    def is_below(self, records: int, size: int) -> bool:
        """Return whether it has fewer records and fewer bytes."""
        return self.count < records and self.size < size


def keep(
    messages: Sequence["Message"],
    waiting: Mapping[int, Waiting],
    note: "Callable[[Message, KafkaError], None]",
) -> None:
    """Let records wait for their readers, and note the errors between them, in order.

    Args:
        messages: What a consumer returned.
        waiting: What waits, by partition. Records of other partitions are dropped.
        note: Called with each error.
    """
    from confluent_kafka import Message

    def add(partition: int, run: list["Message"]) -> None:
        if run and partition in waiting:
            waiting[partition].add(run)

    has_errors = any(map(Message.error, messages))
    for partition, group in groupby(messages, Message.partition):
        if not has_errors:
            add(partition, list(group))
            continue
        run: list[Message] = []
        for message in group:
            error = message.error()
            if error is None:
                run.append(message)
            else:
                add(partition, run)
                run = []
                note(message, error)
        add(partition, run)


def size_of(messages: Sequence["Message"]) -> int:
    """Return the size of the values of records in bytes."""
    return sum(map(len, messages))


def _error_of(call: Callable[[Any], Any], argument: Any) -> "KafkaError | None":
    """Make a call, and return the error of librdkafka, or None."""
    from confluent_kafka import KafkaError, KafkaException

    try:
        call(argument)
    except KafkaException as error:
        reason = error.args[0]
        assert isinstance(reason, KafkaError)
        return reason
    return None


class ConsumerCall(NamedTuple):
    """What the thread is asked to do."""

    call: "Callable[[Consumer], Any]"
    future: "Future[Any]"


class ConsumerThread:
    """A consumer, its thread, and the records that it has received.

    Attributes:
        ownership: What the broker has assigned. Used under `changed`.
        changed: Guards everything here, and is notified of changes, except of records.
        failure: Why the consumer has ended, or None.
        done: The offsets that were committed, by partition.
    """

    def __init__(
        self,
        settings: Mapping[str, Any],
        topic: str,
        ownership: Ownership,
        *,
        name: str,
        revoke_wait_s: float,
        transactions: Transactions | None = None,
    ) -> None:
        """Prepare the thread.

        Args:
            settings: The settings of librdkafka.
            topic: The topic.
            ownership: What the broker has assigned.
            name: The name of the worker, beside its offsets.
            revoke_wait_s: How long a revoke waits for what is in hand.
            transactions: Store the offsets. Default: None, the consumer does.
        """
        self.ownership = ownership
        lock = threading.RLock()
        self.changed = threading.Condition(lock)
        # Another one, so that records wake no thread that waits for something else.
        self._arrived = threading.Condition(lock)
        self.failure: BaseException | None = None
        self.done: dict[int, int] = {}
        self._log = MinuteLog(f"consumer of {topic}")
        self._settings = {**settings, "error_cb": self._log.warn_of}
        self._topic = topic
        self._name = name
        self._revoke_wait_s = revoke_wait_s
        self._transactions = transactions
        self._waiting: dict[int, Waiting] = {}
        self._calls: deque[ConsumerCall] = deque()
        self._is_closing = self._is_member = self._is_revoking = False
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    # Called by other threads.

    def start(self) -> None:
        """Start the thread, which joins the group. A second call does nothing."""
        if self._thread is None:
            self._thread = threading.Thread(
                target=self._run, name=f"batchqueue-kafka-{self._topic}", daemon=True
            )
            self._thread.start()

    def do(self, call: Callable[["Consumer"], T], timeout_s: float) -> T:
        """Let the thread make a call, and return its result.

        Args:
            call: The call.
            timeout_s: How long to wait.

        Raises:
            StreamUnavailableError: It takes longer, or the consumer is closed.
        """
        future: Future[T] = Future()
        with self.changed:
            if self._closed.is_set():
                raise StreamUnavailableError(self._topic, "the consumer is closed")
            self._calls.append(ConsumerCall(call, future))
            self.changed.notify_all()
        try:
            return future.result(timeout_s)
        except TimeoutError:
            future.cancel()
            reason = f"the consumer did not answer in {timeout_s:g} s"
            raise StreamUnavailableError(self._topic, reason) from None

    def read(
        self, wanted: Sequence[Fetch], wait_s: float
    ) -> list[tuple[int, list["Message"], int, "KafkaError | None"]]:
        """Take records that were received.

        Args:
            wanted: What to take.
            wait_s: How long to wait for a record if there is none.

        Returns:
            Partition, records, their size, and error of each that has either, or that may have
            records.
        """
        end = time.monotonic() + wait_s
        with self.changed:
            while True:
                found = []
                for fetch in wanted:
                    waiting = self._waiting_for(fetch)
                    if waiting is None:
                        continue
                    taken, size = waiting.take(fetch.after, fetch.limit)
                    if taken or waiting.failure is not None:
                        found.append((fetch.partition, taken, size, waiting.failure))
                        waiting.failure = None
                left = end - time.monotonic()
                if found or left <= 0 or self._is_closing:
                    return found + self._behind(wanted, {each for each, *_ in found})
                self._arrived.wait(left)

    def _waiting_for(self, fetch: Fetch) -> Waiting | None:
        """Return what waits, unless the read began under another token."""
        waiting = self._waiting.get(fetch.partition)
        return waiting if waiting is not None and waiting.token == fetch.token else None

    def _behind(
        self, wanted: Sequence[Fetch], found: Collection[int]
    ) -> list[tuple[int, list["Message"], int, None]]:
        waiting = [(each.partition, self._waiting_for(each)) for each in wanted]
        return [
            (number, [], 0, None)
            for number, each in waiting
            if each and each.end is None and number not in found
        ]

    def close(self, wait_s: float) -> None:
        """End the thread, which leaves the group."""
        with self.changed:
            self._close()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._closed.wait(wait_s)

    # Calls that the thread makes.

    def commit(self, consumer: "Consumer", requests: Sequence[CommitRequest]) -> CommitErrors:
        """Commit what is owned now, and return the error of each; None if it is stored."""
        from confluent_kafka import KafkaError, TopicPartition

        with self.changed:
            chosen = self.ownership.committable(requests)
            offsets = [
                TopicPartition(
                    self._topic,
                    each.partition,
                    self._next(each),
                    metadata_of(self.ownership.owned[each.partition], self._name),
                )
                for each in chosen
            ]
        if not offsets:
            return {}
        errors = self._store(consumer, offsets, chosen)
        if any(error is None for error in errors.values()):
            self._is_member = True
        elif any(isinstance(e, KafkaError) and e.name() == GONE for e in errors.values()):
            self._is_member = False
        with self.changed:
            unknown = [each.partition for each in chosen if each.partition not in errors]
            if unknown:
                self.ownership.reopen(unknown)
                self.changed.notify_all()
            for place, request in zip(offsets, chosen, strict=True):
                if errors.get(place.partition, GONE) is None:
                    self.done[place.partition] = place.offset
                    owned = self.ownership.find(request.partition, request.token, request.session)
                    if owned is not None:
                        owned.committed = replace(request, records=())
        return errors

    def _store(
        self,
        consumer: "Consumer",
        offsets: list["TopicPartition"],
        requests: Sequence[CommitRequest],
    ) -> CommitErrors:
        """Store offsets, by a transaction if there are any (K6)."""
        from confluent_kafka import KafkaException

        if self._transactions is not None:
            generation = consumer.consumer_group_metadata()  # K7
            return self._transactions.store(offsets, requests, generation)
        try:
            results = consumer.commit(offsets=offsets, asynchronous=False)
            return {each.partition: each.error for each in results}
        except KafkaException as error:
            return dict.fromkeys((each.partition for each in offsets), error.args[0])

    def _next(self, request: CommitRequest) -> int:
        """Return the offset to commit. At the end it is behind the markers of transactions."""
        waiting = self._waiting.get(request.partition)
        if waiting is None or waiting.end is None or request.offset < waiting.position:
            return request.offset + 1
        return max(waiting.end, request.offset + 1)

    def confirm(self, consumer: "Consumer") -> CommitErrors:
        """Repeat the last commits: the broker takes them only from a member of the group."""
        with self.changed:
            requests = self.ownership.committed()
        return self.commit(consumer, requests)

    def begin(
        self, consumer: "Consumer", positions: Mapping[Owned, int]
    ) -> dict[int, "KafkaError | None"]:
        """Read partitions behind offsets.

        Args:
            consumer: The consumer.
            positions: The partitions, and the offset behind which each is to be read.

        Returns:
            The error of each that is still owned; None if it is read.
        """
        from confluent_kafka import TopicPartition

        with self.changed:
            owned = {each.partition: each for each in positions if self._is_kept(each)}
            is_first = not self._is_reading
            for number, each in owned.items():
                self._waiting[number] = Waiting(each.token, positions[each])
        places = {
            n: TopicPartition(self._topic, n, positions[each] + 1) for n, each in owned.items()
        }
        errors: dict[int, KafkaError | None] = {}
        left = list(places)
        for _ in range(_SEEKS):
            errors |= {number: _error_of(consumer.seek, places[number]) for number in left}
            left = [number for number in left if errors[number] is not None]
            if not left:
                break
            time.sleep(0.01)  # their fetchers are still starting, or have stopped
        if left and not self._is_revoking:
            # A fetcher that found its offset out of range has stopped for good. The next one starts
            # at the offset. But to remove one would also answer a revoke that is not served yet.
            if self._poll(consumer, 0):
                self._keep([])
            for number in left:
                if self._is_kept(owned[number]):
                    errors[number] = self._restart(consumer, places[number])
        for number, error in errors.items():
            if error is None and self._is_kept(owned[number]):
                errors[number] = _error_of(consumer.resume, [places[number]])
        if is_first and places:
            self._wake(consumer, places)
        return {number: errors[number] for number, each in owned.items() if self._is_kept(each)}

    def _restart(self, consumer: "Consumer", place: "TopicPartition") -> "KafkaError | None":
        error = _error_of(consumer.incremental_unassign, [place])
        return error if error is not None else _error_of(consumer.incremental_assign, [place])

    @property
    def _is_reading(self) -> bool:
        return any(not each.is_paused for each in self._waiting.values())

    def _wake(self, consumer: "Consumer", partitions: Iterable[int]) -> None:
        """Ask the leaders of partitions something.

        Otherwise librdkafka's threads that fetch from them sleep for up to a second longer if no
        partition was fetched before: a seek and a resume do not wake them.
        """
        from confluent_kafka import OFFSET_END, KafkaException, TopicPartition

        places = [TopicPartition(self._topic, each, OFFSET_END) for each in partitions]
        with suppress(KafkaException):
            consumer.offsets_for_times(places, _WAKE_S)

    def _is_kept(self, owned: Owned) -> bool:
        return self.ownership.owned.get(owned.partition) is owned and not owned.is_revoked

    # The thread.

    def _run(self) -> None:
        try:
            self._consume()
        except BaseException as error:
            self._fail(error)
        finally:
            with self.changed:
                self._is_closing = True
                self.ownership.remove(list(self.ownership.owned))
                self._closed.set()
                self.changed.notify_all()
            self._refuse_calls()

    def _consume(self) -> None:
        from confluent_kafka import Consumer

        consumer = client_of(Consumer, self._settings)
        try:
            consumer.subscribe(
                [self._topic],
                on_assign=self._on_assign,
                on_revoke=self._on_revoke,
                on_lost=self._on_lost,
            )
            while not self._is_closing:
                self._carry_out(consumer)
                if self._poll(consumer, _IDLE_S):
                    self._keep(consumer.consume(_TOGETHER, 0))
                self._pause_and_resume(consumer)
        except BaseException as error:
            self._fail(error)
            raise
        finally:
            consumer.close()  # this revokes what is left
            if self._transactions is not None:
                self._transactions.close()

    def _poll(self, consumer: "Consumer", timeout_s: float) -> bool:
        """Serve callbacks, and keep a record if there is one: the next call may change the rest.

        The reader is notified of it with the records of the next call.
        """
        message = consumer.poll(timeout_s)
        if message is not None:
            with self.changed:
                keep([message], self._waiting, self._note)
        return message is not None

    def _fail(self, error: BaseException) -> None:
        with self.changed:
            self.failure = self.failure or error
            self._close()

    def _close(self) -> None:
        self._is_closing = True
        self.changed.notify_all()
        self._arrived.notify_all()

    def _carry_out(self, consumer: "Consumer") -> None:
        while self._calls:
            call, future = self._calls.popleft()
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(call(consumer))
            except Exception as error:  # of the caller, who waits for it
                future.set_exception(error)

    def _refuse_calls(self) -> None:
        while self._calls:
            future = self._calls.popleft().future
            if future.set_running_or_notify_cancel():
                future.set_exception(StreamUnavailableError(self._topic, "the consumer is closed"))

    def _keep(self, messages: Sequence["Message"]) -> None:
        with self.changed:
            keep(messages, self._waiting, self._note)
            self._arrived.notify_all()

    def _note(self, message: "Message", error: "KafkaError") -> None:
        from confluent_kafka import KafkaError, KafkaException

        waiting = self._waiting.get(message.partition())
        if error.code() == KafkaError._PARTITION_EOF:
            if waiting is not None:
                waiting.end = message.offset()
        elif error.name() in _PERMANENT:
            raise KafkaException(error)
        elif waiting is not None and message.topic() == self._topic:
            waiting.failure = error
        else:
            self._log.warn_of(error)

    def _pause_and_resume(self, consumer: "Consumer") -> None:
        from confluent_kafka import TopicPartition

        with self.changed:
            most = _MOST_RECORDS, max(_LEAST_BYTES, _MOST_BYTES // max(1, len(self._waiting)))
            half = most[0] // 2, most[1] // 2
            waiting = self._waiting.items()
            full = [p for p, w in waiting if not w.is_paused and not w.is_below(*most)]
            free = [p for p, w in waiting if w.is_paused and w.is_below(*half)]
            is_first = not self._is_reading
            for partition in full:
                self._waiting[partition].is_paused = True
            for partition in free:
                self._waiting[partition].is_paused = False
        if full:
            consumer.pause([TopicPartition(self._topic, each) for each in full])
        if free:
            consumer.resume([TopicPartition(self._topic, each) for each in free])
            if is_first:
                self._wake(consumer, free)

    # The callbacks of the consumer, on the thread.

    def _on_assign(self, consumer: "Consumer", partitions: Sequence[Any]) -> None:
        from confluent_kafka import TopicPartition

        # The offset only has to need no lookup, because `begin` seeks.
        places = [TopicPartition(self._topic, each.partition, 0) for each in partitions]
        consumer.incremental_assign(places)
        if places:
            consumer.pause(places)  # until its token is stored
        self._is_member = True
        with self.changed:
            self.ownership.assign(each.partition for each in partitions)
            self.changed.notify_all()

    def _on_revoke(self, consumer: "Consumer", partitions: Sequence[Any]) -> None:
        numbers = [each.partition for each in partitions]
        with self.changed:
            rest = self.ownership.revoke(numbers)
            self.changed.notify_all()
        end = time.monotonic() + self._revoke_wait_s
        self._is_revoking = True
        try:
            while not (all(owned.is_released for owned in rest) or self._is_closing):
                if time.monotonic() >= end or not self._is_member:
                    break
                self._carry_out(consumer)
                with self.changed:
                    if not all(owned.is_released for owned in rest):
                        self.changed.wait(_REVOKE_STEP_S)
            self._carry_out(consumer)  # what was asked for before the end
        finally:
            self._is_revoking = False
        self._forget(numbers)

    def _on_lost(self, consumer: "Consumer", partitions: Sequence[Any]) -> None:
        del consumer
        self._forget([each.partition for each in partitions])

    def _forget(self, partitions: Sequence[int]) -> None:
        with self.changed:
            self.ownership.remove(partitions)
            for partition in partitions:
                self._waiting.pop(partition, None)
            self.changed.notify_all()
