"""`ConsumerThread`: the thread that owns a Kafka consumer (K1).

It keeps polling while partitions are paused, while handlers run for minutes, and while a commit has
no reply. Only a revoke holds it up, until the handlers of its partitions have returned. Meanwhile
it still makes the calls that other threads give it.

A revoke or a loss that comes while a commit is under way polls for its reply (K3). Behind such a
poll, confluent-kafka has no state for another callback of the call that the first one belongs to.
So the callback answers the broker itself, and ends that call by an error. That ends `poll`, but
not `consume`, which is used between commits only.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import groupby
from typing import TYPE_CHECKING, Any, TypeVar

from batchqueue.groups.backend import Fetch
from batchqueue.groups.kafka.commits import Commits
from batchqueue.groups.kafka.inbox import Inbox
from batchqueue.groups.kafka.ownership import Owned, Ownership
from batchqueue.groups.kafka.server import MinuteLog, client_of
from batchqueue.groups.kafka.transactions import Transactions

if TYPE_CHECKING:
    from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

T = TypeVar("T")

_IDLE_S = 0.02
"""How long a poll waits for a record, and so how long a call may wait for the poll."""

_TOGETHER = 2_000
"""Records taken from the consumer at a time."""

_MOST_RECORDS = 20_000
"""A partition with as many records waiting is paused. It continues when half of them are taken,
because each pause empties librdkafka's own buffer."""

_TOTAL_RECORDS, _TOTAL_BYTES = 200_000, 64 << 20
"""With more waiting in all, each partition may have its share only, until half of that is taken."""

_CHECK_S = 0.01
"""How often that is checked."""

_REVOKE_STEP_S = 0.01

_SEEKS = 20
"""How often seeks are tried while the fetchers of partitions start, 10 ms apart."""

_WAKE_S = 1.0
"""The limit of a call that only has to be sent."""


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
                run, rest, both = run[:left], run[left:], size
                size = self._size_of(run)
                self._runs.appendleft((rest, both - size))
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


class _CallEndedError(Exception):
    """A callback has ended the call that it belonged to, which therefore returns nothing."""


class ConsumerThread:
    """A consumer, its thread, and the records that it has received.

    Attributes:
        ownership: What the broker has assigned. Used under `changed`.
        changed: Guards everything here, and is notified of changes, except of records.
        commits: Makes the commits.
        failure: Why the consumer has ended, or None.
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
        self._log = MinuteLog(f"consumer of {topic}")
        self._topic = topic
        self._revoke_wait_s = revoke_wait_s
        self._waiting: dict[int, Waiting] = {}
        self._calls = Inbox[Callable[["Consumer"], Any]](topic)
        self.commits = Commits(
            topic, ownership, self._waiting, self.changed, name=name, transactions=transactions
        )
        callbacks = {"error_cb": self._log.warn_of, "on_commit": self.commits.on_commit}
        self._settings = {**settings, **callbacks}
        self._is_closing = self._is_ending = self._is_revoking = self._is_crowded = False
        self._has_changed = False
        self._check_at = 0.0
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
        """Let the thread make a call, and return its result; see `Inbox.ask`."""
        result: T = self._calls.ask(call, timeout_s)
        return result

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
            self._calls.wait_closed(wait_s)

    # Calls that the thread makes.

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
            is_first = not self._read
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
        if is_first:
            self._wake(consumer, places)
        return {number: errors[number] for number, each in owned.items() if self._is_kept(each)}

    def _restart(self, consumer: "Consumer", place: "TopicPartition") -> "KafkaError | None":
        error = _error_of(consumer.incremental_unassign, [place])
        return error if error is not None else _error_of(consumer.incremental_assign, [place])

    @property
    def _read(self) -> list[int]:
        """The partitions that are read, except those that are paused."""
        return [number for number, each in self._waiting.items() if not each.is_paused]

    def _wake(self, consumer: "Consumer", partitions: Iterable[int]) -> None:
        """Ask the leaders of partitions something.

        Otherwise librdkafka's threads that fetch from them sleep for up to a second longer if no
        partition was fetched before: a seek and a resume do not wake them. While a callback about
        partitions runs, librdkafka fetches none.
        """
        from confluent_kafka import OFFSET_END, KafkaException, TopicPartition

        places = [TopicPartition(self._topic, each, OFFSET_END) for each in partitions]
        if places:
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
                self.changed.notify_all()
            self.commits.close()
            self._calls.close()

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
            while not (self._is_closing and self.commits.is_idle):
                self._serve(consumer)
        except BaseException as error:
            self._fail(error)
            raise
        finally:
            self._is_ending = True  # callbacks have nothing to wait for
            consumer.close()  # this revokes what is left

    def _serve(self, consumer: "Consumer") -> None:
        """Do what others ask for, serve the callbacks, and keep the records that have come."""
        self._carry_out(consumer)
        self.commits.begin(consumer)
        if self._poll(consumer, _IDLE_S):
            if self.commits.is_under_way:
                self._poll_more(consumer)
            else:
                self._keep(consumer.consume(_TOGETHER, 0))
        if self._has_changed:
            self._has_changed = False
            self._wake(consumer, self._read)
        now = time.monotonic()
        if now >= self._check_at:
            self._check_at = now + _CHECK_S
            self._pause_and_resume(consumer)

    def _poll_more(self, consumer: "Consumer") -> None:
        """Keep the records that have come, one by one."""
        for _ in range(_TOGETHER):
            if not self._poll(consumer, 0):
                break
        self._keep([])

    def _poll(self, consumer: "Consumer", timeout_s: float) -> bool:
        """Serve callbacks, and keep a record if there is one: the next call may change the rest.

        The reader is notified of it with the records of the next call.
        """
        try:
            message = consumer.poll(timeout_s)
        except _CallEndedError:
            return False
        if message is not None:
            with self.changed:
                keep([message], self._waiting, self._note)
        return message is not None

    def _carry_out(self, consumer: "Consumer") -> None:
        while (asked := self._calls.take()) is not None:
            try:
                asked.reply.set_result(asked.what(consumer))
            except Exception as error:  # of the caller, who waits for it
                asked.reply.set_exception(error)

    def _fail(self, error: BaseException) -> None:
        with self.changed:
            self.failure = self.failure or error
            self._close()

    def _close(self) -> None:
        self._is_closing = True
        self.changed.notify_all()
        self._arrived.notify_all()

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
            waiting = self._waiting.items()
            records = sum(each.count for _, each in waiting)
            size = sum(each.size for _, each in waiting)
            part = 2 if self._is_crowded else 1
            self._is_crowded = part * records > _TOTAL_RECORDS or part * size > _TOTAL_BYTES
            most = _MOST_RECORDS, _TOTAL_BYTES
            if self._is_crowded:
                shares = len(waiting)
                most = min(_MOST_RECORDS, _TOTAL_RECORDS // shares), _TOTAL_BYTES // shares
            half = most[0] // 2, most[1] // 2
            full = [p for p, w in waiting if not w.is_paused and not w.is_below(*most)]
            free = [p for p, w in waiting if w.is_paused and w.is_below(*half)]
            is_first = not self._read
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

        self._has_changed = True
        # The offset only has to need no lookup, because `begin` seeks.
        places = [TopicPartition(self._topic, each.partition, 0) for each in partitions]
        consumer.incremental_assign(places)
        if places:
            consumer.pause(places)  # until its token is stored
        with self.changed:
            self.commits.is_member = True
            self.ownership.assign(each.partition for each in partitions)
            self.changed.notify_all()

    def _on_revoke(self, consumer: "Consumer", partitions: Sequence[Any]) -> None:
        with self.changed:
            rest = self.ownership.revoke(each.partition for each in partitions)
            self.changed.notify_all()
        end = time.monotonic() + self._revoke_wait_s
        has_polled = self._await_commit(consumer)
        self._is_revoking = True
        try:
            while not (all(owned.is_released for owned in rest) or self._is_closing):
                if time.monotonic() >= end or not self.commits.is_member:
                    break
                self._answer(consumer)
                with self.changed:
                    if not all(owned.is_released for owned in rest):
                        self.changed.wait(_REVOKE_STEP_S)
            self._answer(consumer)  # what was asked for before the end
        finally:
            self._is_revoking = False
        self._forget(partitions)
        self._end_callback(consumer, partitions, has_polled)

    def _on_lost(self, consumer: "Consumer", partitions: Sequence[Any]) -> None:
        self._forget(partitions)
        self._end_callback(consumer, partitions, self._await_commit(consumer))

    def _answer(self, consumer: "Consumer") -> None:
        """Do what others ask for; commits are over before it returns."""
        self._carry_out(consumer)
        if not self.commits.is_under_way:
            self.commits.begin(consumer, is_waiting=True)

    def _await_commit(self, consumer: "Consumer") -> bool:
        """Wait for the reply to a commit: librdkafka might send it again in the next generation.

        Returns:
            Whether a commit was under way.
        """
        has_polled = False
        while self.commits.is_under_way and not self._is_ending:
            has_polled = True
            if self._poll(consumer, _IDLE_S):
                self._poll_more(consumer)
        return has_polled

    def _end_callback(
        self, consumer: "Consumer", partitions: Sequence[Any], has_polled: bool
    ) -> None:
        """Let the client answer the broker behind a callback, or do that here after a poll."""
        self._has_changed = True
        if has_polled:
            consumer.incremental_unassign(list(partitions))
            raise _CallEndedError

    def _forget(self, partitions: Sequence[Any]) -> None:
        with self.changed:
            self.ownership.remove(each.partition for each in partitions)
            for each in partitions:
                self._waiting.pop(each.partition, None)
            self.changed.notify_all()
