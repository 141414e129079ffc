"""`Commits`: the commits of a consumer, one after another (K3).

They are asynchronous. A synchronous one would hold up the consumer while the coordinator of the
group is away, or while the network is silent: for up to a minute, whatever the settings say.
"""

import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from batchqueue.groups.backend import CommitRequest
from batchqueue.groups.kafka.inbox import Inbox
from batchqueue.groups.kafka.ownership import Ownership, metadata_of
from batchqueue.groups.kafka.transactions import CommitErrors, Transactions

if TYPE_CHECKING:
    from confluent_kafka import Consumer, KafkaError, TopicPartition

    from batchqueue.groups.kafka.consumer import Waiting

GONE = "UNKNOWN_MEMBER_ID"
"""The name of the error of a commit when the group has continued without the consumer.

Another generation is not a sign of that: the broker checks the member first, and a commit that
waits for a rebalance to end comes with the generation before.
"""


class _UnderWay(NamedTuple):
    """A commit that is under way."""

    reply: "Future[CommitErrors]"
    requests: list[CommitRequest]
    places: "list[TopicPartition]"
    at: float


class Commits:
    """The commits of a consumer. They begin and end on its thread.

    Attributes:
        done: The offsets that were committed, by partition.
        is_member: Whether the group has the consumer as a member, as far as known.
    """

    def __init__(
        self,
        topic: str,
        ownership: Ownership,
        waiting: "Mapping[int, Waiting]",
        changed: threading.Condition,
        *,
        name: str,
        transactions: Transactions | None,
    ) -> None:
        """Begin without commits.

        Args:
            topic: The topic.
            ownership: What the broker has assigned.
            waiting: The records that wait, by partition.
            changed: Guards these two, and is notified of changes.
            name: The name of the worker, beside its offsets.
            transactions: Store the offsets. None: the consumer does.
        """
        self.done: dict[int, int] = {}
        self.is_member = False
        self._topic = topic
        self._ownership = ownership
        self._waiting = waiting
        self._changed = changed
        self._name = name
        self._transactions = transactions
        self._inbox = Inbox[Sequence[CommitRequest] | None](topic)
        self._sent: _UnderWay | None = None

    # Called by other threads.

    def connect(self) -> None:
        """Connect the transactions, if there are any; see `Transactions.connect`."""
        if self._transactions is not None:
            self._transactions.connect()

    def commit(self, requests: Sequence[CommitRequest], timeout_s: float) -> CommitErrors:
        """Commit what is owned now, and return the error of each; None if it is stored.

        Raises:
            StreamUnavailableError: It takes longer than `timeout_s`, or the consumer is closed.
        """
        errors: CommitErrors = self._inbox.ask(requests, timeout_s)
        return errors

    def confirm(self, timeout_s: float) -> CommitErrors:
        """Repeat the last commits: the broker takes them only from a member of the group."""
        errors: CommitErrors = self._inbox.ask(None, timeout_s)
        return errors

    def has_waited(self, seconds: float) -> bool:
        """Return whether the commit that is under way began longer ago."""
        sent = self._sent
        return sent is not None and time.monotonic() - sent.at >= seconds

    # Called by the thread of the consumer.

    @property
    def is_under_way(self) -> bool:
        """Whether a commit has no reply yet."""
        return self._sent is not None

    @property
    def is_idle(self) -> bool:
        """Whether no commit is under way, or asked for."""
        return self._sent is None and not self._inbox

    def begin(self, consumer: "Consumer", *, is_waiting: bool = False) -> None:
        """Begin the next commit, unless one is under way.

        Args:
            consumer: The consumer.
            is_waiting: Whether to wait for its end, and to make those behind it as well.
        """
        while self._sent is None and (asked := self._inbox.take()) is not None:
            try:
                self._begin(consumer, asked.what, asked.reply, is_waiting)
            except Exception as error:  # of the caller, who waits for it
                self._sent = None
                asked.reply.set_exception(error)

    def _begin(
        self,
        consumer: "Consumer",
        wanted: Sequence[CommitRequest] | None,
        reply: "Future[CommitErrors]",
        is_waiting: bool,
    ) -> None:
        from confluent_kafka import KafkaException, TopicPartition

        with self._changed:
            requests = self._ownership.committed() if wanted is None else wanted
            chosen = self._ownership.committable(requests)
            places = [
                TopicPartition(
                    self._topic,
                    each.partition,
                    self._next(each),
                    metadata_of(self._ownership.owned[each.partition], self._name),
                )
                for each in chosen
            ]
        if not places:
            reply.set_result({})
            return
        self._sent = _UnderWay(reply, chosen, places, time.monotonic())
        try:
            if self._transactions is not None:
                generation = consumer.consumer_group_metadata()  # K7
                self._end(self._transactions.store(places, chosen, generation))  # K6
            elif is_waiting:
                self.on_commit(None, consumer.commit(offsets=places, asynchronous=False))
            else:
                consumer.commit(offsets=places, asynchronous=True)
        except KafkaException as error:
            self._end(dict.fromkeys((each.partition for each in places), error.args[0]))

    def on_commit(self, error: "KafkaError | None", places: "Sequence[TopicPartition]") -> None:
        """End the commit that is under way; librdkafka calls it while the consumer is polled."""
        self._end({each.partition: error or each.error for each in places})

    def _end(self, errors: CommitErrors) -> None:
        sent, self._sent = self._sent, None
        assert sent is not None
        self._note(sent, errors)
        sent.reply.set_result(errors)

    def _note(self, sent: _UnderWay, errors: CommitErrors) -> None:
        with self._changed:
            if any(error is None for error in errors.values()):
                self.is_member = True
            elif any(_name_of(error) == GONE for error in errors.values()):
                self.is_member = False
            for place, request in zip(sent.places, sent.requests, strict=True):
                owned = self._ownership.find(request.partition, request.token, request.session)
                if request.partition not in errors:
                    self._ownership.reopen(owned)
                elif errors[request.partition] is None:
                    self.done[request.partition] = place.offset
                    if owned is not None:
                        owned.committed = replace(request, records=())
            self._changed.notify_all()

    def _next(self, request: CommitRequest) -> int:
        """Return the offset to commit. At the end it is behind the markers of transactions."""
        waiting = self._waiting.get(request.partition)
        if waiting is None or waiting.end is None or request.offset < waiting.position:
            return request.offset + 1
        return max(waiting.end, request.offset + 1)

    def close(self) -> None:
        """Refuse the commits that come later, once nothing is owned."""
        self._inbox.close()
        if self._transactions is not None:
            self._transactions.close()


def _name_of(error: Any) -> str | None:
    """Return the name of an error of librdkafka; None for any other."""
    from confluent_kafka import KafkaError

    return error.name() if isinstance(error, KafkaError) else None
