"""`KafkaConnection`: a worker's connection to a topic; see `backend.Connection`."""

import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, Any

from batchqueue.base.background_log import BackgroundLog
from batchqueue.exceptions import BatchQueueError
from batchqueue.groups.backend import (
    Behind,
    CommitRequest,
    Fetch,
    Fetched,
    Opening,
    PartitionInfo,
    SetAside,
    Unreadable,
)
from batchqueue.groups.control import BEATS_PER_LEASE, Control, perform
from batchqueue.groups.errors import CodecError, KafkaRefusedError, StreamUnavailableError
from batchqueue.groups.kafka.commits import GONE
from batchqueue.groups.kafka.consumer import ConsumerThread, size_of
from batchqueue.groups.kafka.ownership import Owned, Ownership, began_in, token_in
from batchqueue.groups.kafka.server import (
    CALL_S,
    Bounds,
    DeadLetterWriter,
    KafkaAdmin,
    KafkaMembership,
    KafkaServer,
    known,
)
from batchqueue.groups.kafka.transactions import Transactions
from batchqueue.groups.messages import (
    Beaten,
    Call,
    Commit,
    Entry,
    Failed,
    Fenced,
    Joined,
    Member,
    Opened,
    Refusal,
    Reply,
    Synced,
)
from batchqueue.groups.record import Decode, Record, Start

if TYPE_CHECKING:
    from confluent_kafka import Consumer, Message

_log = BackgroundLog("batchqueue")

_COMMIT_INTERVAL_S = 0.1
"""The least time between two commits: each holds up the consumer for some milliseconds."""

_SMALL_TOPIC = "__consumer_offsets"
"""A topic with few partitions that all brokers have: a reply about it is short."""

_GONE_S = 60
"""How long a topic may be unknown, for instance while brokers restart."""

_QUICK_S = 2.0
"""The limit of calls that hold up commits or a heartbeat."""

_OF_MEMBERS = ("REBALANCE_IN_PROGRESS", "ILLEGAL_GENERATION")
"""Errors of commits that the broker gives to members only, so that they confirm the membership."""

_RETRY_S = 0.05
"""The pause before a refused commit is repeated (K4)."""

_clock = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


_BAD_NAME = (SystemError, UnicodeDecodeError)
"""What `Message.headers` raises if a name is not UTF-8."""


class KafkaEntries:
    """Records of one partition; see `record.Entries`."""

    def __init__(self, messages: Sequence["Message"]) -> None:
        self._messages = messages

    @property
    def first(self) -> int:
        """The offset of the first record."""
        return int(self._messages[0].offset())

    @property
    def last(self) -> int:
        """The offset of the last record."""
        return int(self._messages[-1].offset())

    def values(
        self, decode: Decode, plain: int | None = None
    ) -> tuple[list[Any], BaseException | None]:
        """Decode the values, up to the first record that cannot be decoded.

        A record without a value, a tombstone of a compacted topic, has the value None. A record
        that has a header without a proper name cannot be decoded.
        """
        from confluent_kafka import Message

        messages, bad = self._readable()
        found = list(map(Message.value, messages))
        most = -1 if plain is None else plain
        if size_of(messages) <= most:
            return found, bad
        values: list[Any] = []
        try:
            for data, message in zip(found, messages, strict=True):
                is_plain = data is None or len(data) <= most
                values.append(data if is_plain else decode(data, message.offset()))
        except BatchQueueError as error:
            return values, error
        return values, bad

    def _readable(self) -> "tuple[Sequence[Message], CodecError | None]":
        """Return the records before the first one with a bad header, and its error."""
        from confluent_kafka import Message

        try:
            deque(map(Message.headers, self._messages), maxlen=0)  # quicker than a loop
        except _BAD_NAME:
            for place, message in enumerate(self._messages):
                try:
                    headers_of(message)
                except CodecError as error:
                    return self._messages[:place], error
        return self._messages, None

    def records(self, values: list[Any]) -> list[Record[Any]]:
        """Return the first records, with the given values."""
        new = tuple.__new__  # what a named tuple calls, at half the cost
        return [
            new(Record, (value, m.key(), m.offset(), m.timestamp()[1], _known_headers(m)))
            for value, m in zip(values, self._messages, strict=False)
        ]

    def entry(self, offset: int) -> Entry:
        """Return the entry with this offset."""
        [found] = [each for each in self._messages if each.offset() == offset]
        return Entry(offset, found.value() or b"", found.key(), _known_headers(found))

    def __getitem__(self, places: slice) -> "KafkaEntries":
        """Return a slice of the records."""
        return KafkaEntries(self._messages[places])

    def __len__(self) -> int:
        """Return the number of records."""
        return len(self._messages)


def headers_of(message: "Message") -> tuple[tuple[str, bytes], ...]:
    """Return the headers of a record; an empty value for null.

    Raises:
        CodecError: A name is not UTF-8.
    """
    try:
        headers = message.headers()
    except _BAD_NAME as error:
        reason = "a header has a name that is not UTF-8"
        raise CodecError("utf8", reason, message.offset()) from error
    return tuple((name, value or b"") for name, value in headers) if headers else ()


def _known_headers(message: "Message") -> tuple[tuple[str, bytes], ...]:
    """Return the headers of a record; none if a name is not UTF-8."""
    try:
        return headers_of(message)
    except CodecError:
        return ()


class KafkaConnection:
    """A worker's connection to a topic, and its member of the group.

    It has the calls of `control.ControlScripts`, which it answers from what the broker has
    assigned.
    """

    runs_commands = False
    stores_records: bool
    longest_wait_s = float("inf")

    def __init__(
        self, server: KafkaServer, group: str, membership: KafkaMembership, *, name: str
    ) -> None:
        """Prepare to connect.

        Args:
            server: The brokers, the topic and its settings.
            group: The group.
            membership: The protocol of the group, and the session of a member.
            name: The name of the worker.
        """
        self.lease_ms = membership.lease_ms
        self.stores_records = server.exactly_once
        self._server = server
        self._topic = server.topic
        self._group = group
        self._lease_s = self.lease_ms / 1_000
        self._call_s = self._lease_s / BEATS_PER_LEASE
        self._name = name
        self._admin = KafkaAdmin(server)
        self._membership = membership
        self._consumer = self._new_consumer(Ownership(1))
        self._consumer.commits.connect()  # fails here if a right is missing
        self._reader = server.reader(group, "read_committed") if server.exactly_once else None
        self._is_closed = False
        self._dead: DeadLetterWriter | None = None
        self._began: int | None = None
        self._commit_at = self._version = 0.0
        self._topic_seen_at = time.monotonic()
        self._topic_asked: Future[Any] | None = None
        self._silent_since: float | None = None

    def _new_consumer(self, ownership: Ownership) -> ConsumerThread:
        server, membership = self._server, self._membership
        return ConsumerThread(
            server.consumer_settings(self._group, self._name, membership),
            self._topic,
            ownership,
            name=self._name,
            revoke_wait_s=membership.revoke_wait_s(server.revoke_wait_s),
            transactions=Transactions(server, self._group) if server.exactly_once else None,
        )

    @property
    def _ownership(self) -> Ownership:
        return self._consumer.ownership

    def now_ms(self) -> float:
        """Return the time of this machine since it was started, including suspends."""
        return time.clock_gettime_ns(_clock) / 1_000_000

    def partitions(self, given: int | None) -> int:
        """Return the number of partitions of the topic."""
        self._check_open()
        count = self._admin.partitions(given)
        self._ownership.partitions = count
        return count

    def perform(self, control: Control, call: Call) -> Reply:
        """Answer a call of the control side."""
        self._check_open()
        return perform(self, control, call)

    # The calls of `control.ControlScripts`.

    def time(self) -> int:
        """Return the time in microseconds."""
        return time.time_ns() // 1_000

    def join(
        self, session: str, lease_ms: int, member: Member, partitions: int, *, asked_us: int
    ) -> Joined:
        """Let a session hold what the broker assigns."""
        del lease_ms, member, partitions, asked_us
        # At the first join behind a lost lease it may be in order: while a classic group is
        # balanced anew. At the second one it is not.
        long = 1.5 * self._lease_s
        if self._consumer.commits.has_waited(long):
            self._replace_consumer("a commit gets no reply")
        elif self._has_been_silent(long) and self._age_of_topic < self._lease_s:
            self._replace_consumer("brokers reply, but not to the consumer")
        self._consumer.start()
        with self._consumer.changed:
            self._ownership.join(session)
            return Joined(self._ownership.partitions, self._ownership.version)

    def _replace_consumer(self, reason: str) -> None:
        _log.warning("%s: %s; the worker joins anew", self._topic, reason)
        last, before = self._consumer, self._ownership
        self._consumer = self._new_consumer(Ownership(before.partitions, before.version + 1))
        self._silent_since = None
        last.close(0)

    def beat(self, session: str, number: int, lease_ms: int, stats: str = "") -> Beaten | Refusal:
        """Renew the lease if the broker confirms that the consumer is a member of the group."""
        del number, stats
        self._check_consumer()
        self._check_topic()
        errors = self._consumer.commits.confirm(self._call_s)
        if not errors:
            self._check_brokers()
        for error in errors.values():
            if isinstance(error, BatchQueueError):
                raise error
            if error is not None and error.name() == GONE:
                return Refusal.UNKNOWN
            if error is not None and error.name() == "GROUP_AUTHORIZATION_FAILED":
                raise self._server.refused(None, error)
            if error is not None and error.name() not in _OF_MEMBERS:
                reason = f"the broker does not confirm the membership: {error.str()}"
                raise StreamUnavailableError(self._topic, reason)
        with self._consumer.changed:
            if session != self._ownership.session:
                return Refusal.UNKNOWN
            return Beaten(self._ownership.version, lease_ms, leaving=self._ownership.is_leaving)

    def plan(
        self,
        session: str,
        member_version: int,
        targets: Mapping[int, str],
        weights: Mapping[int, float] | None = None,
    ) -> int | Refusal:
        """Refuse: the broker plans, and nothing asks for a plan."""
        del session, member_version, targets, weights
        return Refusal.STALE

    def sync(
        self, session: str, number: int, seen: int, held: Mapping[int, int]
    ) -> Synced | Refusal:
        """Compare what a session holds with what the broker has assigned."""
        del number
        with self._consumer.changed:
            return self._ownership.sync(session, seen, held, self.time())

    def release(self, session: str, released: Iterable[tuple[int, int]]) -> int:
        """Let the broker have partitions back."""
        with self._consumer.changed:
            self._ownership.release(session, released)
            self._consumer.changed.notify_all()
            return self._ownership.version

    def leaving(self, session: str) -> int | Refusal:
        """Begin to give up all partitions."""
        with self._consumer.changed:
            if session != self._ownership.session:
                return Refusal.UNKNOWN
            self._ownership.leave()
            self._consumer.changed.notify_all()
            return self._ownership.version

    def leave(self, session: str) -> int:
        """Leave the group."""
        del session
        self._consumer.close(self._call_s)
        return self._ownership.version

    # The other calls of a worker.

    def wait(self, version: int, timeout_s: float) -> int:
        """Wait for a change of what the broker has assigned."""
        with self._consumer.changed:
            self._consumer.changed.wait_for(
                lambda: self._ownership.version != version or self._is_closed, timeout_s
            )
            return self._ownership.version

    def open(self, openings: Sequence[Opening], start: Start) -> list[Opened | Fenced | Failed]:
        """Store the tokens of partitions, and begin to read them."""
        replies = self._look_up(openings, start)
        self._store_tokens(openings, replies)
        self._begin(openings, replies)
        return [replies[each.partition] for each in openings]

    def _look_up(
        self, openings: Sequence[Opening], start: Start
    ) -> dict[int, Opened | Fenced | Failed]:
        """Return where the group continues in each partition that may be opened."""
        partitions = [each.partition for each in openings]
        try:
            committed = self._committed(partitions)
        except StreamUnavailableError:
            if self._reader is None:
                raise
            # Other partitions continue while the transaction of a worker that has crashed is open.
            reason = "the committed offset is unknown: a transaction is open, or no broker answers"
            failed = Failed(StreamUnavailableError(self._topic, reason))
            return dict.fromkeys(partitions, failed)
        bounds = self._admin.bounds(partitions, min(_QUICK_S, self._call_s))
        replies: dict[int, Opened | Fenced | Failed] = {}
        for opening in openings:
            partition, token, _ = opening
            try:
                (offset, metadata) = known(committed[partition])
                low, high = limits = known(bounds[partition])
                place = self._place(partition, offset, limits, start)
            except BatchQueueError as error:
                replies[partition] = Failed(error)
                continue
            owned, stored = self._ownership.find(*opening), token_in(metadata)
            # K5. A token that is its own was stored by an attempt that could not begin to read.
            if stored > token or (stored == token and not (owned and owned.is_open)):
                replies[partition] = Fenced(stored)
            elif owned is None or owned.is_revoked:
                replies[partition] = Fenced(0)
            else:
                owned.began = began_in(metadata) or self._ownership.partitions
                first, end = (low if high > low else None), max(high, place)
                replies[partition] = Opened(place - 1, place, end - 1, end, end - low, first)
        return replies

    def _place(self, partition: int, committed: int, bounds: Bounds, start: Start) -> int:
        """Return the offset at which the group continues."""
        low, high = bounds
        if committed < 0:
            is_last = start is Start.LATEST and not self._was_added(partition)
            return high if is_last else low
        # Other consumers may have committed behind a transaction that is still open.
        if committed <= high or committed <= self._admin.log_end(partition, self._call_s):
            return committed
        _log.warning(
            "%s/%d: the group had done %d records and the partition ends at %d, as if the "
            "topic had been created anew; the group begins at %d",
            *(self._topic, partition, committed, high, low),
        )
        return low

    def _was_added(self, partition: int) -> bool:
        """Return whether a partition was added to the topic after the group had begun."""
        if self._began is None:
            # Without waiting for transactions, which other workers may have open all the time.
            with closing(self._server.reader(self._group, "read_uncommitted")) as reader:
                partitions = range(self._ownership.partitions)
                found = self._server.committed(reader, partitions, self._call_s).values()
            began = [began_in(each[1]) for each in found if not isinstance(each, BatchQueueError)]
            self._began = min((each for each in began if each), default=self._ownership.partitions)
        return partition >= self._began

    def _store_tokens(
        self, openings: Sequence[Opening], replies: dict[int, Opened | Fenced | Failed]
    ) -> None:
        """Store a token beside each offset, so that earlier ones are refused (K5)."""
        requests = []
        for partition, token, session in openings:
            reply, owned = replies[partition], self._ownership.find(partition, token, session)
            if isinstance(reply, Opened) and owned is not None:
                owned.is_open = True
                requests.append(CommitRequest(partition, token, session, reply.offset, reply.done))
        for request, outcome in zip(requests, self._commit(requests), strict=True):
            if not isinstance(outcome, Commit):
                replies[request.partition] = outcome

    def _begin(
        self, openings: Sequence[Opening], replies: dict[int, Opened | Fenced | Failed]
    ) -> None:
        """Begin to read behind the offsets, or where the partitions begin."""
        positions: dict[Owned, int] = {}
        for opening in openings:
            reply, owned = replies[opening.partition], self._ownership.find(*opening)
            if isinstance(reply, Opened) and owned is not None:
                positions[owned] = max(reply.offset, reply.added - reply.length - 1)
        begin = partial(self._consumer.begin, positions=positions)
        begun = self._consumer.do(begin, self._lease_s) if positions else {}
        for partition, reply in replies.items():
            if isinstance(reply, Opened):
                error = begun.get(partition)
                if partition not in begun:
                    replies[partition] = Fenced(0)
                elif error is not None:
                    replies[partition] = Failed(self._server.error_of(error, "READ"))

    def _committed(
        self, partitions: Iterable[int]
    ) -> dict[int, tuple[int, str | None] | BatchQueueError]:
        """Return the committed offsets, once none of them is pending in a transaction (K9)."""
        if self._reader is not None:  # the thread of the consumer has other things to do meanwhile
            return self._server.committed(self._reader, partitions, _QUICK_S)
        ask = partial(self._server.committed, partitions=partitions, timeout_s=self._call_s)
        return self._consumer.do(ask, self._lease_s)

    def commit(self, commits: Sequence[CommitRequest]) -> list[Commit | Fenced | Failed]:
        """Commit partitions, at least 0.1 s after the last commit unless the ownership changes.

        A revoke waits for the last commit of each of its partitions, so that is made immediately.
        """
        consumer, ownership = self._consumer, self._ownership

        def is_urgent() -> bool:
            if ownership.version != self._version or self._is_closed:
                return True
            return any((o := ownership.owned.get(c.partition)) and o.is_revoked for c in commits)

        with consumer.changed:
            consumer.changed.wait_for(is_urgent, max(0.0, self._commit_at - time.monotonic()))
            self._version = ownership.version
        outcomes = self._commit(commits)
        self._commit_at = time.monotonic() + _COMMIT_INTERVAL_S
        return outcomes

    def _commit(self, commits: Sequence[CommitRequest]) -> list[Commit | Fenced | Failed]:
        """Repeat what is refused while the partitions are owned (K4)."""
        outcomes: dict[int, Commit | Fenced | Failed] = {}
        end = time.monotonic() + self._lease_s
        rest = list(commits)
        while rest:
            errors = self._consumer.commits.commit(rest, self._lease_s)
            waiting = []
            for each in rest:
                if each.partition not in errors:
                    outcomes[each.partition] = Fenced(0)  # not owned any more
                elif (error := errors[each.partition]) is None:
                    outcomes[each.partition] = Commit.STORED
                elif isinstance(error, StreamUnavailableError):
                    waiting.append(each)
                elif isinstance(error, BatchQueueError):
                    outcomes[each.partition] = Failed(error)
                elif error.name() in _TRANSIENT:
                    waiting.append(each)
                else:
                    outcomes[each.partition] = Failed(self._server.refused(each.partition, error))
            if waiting:
                if time.monotonic() >= end:
                    last = errors[waiting[0].partition]
                    if isinstance(last, BatchQueueError):
                        raise last
                    reason = f"commits are refused: {last.str() if last else last}"
                    raise StreamUnavailableError(self._topic, reason)
                time.sleep(_RETRY_S)
            rest = waiting
        return [outcomes[each.partition] for each in commits]

    def set_aside(self, requests: Sequence[SetAside]) -> list[int | Fenced | Failed]:
        """Send dead letters to their topic."""
        replies: list[int | Fenced | Failed] = []
        for each in requests:
            owned = self._ownership.find(each.partition, each.token, each.session)
            if owned is None:
                replies.append(Fenced(0))
                continue
            try:
                replies.append(self._send_dead(each))
            except BatchQueueError as error:
                replies.append(Failed(error))
        return replies

    def infos(self, partitions: Sequence[int]) -> list[PartitionInfo | Failed]:
        """Return the positions in the partitions."""
        bounds = self._admin.bounds(partitions, self._call_s)
        infos: list[PartitionInfo | Failed] = []
        for partition in partitions:
            found = bounds[partition]
            if isinstance(found, BatchQueueError):
                infos.append(Failed(found))
                continue
            low, high = found
            done = self._consumer.commits.done.get(partition, low)
            owned = self._ownership.owned.get(partition)
            infos.append(
                PartitionInfo(
                    token=owned.token if owned else 0,
                    session=owned.session if owned else "",
                    offset=done - 1,
                    done=done,
                    end=high - 1,
                    added=high,
                    length=high - low,
                    dead=0,
                    is_new=partition not in self._consumer.commits.done,
                    has_deletions=True,  # markers of transactions, and what compaction removed
                )
            )
        return infos

    def _check_topic(self) -> None:
        """Stop the worker if the topic has been missing for longer than a broker takes to restart.

        It reads the reply to its last question: a heartbeat does not wait for one.

        Raises:
            KafkaRefusedError: It is gone.
        """
        if self._topic_asked is None:
            self._topic_asked = self._admin.ask_topic(CALL_S)
        if not self._topic_asked.done():
            return
        asked, self._topic_asked = self._topic_asked, None
        try:
            is_there = self._admin.topic_of(asked, 0) is not None
        except StreamUnavailableError:
            return
        if is_there:
            self._topic_seen_at = time.monotonic()
        elif self._age_of_topic > _GONE_S:
            raise KafkaRefusedError(
                f"{self._topic}: the topic no longer exists: create it, or stop the workers"
            )

    @property
    def _age_of_topic(self) -> float:
        """The seconds since a broker last said that the topic exists."""
        return time.monotonic() - self._topic_seen_at

    def _check_brokers(self) -> None:
        """Ask a broker through the consumer. While nothing is open, no commit does so.

        Raises:
            StreamUnavailableError: No broker replies, or the consumer is at work on something else.
        """
        self._consumer.do(self._ask_brokers, self._call_s)

    def _ask_brokers(self, consumer: "Consumer") -> None:
        from confluent_kafka import KafkaException

        try:
            consumer.list_topics(_SMALL_TOPIC, min(_QUICK_S, self._call_s))
        except KafkaException as error:
            self._silent_since = self._silent_since or time.monotonic()
            raise self._server.error_of(error.args[0], "DESCRIBE") from None
        self._silent_since = None

    def _has_been_silent(self, seconds: float) -> bool:
        """Return whether no broker has replied to a consumer that owned nothing for so long."""
        since = self._silent_since
        return since is not None and time.monotonic() - since >= seconds

    def read(self, fetches: Sequence[Fetch], wait_ms: int) -> list[Fetched | Behind | Unreadable]:
        """Take records that the consumer has received."""
        self._check_open()
        found: list[Fetched | Behind | Unreadable] = []
        for partition, messages, size, error in self._consumer.read(fetches, wait_ms / 1_000):
            if messages:
                found.append(Fetched(partition, KafkaEntries(messages), size))
            elif error is None:
                found.append(Behind(partition))
            if error is not None:
                failure = Failed(self._server.refused(partition, error))
                found.append(Unreadable(partition, failure))
        if not found:
            self._check_consumer()
        return found

    def close(self) -> None:
        """Leave the group."""
        self._is_closed = True
        self._consumer.close(1.0)
        self._admin.close()
        self._dead = self._reader = None

    def _send_dead(self, request: SetAside) -> int:
        if self._dead is None:
            self._dead = DeadLetterWriter(self._server, self._group)
        try:
            return self._dead.add(request.partition, request.letters)
        except BatchQueueError:
            self._dead = None  # its topic may have changed
            raise

    def _check_consumer(self) -> None:
        from confluent_kafka import KafkaException

        failure = self._consumer.failure
        if isinstance(failure, KafkaException):
            raise self._server.refused(None, failure.args[0])
        if failure is not None:
            raise failure

    def _check_open(self) -> None:
        if self._is_closed:
            raise StreamUnavailableError(self._topic, "the connection is closed")


_TRANSIENT = (
    "UNKNOWN_MEMBER_ID",
    "ILLEGAL_GENERATION",
    "STALE_MEMBER_EPOCH",
    "REBALANCE_IN_PROGRESS",
    "COORDINATOR_LOAD_IN_PROGRESS",
    "COORDINATOR_NOT_AVAILABLE",
    "NOT_COORDINATOR",
    "REQUEST_TIMED_OUT",
    "UNKNOWN_TOPIC_OR_PART",
    "_WAIT_COORD",
    "_TIMED_OUT",
    "_TIMED_OUT_QUEUE",
    "_TRANSPORT",
    "_NO_OFFSET",
)
"""Names of commit errors that pass: the group is changing, or cannot be reached."""
