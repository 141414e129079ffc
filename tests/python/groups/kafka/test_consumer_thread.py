"""The consumer's thread with a consumer whose callbacks come when a test wants them."""

import threading
import time
from contextlib import closing, contextmanager
from functools import partial

import confluent_kafka
import pytest
from confluent_kafka import KafkaError, KafkaException, Message, TopicPartition

from batchqueue.groups.backend import CommitRequest, Fetch
from batchqueue.groups.errors import StreamUnavailableError
from batchqueue.groups.kafka.connection import KafkaConnection
from batchqueue.groups.kafka.consumer import ConsumerThread, Waiting, _CallEndedError
from batchqueue.groups.kafka.ownership import Ownership
from batchqueue.groups.kafka.server import KafkaMembership, KafkaServer
from batchqueue.groups.messages import Commit
from core_support.waits import WAIT_S, eventually


def record(offset, partition=0):
    return Message(topic="orders", partition=partition, offset=offset, value=b"v")


def failure(code):
    return Message(topic="orders", partition=0, offset=0, error=KafkaError(code))


class Consumer:
    """Returns what a test has prepared; `in_consume` stands for the callbacks of `consume`."""

    first, others, error, seek_error, list_error, asked = (), (), None, None, None, ()
    answer, is_silent = None, False

    def __init__(self, settings):
        self.calls = []

    def subscribe(self, topics, **callbacks):
        self.callbacks = callbacks

    def poll(self, timeout):
        if not self.is_silent:
            self.answers()
        first, self.first = self.first, ()
        if not first:
            time.sleep(timeout)
        return first[0] if first else None

    def consume(self, count, timeout):
        self.in_consume()
        return self.others

    def in_consume(self):
        pass

    def offsets_for_times(self, places, timeout):
        self.asked = [*self.asked, [each.partition for each in places]]

    def list_topics(self, topic, timeout):
        if self.list_error is not None:
            raise KafkaException(self.list_error)

    def consumer_group_metadata(self):
        pass

    def commit(self, *, offsets, asynchronous):
        assert self.answer is None, "one is under way"
        self.committed = offsets
        if asynchronous:
            self.answer = self.error, offsets
        elif self.error is not None:
            raise KafkaException(self.error)
        return offsets

    def answers(self):
        """Answers the commit that is under way."""
        answer, self.answer = self.answer, None
        if answer is not None:
            self.thread.commits.on_commit(*answer)

    def incremental_assign(self, partitions):
        self.calls.append("assign")

    def incremental_unassign(self, partitions):
        self.calls.append("unassign")

    def seek(self, partition):
        self.calls.append("seek")
        if self.seek_error is not None:
            raise KafkaException(self.seek_error)

    def pause(self, partitions):
        pass

    def resume(self, partitions):
        self.calls.append("resume")

    def close(self):
        pass


def made(**settings):
    settings = {"revoke_wait_s": WAIT_S, **settings}
    return ConsumerThread({}, "orders", Ownership(1), name="here", **settings)


@pytest.fixture
def thread():
    return made()


def offsets(found):
    return [message.offset() for _, messages, *_ in found for message in messages]


def test_read_that_began_under_an_earlier_token_takes_nothing(thread):
    thread._waiting[0] = Waiting(2, 9)
    thread._waiting[0].add([record(10), record(11)])
    assert thread.read([Fetch(0, 50, 10, token=1)], 0) == []
    assert offsets(thread.read([Fetch(0, 9, 10, token=2)], 0)) == [10, 11]


def test_record_from_before_a_new_beginning_does_not_hide_those_behind_it(thread, monkeypatch):
    """A poll returns record 500; then the partition begins anew at 100, in the next call."""

    class Beginning(Consumer):
        first, others = (record(500),), (record(100), record(101))

        def in_consume(self):
            thread._waiting[0] = Waiting(2, 99)
            thread._is_closing = True

    monkeypatch.setattr(confluent_kafka, "Consumer", Beginning)
    thread._waiting[0] = Waiting(1, 499)
    thread._run()
    assert thread.failure is None
    assert [each.offset() for each in thread._waiting[0].take(99, 10)[0]] == [100, 101]


def granted(thread, consumer, *partitions):
    """Assigns partitions to a consumer; returns what it owns, by partition."""
    consumer.thread = thread
    thread.ownership.join("s")
    thread._on_assign(consumer, [TopicPartition("orders", each) for each in partitions])
    thread.ownership.sync("s", 0, {}, 1_000)
    for owned in thread.ownership.owned.values():
        owned.is_open = True
    return thread.ownership.owned


@contextmanager
def running(call, *arguments):
    """Runs a call on another thread, which has ended behind the block; yields the thread."""
    thread = threading.Thread(target=call, args=arguments)
    thread.start()
    try:
        yield thread
    finally:
        thread.join(WAIT_S)
    assert not thread.is_alive()


@contextmanager
def serving(thread, consumer):
    """Serves a consumer meanwhile."""
    is_over = threading.Event()

    def serve():
        while not is_over.is_set():
            thread._serve(consumer)

    with running(serve):
        try:
            yield
        finally:
            is_over.set()


@contextmanager
def revoking(thread, consumer):
    """The consumer takes partition 0 back meanwhile, and its handlers return behind the block."""
    owned = thread.ownership.owned[0]
    with running(thread._on_revoke, consumer, [TopicPartition("orders", 0)]) as callback:
        try:
            eventually(lambda: owned.is_revoked, "it is being taken back")
            yield callback
        finally:
            owned.is_released = True
    assert 0 not in thread.ownership.owned


def test_partition_that_stays_begins_while_a_revoke_waits(thread):
    """The other way, a revoke would wait for the thread that waits for the beginning."""
    consumer = Consumer({})
    owned = granted(thread, consumer, 0, 1)
    begin = partial(thread.begin, positions={owned[0]: 4, owned[1]: 9})
    with revoking(thread, consumer):
        assert thread.do(begin, WAIT_S) == {1: None}
    assert consumer.calls == ["assign", "seek", "resume"]


def test_stopped_fetcher_is_not_replaced_while_a_revoke_waits(thread):
    consumer = Consumer({})
    consumer.seek_error = KafkaError(KafkaError._STATE)
    owned = granted(thread, consumer, 0, 1)
    begin = partial(thread.begin, positions={owned[1]: 9})
    with revoking(thread, consumer):
        assert thread.do(begin, WAIT_S) == {1: consumer.seek_error}
    assert "unassign" not in consumer.calls


def test_stopped_fetcher_is_not_replaced_before_a_revoke_is_served(thread):
    class Revoking(Consumer):
        def poll(self, timeout):
            thread._on_revoke(self, [TopicPartition("orders", 0)])

    consumer = Revoking({})
    consumer.seek_error = KafkaError(KafkaError._STATE)
    owned = granted(thread, consumer, 0)[0]
    owned.is_released = True
    assert thread.begin(consumer, {owned: 9}) == {}
    assert "unassign" not in consumer.calls


def test_stopped_fetcher_is_replaced(thread):
    consumer = Consumer({})
    consumer.seek_error = KafkaError(KafkaError._STATE)
    owned = granted(thread, consumer, 0)[0]
    assert thread.begin(consumer, {owned: 9}) == {0: None}
    assert consumer.calls[-3:] == ["unassign", "assign", "resume"]


def test_fatal_error_ends_the_consumer(monkeypatch):
    class Fatal(Consumer):
        first = (failure(KafkaError._FATAL),)

    monkeypatch.setattr(confluent_kafka, "Consumer", Fatal)
    thread = made()
    thread._run()
    assert thread.failure.args[0].name() == "_FATAL"


def test_commit_includes_what_a_consumer_does_not_see_at_the_end(thread):
    """Offsets 5 to 8 are markers of transactions and records of aborted ones."""
    consumer = Consumer({})
    token = granted(thread, consumer, 0)[0].token
    thread._waiting[0] = Waiting(token, 3)
    thread._waiting[0].add([record(4)])
    request = CommitRequest(0, token, "s", 4, 5)
    with serving(thread, consumer):
        thread.commits.commit([request], WAIT_S)
        assert consumer.committed[0].offset == 5
        thread._waiting[0].end = 9
        thread.commits.commit([CommitRequest(0, token, "s", 3, 4)], WAIT_S)
        assert consumer.committed[0].offset == 4  # record 4 is not done
        thread.commits.commit([request], WAIT_S)
        assert consumer.committed[0].offset == 9
        assert thread.commits.done == {0: 9}
        assert thread.commits.confirm(WAIT_S) == {0: None}
        assert consumer.committed[0].offset == 9


class Unknown:
    """Transactions whose ends are unknown."""

    def __init__(self):
        self.stored = []

    def store(self, places, requests, generation):
        self.stored += requests
        return {}


def test_nothing_of_a_commit_whose_end_is_unknown_is_repeated():
    """A heartbeat would set the offset back, if the commit has been stored."""
    transactions, consumer = Unknown(), Consumer({})
    thread = made(transactions=transactions)
    owned = granted(thread, consumer, 0)[0]
    owned.committed = CommitRequest(0, owned.token, "s", 3, 4)
    request = CommitRequest(0, owned.token, "s", 4, 5)
    with serving(thread, consumer):
        assert thread.commits.commit([request], WAIT_S) == {}
        thread.commits.confirm(WAIT_S)
        thread.commits.commit([request], WAIT_S)
    assert transactions.stored == [request]
    assert thread.ownership.sync("s", 0, {0: request.token}, 2_000).grants == {0: 2_000}


def test_revoke_does_not_wait_for_handlers_once_the_group_has_continued_without_it():
    thread = made(revoke_wait_s=3_600)
    consumer = Consumer({})
    owned = granted(thread, consumer, 0)[0]
    consumer.error = KafkaError(KafkaError.UNKNOWN_MEMBER_ID)
    with serving(thread, consumer):
        thread.commits.commit([CommitRequest(0, owned.token, "s", 4, 5)], WAIT_S)
    thread._on_revoke(consumer, [TopicPartition("orders", 0)])
    assert thread.ownership.owned == {}


def test_revoke_waits_for_handlers_after_a_commit_of_the_generation_before(thread):
    """A commit that waits at the broker while the group is balanced anew."""
    consumer = Consumer({})
    owned = granted(thread, consumer, 0)[0]
    consumer.error = KafkaError(KafkaError.ILLEGAL_GENERATION)
    with revoking(thread, consumer) as callback:
        thread.commits.commit([CommitRequest(0, owned.token, "s", 4, 5)], WAIT_S)
        assert thread.commits.is_member
        for _ in range(3):  # rounds of its loop
            thread.do(lambda _: None, WAIT_S)
        assert callback.is_alive()
        assert 0 in thread.ownership.owned


def test_last_commit_of_a_partition_that_is_taken_back_does_not_wait_for_its_turn(monkeypatch):
    """The revoke waits for it."""
    monkeypatch.setattr("batchqueue.groups.kafka.connection._COMMIT_INTERVAL_S", 2 * WAIT_S)
    server = KafkaServer("127.0.0.1:1", "orders", {})
    with closing(
        KafkaConnection(server, "g", KafkaMembership("consumer", 45_000, 5_000), name="a")
    ) as it:
        thread, consumer = it._consumer, Consumer({})
        first, second = (
            CommitRequest(each.partition, each.token, "s", 4, 5)
            for each in granted(thread, consumer, 0, 1).values()
        )
        with serving(thread, consumer):
            assert it.commit([first]) == [Commit.STORED]
            thread.ownership.revoke([0])
            assert it.commit([second]) == [Commit.STORED]
            with running(it.commit, [second, first]):
                pass


def test_consumer_is_silent_when_no_broker_replies_but_not_while_it_is_busy():
    """Busy, for instance, with the beginning of thousands of partitions."""
    server = KafkaServer("127.0.0.1:1", "orders", {})
    with closing(KafkaConnection(server, "g", KafkaMembership("consumer", 3, 1), name="a")) as it:
        with pytest.raises(StreamUnavailableError, match="the consumer did not answer"):
            it._check_brokers()  # nothing serves it
        assert not it._has_been_silent(0)
        consumer = Consumer({})
        consumer.list_error = KafkaError(KafkaError._TRANSPORT)
        with pytest.raises(StreamUnavailableError):
            it._ask_brokers(consumer)
        assert it._has_been_silent(0)
        assert not it._has_been_silent(3_600)
        consumer.list_error = None
        it._ask_brokers(consumer)
        assert not it._has_been_silent(0)


class Broken:
    """Transactions that raise an error which is not of Kafka."""

    def store(self, places, requests, generation):
        raise ValueError("broken")


def test_failure_of_a_commit_that_cannot_even_be_sent_is_of_its_caller():
    thread, consumer = made(transactions=Broken()), Consumer({})
    request = CommitRequest(0, granted(thread, consumer, 0)[0].token, "s", 4, 5)
    with serving(thread, consumer):
        for _ in range(2):
            with pytest.raises(ValueError, match="broken"):
                thread.commits.commit([request], WAIT_S)


@pytest.fixture
def silent(thread):
    """A consumer whose commit of partition 0 has no answer yet; it owns partition 1 as well."""
    consumer = Consumer({})
    consumer.is_silent = True
    request = CommitRequest(0, granted(thread, consumer, 0, 1)[0].token, "s", 4, 5)
    with running(thread.commits.commit, [request], WAIT_S):
        while consumer.answer is None:
            thread._serve(consumer)
        yield consumer
        consumer.answers()


def test_commit_without_a_reply_does_not_hold_up_the_consumer(thread, silent):
    owned = thread.ownership.owned[1]
    with serving(thread, silent):
        assert thread.commits.has_waited(0)
        assert not thread.commits.has_waited(3_600)
        with pytest.raises(StreamUnavailableError, match="did not answer"):
            thread.commits.confirm(0.5)
        assert thread.do(partial(thread.begin, positions={owned: 9}), WAIT_S) == {1: None}
        silent.first = (record(10, 1),)
        assert offsets(thread.read([Fetch(1, 9, 10, owned.token)], WAIT_S)) == [10]
    assert thread.commits.is_under_way


@pytest.mark.parametrize("callback", ["_on_lost", "_on_revoke"])
def test_callback_that_takes_a_partition_ends_after_the_reply_to_its_commit(
    thread, silent, callback
):
    """librdkafka might send it again under the generation that the consumer joins next."""
    lost, kept = thread.ownership.owned[0], thread.ownership.owned[1]
    lost.is_released = True
    thread._waiting[1] = Waiting(kept.token, 9)

    def take():
        with pytest.raises(_CallEndedError):
            getattr(thread, callback)(silent, [TopicPartition("orders", 0)])

    with running(take) as taking:
        silent.first = (record(10, 1),)
        assert offsets(thread.read([Fetch(1, 9, 10, kept.token)], WAIT_S)) == [10]
        assert taking.is_alive()
        silent.is_silent = False
    assert silent.calls[-1] == "unassign"
    assert list(thread.ownership.owned) == [1]


def test_callback_leaves_the_answer_to_the_client_unless_it_polled(thread):
    """The call that it belongs to continues, and loses no records."""
    consumer = Consumer({})
    granted(thread, consumer, 0)[0].is_released = True
    thread._on_revoke(consumer, [TopicPartition("orders", 0)])
    assert "unassign" not in consumer.calls


def test_records_are_polled_one_by_one_while_a_commit_is_under_way(thread, silent):
    """A callback must not end `consume`, which would lose what it has received."""
    owned = thread.ownership.owned[1]
    thread._waiting[1] = Waiting(owned.token, 9)
    silent.first, silent.others = (record(10, 1),), (record(11, 1),)
    thread._serve(silent)
    assert thread._waiting[1].position == 10
    silent.answers()
    silent.first = (record(11, 1),)
    silent.others = (record(12, 1), record(13, 1))
    thread._serve(silent)
    assert thread._waiting[1].position == 13


def test_records_that_wait_are_taken_in_pieces_and_once():
    waiting = Waiting(1, 9)
    waiting.add([record(offset) for offset in range(5, 20)])  # 5 to 9 are known
    waiting.add([record(offset) for offset in range(25, 30)])
    assert (waiting.count, waiting.size, waiting.position) == (15, 15, 29)
    assert [each.offset() for each in waiting.take(9, 4)[0]] == [10, 11, 12, 13]
    assert [each.offset() for each in waiting.take(15, 6)[0]] == [16, 17, 18, 19, 25, 26]
    assert [each.offset() for each in waiting.take(26, 100)[0]] == [27, 28, 29]
    assert (waiting.count, waiting.size) == (0, 0)


def test_leaders_are_asked_something_when_the_first_partitions_begin(thread):
    """Otherwise the threads that fetch from them would sleep on."""
    consumer = Consumer({})
    first, second = granted(thread, consumer, 0, 1).values()
    thread.begin(consumer, {first: 9})
    assert consumer.asked == [[0]]
    thread.begin(consumer, {second: 9})
    assert consumer.asked == [[0]]


def test_leaders_are_asked_something_after_a_callback_about_partitions(thread):
    """librdkafka fetches nothing while it runs."""
    consumer = Consumer({})
    first, second = granted(thread, consumer, 0, 1).values()
    thread._serve(consumer)
    thread.begin(consumer, {first: 9, second: 9})
    consumer.asked, first.is_released = (), True
    thread._on_revoke(consumer, [TopicPartition("orders", 0)])
    for _ in range(2):
        thread._serve(consumer)
        assert consumer.asked == [[1]]
    thread._on_assign(consumer, [])
    thread._serve(consumer)
    assert consumer.asked == [[1], [1]]


def test_leaders_are_asked_something_when_all_partitions_were_paused(thread):
    consumer = Consumer({})
    first, second = granted(thread, consumer, 0, 1).values()
    thread.begin(consumer, {first: 9, second: 9})
    consumer.asked = ()
    for waiting in thread._waiting.values():
        waiting.add([record(offset) for offset in range(10, 20_010)])
    thread._pause_and_resume(consumer)
    assert [each.is_paused for each in thread._waiting.values()] == [True, True]
    thread._waiting[1].take(9, 20_000)
    thread._pause_and_resume(consumer)
    assert consumer.asked == [[1]]
    thread._waiting[0].take(9, 20_000)
    thread._pause_and_resume(consumer)
    assert consumer.asked == [[1]]
    assert not any(each.is_paused for each in thread._waiting.values())


def test_partitions_share_the_memory_of_records_that_wait(thread):
    """A thousand that stand still would take gigabytes; those that do not are not paused."""
    consumer = Consumer({})
    owned = granted(thread, consumer, *range(1_000))
    for partition, each in owned.items():
        thread._waiting[partition] = Waiting(each.token, 0)
    full, quick = range(1, 1_000), thread._waiting[0]

    def is_paused():
        thread._pause_and_resume(consumer)
        return {each.is_paused for number, each in thread._waiting.items() if number}

    for partition in full:
        thread._waiting[partition].add([record(each, partition) for each in range(1, 200)])
    assert is_paused() == {False}
    for partition in full:
        thread._waiting[partition].add([record(each, partition) for each in range(200, 210)])
    quick.add([record(each) for each in range(1, 100)])
    assert is_paused() == {True}
    assert not quick.is_paused
    for partition in full:
        thread._waiting[partition].take(0, 105)
    assert is_paused() == {True}  # 104 are left of each
    for partition in full:
        thread._waiting[partition].take(0, 5)
    assert is_paused() == {False}


def test_a_record_that_came_alone_is_read_with_those_of_the_next_call(thread, monkeypatch):
    class Last(Consumer):
        first, others = (record(10),), (record(11), failure(KafkaError._PARTITION_EOF), record(12))

        def in_consume(self):
            thread._is_closing = True

    monkeypatch.setattr(confluent_kafka, "Consumer", Last)
    thread._waiting[0] = Waiting(2, 9)
    thread._run()
    assert offsets(thread.read([Fetch(0, 9, 10, token=2)], 0)) == [10, 11, 12]
