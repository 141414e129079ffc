"""`Transactions`: stores offsets together with the records that handlers have sent.

These rules, besides those in `ownership.py`, keep each record from being stored twice or not at
all:

| rule | |
|---|---|
| K6 | every offset is stored by a transaction: one stored without it replaces a pending one |
| K7 | the generation is read after K2 was checked, on the thread that serves the callbacks |
| K8 | a record that cannot be sent aborts it; a repeated commit sends all its records again |
| K9 | if its end is unknown, its partitions are opened anew, once the broker knows the end |

A broker refuses the offsets of an earlier generation whose partition has moved (K7), and gives no
offset while one is pending (K9). So producers need not fence each other: each has a name that was
never used before, and one that has failed for good is replaced.
"""

import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from batchqueue.base.background_log import BackgroundLog
from batchqueue.exceptions import BatchQueueError
from batchqueue.groups.backend import CommitRequest
from batchqueue.groups.errors import StreamUnavailableError
from batchqueue.groups.kafka.server import KafkaServer, client_of

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Message, Producer, TopicPartition

_log = BackgroundLog("batchqueue")

_STEP_S = 0.05
"""The pause before a call is repeated, and before a flush checks whether a record has failed."""

_TRY_S = 2.0
"""How long a call waits for the brokers before it is repeated."""

_OF_MEMBERSHIP = ("UNKNOWN_MEMBER_ID", "ILLEGAL_GENERATION")

_NOT_OF_RECORDS = (
    "_FATAL",
    "_FENCED",
    "_STATE",
    "_MSG_TIMED_OUT",
    "_TIMED_OUT",
    "_TRANSPORT",
    "_PURGE_QUEUE",
    "_PURGE_INFLIGHT",
)
"""Names of errors with which records fail because of the transaction, which knows the cause."""


CommitErrors = dict[int, "KafkaError | BatchQueueError | None"]
"""The error of the commit of each partition; None if it is stored. A partition is missing if it is
not owned, or it is unknown whether its commit is stored."""


class _Failure(NamedTuple):
    """A record that could not be sent."""

    partition: int
    topic: str
    error: "KafkaError"


class _RecordError(Exception):
    """A record is to blame for the end of a transaction."""

    def __init__(self, failure: _Failure) -> None:
        super().__init__(failure)
        self.failure = failure


class Transactions:
    """The transactions of a consumer. Its thread uses them, once they are connected."""

    def __init__(self, server: KafkaServer, group: str) -> None:
        """Prepare to connect.

        Args:
            server: The brokers, and the topic of the consumer.
            group: The group.
        """
        self._server = server
        self._group = group
        self._settings = server.transaction_settings()
        self._limit_s = int(self._settings["transaction.timeout.ms"]) / 1_000
        self._producer: Producer | None = None

    def connect(self) -> "Producer":
        """Return the producer, which is new if the one before has failed.

        Raises:
            KafkaRefusedError: The user lacks the right.
            StreamUnavailableError: The brokers cannot be reached.
        """
        from confluent_kafka import KafkaException, Producer

        if self._producer is None:
            name = {"transactional.id": f"{self._group}-{uuid.uuid4()}"}
            producer = client_of(Producer, {**self._settings, **name})
            try:
                self._repeated(producer.init_transactions)
            except KafkaException as error:
                raise self._server.error_of(error.args[0], "WRITE") from None
            self._producer = producer
        return self._producer

    def store(
        self,
        places: Sequence["TopicPartition"],
        requests: Sequence[CommitRequest],
        generation: Any,
    ) -> CommitErrors:
        """Store offsets, and the records of their commits, together.

        Args:
            places: The offsets, with their metadata.
            requests: Their commits.
            generation: The consumer's member of the group, and its generation.

        Returns:
            The error of each partition; None if it is stored. Nothing if the end is unknown (K9).
        """
        from confluent_kafka import KafkaException

        partitions = [each.partition for each in places]
        try:
            producer = self.connect()
            producer.begin_transaction()
            self._send(producer, requests)
            self._repeated(partial(producer.send_offsets_to_transaction, list(places), generation))
        except BatchQueueError as error:
            return dict.fromkeys(partitions, error)
        except _RecordError as error:
            self._abort()
            partition, topic, reason = error.failure
            return self._refused(requests, [partition], topic, reason)
        except KafkaException as error:
            self._abort()
            return self._errors(requests, error.args[0])
        try:
            self._repeated(producer.commit_transaction)
        except KafkaException as error:
            reason = error.args[0]
            if reason.txn_requires_abort():
                self._abort()
                return self._errors(requests, reason)
            self._producer = None
            _log.warning(
                "%s: the end of a transaction is unknown, and its partitions begin anew: %s",
                *(self._server.topic, reason.str()),
            )
            return {}
        return dict.fromkeys(partitions)

    def close(self) -> None:
        """End the producer. A transaction that is open ends when it times out."""
        self._producer = None

    def _send(self, producer: "Producer", requests: Sequence[CommitRequest]) -> None:
        """Send the records, and wait until the brokers have them, or the transaction has failed.

        Raises:
            _RecordError: A record is to blame. The others may wait for it until they time out.
        """
        from confluent_kafka import KafkaError, KafkaException

        failed: list[_Failure] = []
        for request in requests:
            note = partial(_note, failed, request.partition)
            for topic, value, key, headers in request.records:
                while True:
                    try:
                        producer.produce(topic, value, key, headers=list(headers), on_delivery=note)
                        break
                    except KafkaException as error:
                        _check(failed)
                        if error.args[0].name() in _NOT_OF_RECORDS:
                            raise
                        failure = _Failure(request.partition, topic, error.args[0])
                        raise _RecordError(failure) from None
                    except BufferError:
                        producer.poll(_STEP_S)
                        _check(failed)
        end = time.monotonic() + self._limit_s
        while producer.flush(_STEP_S) and not failed:
            if time.monotonic() >= end:
                raise KafkaException(KafkaError(KafkaError._MSG_TIMED_OUT))
        _check(failed)

    def _abort(self) -> None:
        """End a transaction; if that fails, it ends when it times out, and needs no producer."""
        from confluent_kafka import KafkaException

        try:
            if self._producer is not None:
                self._producer.abort_transaction(_TRY_S)
        except KafkaException:
            self._producer = None

    def _errors(self, requests: Sequence[CommitRequest], error: "KafkaError") -> CommitErrors:
        """Return the errors after a transaction was aborted: all of it may be repeated, or not."""
        name = error.name()
        if name == "TOPIC_AUTHORIZATION_FAILED":  # the broker does not name the topic
            blamed = [each for each in requests if each.records]
            topics = ", ".join(sorted({each.topic for sent in blamed for each in sent.records}))
            return self._refused(requests, [each.partition for each in blamed], topics, error)
        right = "READ" if name == "GROUP_AUTHORIZATION_FAILED" else "WRITE"
        shared = error if name in _OF_MEMBERSHIP else self._server.error_of(error, right)
        return {each.partition: shared for each in requests}

    def _refused(
        self,
        requests: Sequence[CommitRequest],
        blamed: Sequence[int],
        topic: str,
        error: "KafkaError",
    ) -> CommitErrors:
        """Return the errors if records are to blame: only their partitions have to wait."""
        from confluent_kafka import KafkaError

        plain = KafkaError(error.code())  # its text says nothing about the call
        reason = f"a record for {topic} could not be sent: {plain.str()}"
        refused = replace(self._server, topic=topic).refused(None, plain, "WRITE")
        again = StreamUnavailableError(self._server.topic, reason)
        return {each.partition: refused if each.partition in blamed else again for each in requests}

    def _repeated(self, call: Callable[[float], Any]) -> None:
        """Repeat a call while its error says that it may be, until the transaction times out."""
        from confluent_kafka import KafkaException

        end = time.monotonic() + self._limit_s
        while True:
            try:
                call(_TRY_S)
                return
            except KafkaException as error:
                if not error.args[0].retriable() or time.monotonic() >= end:
                    raise
            time.sleep(_STEP_S)


def _note(
    failed: list[_Failure], partition: int, error: "KafkaError | None", message: "Message"
) -> None:
    """Note a record that has failed."""
    if error is not None:
        failed.append(_Failure(partition, str(message.topic()), error))


def _check(failed: Sequence[_Failure]) -> None:
    """Raise an error for the first record that has failed: the others fail because of it."""
    if failed and failed[0].error.name() not in _NOT_OF_RECORDS:
        raise _RecordError(failed[0])
