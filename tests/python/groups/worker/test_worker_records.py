"""What handlers get: records, batches, kinds, keys; pauses, credits and commands."""

import sqlite3
import threading
from contextlib import closing

import pytest

from batchqueue import ConfigError, RetryPolicy
from batchqueue.base.background_log import flush_log
from batchqueue.groups import (
    Assignment,
    Batch,
    Codec,
    Fence,
    OnFailure,
    Record,
    Start,
    TruncatedError,
    Worker,
)
from batchqueue.groups.control import Phase
from core_support.waits import WAIT_S, eventually
from groups_support.backends import committed, dead_letters, on_memory
from groups_support.workers import LEASE_MS, Blocker, Collected, owns, running, send, worker_of

QUICK = RetryPolicy(attempts=1, backoff_ms=1, max_backoff_ms=2)


@pytest.fixture
def streams(backend):
    return backend.streams(2)


class Order:
    def __init__(self, text):
        self.text = text


class Refund(Order):
    pass


def order_of(data):
    text = data.decode()
    return Refund(text) if text.startswith("-") else Order(text)


ORDERS = Codec(lambda order: order.text.encode(), order_of, "orders")


class TestBatch:
    def test_batch_says_where_its_records_are_from(self, streams):
        seen = []
        with streams.producer(codec="json", key=lambda value: value["id"]) as producer:
            offsets = [
                producer.send({"id": number}, partition=1, headers={"h": b"1"})
                for number in range(3)
            ]
        worker = Worker("billing", streams, codec="json")
        worker.handler(seen.append)
        worker.run(until_idle=0.05)

        [batch] = seen
        assert (batch.group, batch.stream, batch.partition) == ("billing", streams.stream, 1)
        assert (batch.first, batch.last, len(batch)) == (offsets[0], offsets[2], 3)
        assert isinstance(batch.assignment, Assignment)
        assert batch.token == batch.assignment.token
        record = batch.records[1]
        assert (record.value, record.key, record.offset) == ({"id": 1}, b"1", offsets[1])
        assert record.headers == (("h", b"1"),)
        assert record.timestamp_ms == offsets[1] >> 20
        assert batch.values == [{"id": 0}, {"id": 1}, {"id": 2}]

    def test_records_are_made_once_and_agree_with_what_the_batch_says(self, streams):
        """Of all records, and of parts of a batch: 7 is not JSON, and 11 always fails."""
        seen, sent = [], []
        with streams.producer(codec="json") as good, streams.producer(codec="bytes") as bad:
            for number in range(20):
                fields = {"key": f"k{number}", "partition": 0, "headers": {"h": bytes([number])}}
                producer, value = (bad, b"{") if number == 7 else (good, {"id": number})
                offset = producer.send(value, **fields)
                headers = (("h", bytes([number])),)
                sent.append((value, b"k%d" % number, offset, headers))

        def handler(batch):
            values, first, last = list(batch.values), batch.first, batch.last
            records = batch.records
            assert batch.records is records
            assert isinstance(records, list)
            assert values == [record.value for record in records]
            assert (first, last, len(batch)) == (
                records[0].offset,
                records[-1].offset,
                len(records),
            )
            found = [(r.value, r.key, r.offset, r.headers) for r in records]
            at = sent.index(found[0])
            assert found == sent[at : at + len(found)]
            if {"id": 11} in values:
                raise ValueError("eleven")
            seen.extend(found)

        worker = worker_of(
            streams, handler, codec="json", retry=QUICK, on_failure=OnFailure.DEAD_LETTER
        )
        summary = worker.run(until_idle=0.5)
        assert (summary.handled, summary.dead) == (18, 2)
        assert seen == [each for place, each in enumerate(sent) if place not in (7, 11)]
        letters = [(letter.key, letter.headers[0]) for letter in dead_letters(streams, 0)]
        assert letters == [(b"k7", ("h", b"\x07")), (b"k11", ("h", b"\x0b"))]

    def test_batch_of_a_list_has_this_list(self):
        records = [Record(str(offset), None, offset, 0) for offset in range(5, 8)]
        batch = Batch("g", "orders", Assignment(0, 1, -1, 0.0), records, attempt=2)
        assert batch.records is records
        assert (batch.first, batch.last, len(batch), batch.attempt) == (5, 7, 3, 2)
        assert batch.values == ["5", "6", "7"]
        assert repr(batch) == "<Batch orders/0 offsets 5..7, 3 records, attempt 2>"

    @on_memory
    @pytest.mark.parametrize("limit", [1, 7, 1_000])
    def test_no_call_gets_more_than_the_most_items_of_a_batch(self, streams, limit):
        sizes, got = [], Collected()

        def handler(batch):
            sizes.append(len(batch))
            got(batch)

        send(streams, 100)
        worker_of(streams, handler, max_batch_items=limit).run(until_idle=0.05)
        assert got.count == sum(sizes) == 100
        assert max(sizes) <= limit
        assert got.is_in_order()

    @on_memory
    def test_neighbouring_chunks_are_handled_together(self, streams):
        sizes, blocker = [], Blocker()

        def handler(batch):
            sizes.append(len(batch))
            if len(sizes) == 1:
                blocker()

        worker = worker_of(streams, handler)
        with running(worker):
            send(streams, 1, partition=0)
            assert blocker.entered.wait(WAIT_S)
            for number in range(20):
                send(streams, 1, partition=0, prefix=f"{number}-")
            eventually(lambda: worker.metrics().fetched == 21, "all are fetched")
            eventually(lambda: worker.stats().queued == 0, "all are decoded")
            blocker.release()
            eventually(lambda: sum(sizes) == 21, "all are handled")
        assert len(sizes) < 21


@on_memory
class TestKinds:
    def test_values_go_to_the_handler_of_their_exact_class(self, streams):
        orders, refunds, others = Collected(), Collected(), Collected()
        with streams.producer(codec=ORDERS) as producer:
            for text in ("1", "-2", "3", "-4"):
                producer.send(Order(text), partition=0)
        worker = Worker("g", streams, codec=ORDERS)
        worker.add_handler(Order, orders)
        worker.add_handler(Refund, refunds)
        worker.handler(others)
        worker.run(until_idle=0.05)
        assert [value.text for value in orders.values] == ["1", "3"]
        assert [value.text for value in refunds.values] == ["-2", "-4"]
        assert others.count == 0

    def test_classes_may_say_what_equals_them(self, streams):
        class NoHash(type):
            def __eq__(cls, other):
                return True

        class Odd(Order, metaclass=NoHash): ...

        class Other(Order, metaclass=NoHash): ...

        odd, others = Collected(), Collected()
        codec = Codec(
            lambda order: order.text.encode(),
            lambda data: (Odd if data == b"1" else Other)(data.decode()),
            "odd orders",
        )
        with streams.producer(codec=codec) as producer:
            for text in ("1", "2", "1"):
                producer.send(Order(text), partition=0)
        worker = Worker("g", streams, codec=codec)
        worker.add_handler(Odd, odd)
        worker.handler(others)
        worker.run(until_idle=0.05)
        assert [value.text for value in odd.values] == ["1", "1"]
        assert [value.text for value in others.values] == ["2"]

    def test_tags_are_the_values_of_the_header_type(self, streams):
        paid, others = Collected(), Collected()
        send(streams, 3, partition=0, type=b"paid")
        send(streams, 2, partition=0, type=b"unknown")
        send(streams, 1, partition=0)
        worker = Worker("g", streams, codec="utf8")
        worker.add_handler("paid", paid)
        worker.handler(others)
        worker.run(until_idle=0.05)
        assert (paid.count, others.count) == (3, 3)

    def test_a_class_and_a_tag_of_one_name_are_two_kinds(self, streams):
        seen = []
        with streams.producer(codec=ORDERS) as producer:
            producer.send(Order("1"), partition=0)
            producer.send(Refund("-2"), partition=0, headers={"type": "Order"})
        worker = Worker("g", streams, codec=ORDERS)
        worker.add_handler(Order, lambda batch: seen.append(batch.kind))
        worker.add_handler("Order", lambda batch: seen.append(batch.kind))
        worker.run(until_idle=0.05)
        assert sorted(seen) == sorted([f"{Order.__module__}.Order", "tag Order"])

    def test_one_handler_of_two_kinds_gets_both_in_order(self, streams):
        got = Collected()
        with streams.producer(codec=ORDERS) as producer:
            for text in ("1", "-2", "3", "-4"):
                producer.send(Order(text), partition=0)
        worker = Worker("g", streams, codec=ORDERS)
        worker.add_handler(Order, got)
        worker.add_handler(Refund, got)
        worker.run(until_idle=0.05)
        assert [value.text for value in got.values] == ["1", "-2", "3", "-4"]

    def test_a_kind_without_a_handler_is_treated_like_a_failure(self, streams, caplog):
        orders = Collected()
        with streams.producer(codec=ORDERS) as producer:
            for text in ("1", "-2", "3"):
                producer.send(Order(text), partition=0)
        worker = Worker("g", streams, codec=ORDERS, on_failure=OnFailure.DEAD_LETTER, retry=QUICK)
        worker.add_handler(Order, orders)
        assert worker.run(until_idle=0.05).dead == 1
        assert orders.count == 2
        assert flush_log(WAIT_S)
        assert "no handler takes the Refund" in caplog.text

    def test_a_fence_keeps_a_position_for_each_handler(self, streams, tmp_path):
        """A handler that is behind stores its records although another one is ahead."""
        fence, path = Fence.sql(), tmp_path / "orders.db"
        refunds_are_stored = threading.Event()
        with closing(sqlite3.connect(path)) as db:
            db.execute("CREATE TABLE stored (text)")

        def store(batch):
            with closing(sqlite3.connect(path)) as db, db:
                values = [(record.value.text,) for record in fence.new(db, batch)]
                db.executemany("INSERT INTO stored VALUES (?)", values)

        def store_orders(batch):
            assert refunds_are_stored.wait(WAIT_S)
            store(batch)

        def store_refunds(batch):
            store(batch)
            refunds_are_stored.set()

        with streams.producer(codec=ORDERS) as producer:
            for text in ("1", "-2"):
                producer.send(Order(text), partition=0)
        worker = Worker("g", streams, codec=ORDERS)
        worker.add_handler(Order, store_orders)
        worker.add_handler(Refund, store_refunds)
        worker.run(until_idle=0.05)
        with closing(sqlite3.connect(path)) as db:
            assert sorted(db.execute("SELECT text FROM stored")) == [("-2",), ("1",)]

    def test_a_kind_that_is_stuck_does_not_hold_up_another_one(self, streams):
        blocker, refunds = Blocker(), Collected()
        worker = Worker("g", streams, codec=ORDERS)
        worker.add_handler(Order, blocker)
        worker.add_handler(Refund, refunds)
        with streams.producer(codec=ORDERS) as producer:
            for number in range(50):
                producer.send(Order(f"{number}"), partition=0)
                producer.send(Order(f"-{number}"), partition=0)
        with running(worker):
            eventually(lambda: refunds.count == 50, "refunds are handled")
            assert worker.metrics().partitions[0].done == 0
            blocker.release()


@on_memory
class TestPause:
    def test_a_paused_partition_stays_assigned_and_gets_no_records(self, streams):
        got = Collected()
        worker = worker_of(streams, got)
        with running(worker):
            owns(worker, 2)
            worker.pause(0)
            send(streams, 20)
            eventually(lambda: len(got.records[1]) == 10, "the other one is handled")
            assert worker.metrics().partitions[0].is_paused
            assert not got.records[0]
            assert 0 in worker.assigned()
            worker.resume(0)
            eventually(lambda: len(got.records[0]) == 10, "it continues")

    def test_a_paused_partition_is_given_up_like_any_other(self, streams):
        worker = worker_of(streams, Collected())
        with running(worker):
            owns(worker, 2)
            worker.pause(0)
            send(streams, 5, partition=0)
            assert worker.leave().unfinished == {}

    def test_a_partition_that_is_not_assigned_cannot_be_paused(self, streams):
        worker = worker_of(streams, Collected())
        with running(worker):
            owns(worker, 2)
            with pytest.raises(
                ConfigError, match=r"partition 7 is not assigned; these are: \[0, 1\]"
            ):
                worker.pause(7)


@on_memory
class TestCredits:
    def test_no_more_records_are_fetched_than_the_credits_allow(self, streams):
        blocker = Blocker()
        worker = worker_of(streams, blocker, prefetch=50, max_batch_items=10)
        send(streams, 500, partition=0)
        with running(worker):
            assert blocker.entered.wait(WAIT_S)
            eventually(lambda: worker.metrics().fetched == 50, "the credits are used")
            blocker.release()
            eventually(lambda: worker.metrics().handled == 500, "the rest follows")

    def test_credits_are_bounded_in_bytes(self, streams):
        blocker = Blocker()
        with streams.producer() as producer:
            producer.send_many([bytes(1_000)] * 500, partition=0)
        worker = worker_of(
            streams, blocker, codec="bytes", prefetch_bytes=20_000, max_batch_items=10
        )
        with running(worker):
            assert blocker.entered.wait(WAIT_S)
            eventually(lambda: worker.metrics().fetched >= 20, "the credits are used")
            assert worker.metrics().fetched <= 30
            blocker.release()
            eventually(lambda: worker.metrics().handled == 500, "the rest follows")


class TestCommands:
    def test_commands_run_with_the_commit_of_their_batch(self, streams, backend):
        def handler(batch):
            batch.commit_with(("RPUSH", batch.key("got"), *batch.values))

        send(streams, 10, partition=1)
        worker_of(streams, handler).run(until_idle=0.05)
        assert backend.pushed(streams, 1, "got") == [str(number) for number in range(10)]

    def test_commands_of_an_attempt_that_raises_are_forgotten(self, streams, backend):
        def handler(batch):
            batch.commit_with(("RPUSH", batch.key("attempts"), str(batch.attempt)))
            if batch.attempt == 1:
                raise ValueError("once")

        send(streams, 1, partition=0)
        worker_of(streams, handler, retry=RetryPolicy(attempts=2, backoff_ms=1)).run(
            until_idle=0.05
        )
        assert backend.pushed(streams, 0, "attempts") == ["2"]

    def test_no_commit_comes_between_the_records_of_a_batch_with_commands(self, streams, backend):
        """Else commands are lost if the worker ends before the commit that has them."""
        first, other, rest = Blocker(), Blocker(), Collected()

        def numbers(batch):
            if batch.values == [0]:
                first()
            else:
                batch.commit_with(("RPUSH", batch.key("got"), *map(str, batch.values)))

        def worker_with(texts):
            worker = Worker("g", streams, codec="json", lease_ms=LEASE_MS)
            worker.add_handler(int, numbers)
            worker.add_handler(str, texts)
            worker.add_handler(float, rest)
            return worker

        worker = worker_with(other)
        with running(worker), streams.producer(codec="json") as producer:
            for count, value in enumerate((0, 1, "x", 2, 0.5), 1):  # each is a chunk
                producer.send(value, partition=0)
                eventually(lambda count=count: worker.metrics().fetched == count, "it is read")
            eventually(lambda: rest.count == 1, "2 waits for the handler of 0")
            assert other.entered.wait(WAIT_S)
            first.release()
            eventually(lambda: worker.metrics().handled == 4, "1 and 2 are a batch")
        other.release()  # the worker has left, with a last commit
        worker_with(Collected()).run(until_idle=0.05)
        pushed = backend.pushed(streams, 0, "got")
        assert [each for each in pushed if each != "0"] == ["1", "2"]  # 0 may have come again

    @on_memory
    def test_worker_leaves_although_a_batch_with_commands_cannot_be_committed(self, streams):
        first, other = Blocker(), Blocker()

        def numbers(batch):
            if batch.values == [0]:
                first()
            else:
                batch.commit_with(("RPUSH", batch.key("got"), *map(str, batch.values)))

        def texts(batch):
            other(batch)
            raise ValueError("not now")

        rest = Collected()
        worker = Worker("g", streams, codec="json", lease_ms=LEASE_MS)
        for kind, handler in ((int, numbers), (str, texts), (float, rest)):
            worker.add_handler(kind, handler)
        with running(worker), streams.producer(codec="json") as producer:
            for count, value in enumerate((0, 1, "x", 2, 0.5), 1):
                producer.send(value, partition=0)
                eventually(lambda count=count: worker.metrics().fetched == count, "it is read")
            eventually(lambda: rest.count == 1, "2 waits for the handler of 0")
            assert other.entered.wait(WAIT_S)
            first.release()
            eventually(lambda: worker.metrics().handled == 4, "1 and 2 are a batch")
            leaving = threading.Thread(target=worker.leave, args=(10 * WAIT_S,), daemon=True)
            leaving.start()
            eventually(
                lambda: worker.metrics().partitions[0].phase is Phase.DRAINING, "it gives it back"
            )
            other.release()
            leaving.join(WAIT_S)
            assert not leaving.is_alive()

    @on_memory
    @pytest.mark.parametrize("command", ["SET a 1", (), (None,), ("SET", 1.5)])
    def test_a_command_is_a_sequence_of_words(self, streams, command):
        seen = []

        def handler(batch):
            with pytest.raises(ConfigError, match="commit_with got"):
                batch.commit_with(command)
            seen.append(batch)

        send(streams, 1)
        worker_of(streams, handler).run(until_idle=0.05)
        assert len(seen) == 1


class TestSentRecords:
    @pytest.fixture
    def batch(self):
        record = Record(value="x", key=None, offset=0, timestamp_ms=0)
        return Batch("g", "orders", Assignment(0, 1, -1, 0.0), [record])

    def test_they_can_be_tested_without_a_worker(self, batch):
        batch.send("out", "x", key="k", headers={"h": b"1"})
        batch.send("out", None, key=7)
        assert batch.sent == (("out", b"x", b"k", (("h", b"1"),)), ("out", None, b"7", ()))

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ({"topic": 5, "value": b"x"}, "the topic's name is 5"),
            ({"topic": "", "value": b"x"}, "the topic's name is empty"),
            ({"topic": "out", "value": 5}, "got the value 5; give bytes, a str or None"),
            ({"topic": "out", "value": b"x", "headers": {"a": 5}}, r"the headers have \('a', 5\)"),
        ],
    )
    def test_arguments(self, batch, arguments, message):
        with pytest.raises(ConfigError, match=message):
            batch.send(**arguments)

    def test_only_a_commit_on_kafka_stores_them(self, streams):
        errors = []

        def handler(batch):
            try:
                batch.send("out", "x")
            except ConfigError as error:
                errors.append(str(error))

        send(streams, 1)
        worker_of(streams, handler).run(until_idle=0.05)
        assert errors == [
            "send to 'out' is not possible: only a commit on Kafka with exactly_once=True stores "
            """records: use commit_with(("XADD", batch.key('out'), "*", "value", ...))"""
        ]


class TestStart:
    def test_latest_begins_with_what_is_added_later(self, streams):
        got = Collected()
        send(streams, 10)
        worker = worker_of(streams, got, start=Start.LATEST)
        with running(worker):
            owns(worker, 2)
            send(streams, 4, prefix="new ")
            eventually(lambda: got.count == 4, "the new ones are handled")
        assert all(value.startswith("new ") for value in got.values)

    def test_records_that_were_trimmed_before_they_were_read(self, streams, backend):
        send(streams, 10, partition=0)
        worker_of(streams, Collected()).run(until_idle=0.05)
        send(streams, 10, partition=0)
        other = Worker("other", streams)
        other.handler(Collected())
        other.run(until_idle=0.05)
        backend.remove_oldest(streams, 0, 15)

        with pytest.raises(TruncatedError, match=f"{streams.stream}/0: 5 records after offset"):
            worker_of(streams, Collected()).run()
        summary = worker_of(streams, Collected(), on_gap="skip").run(until_idle=0.05)
        assert (summary.handled, summary.lost_records) == (5, 5)
        assert committed(streams, 0) == 20

    @on_memory
    @pytest.mark.parametrize("is_later", [False, True], ids=["with records left", "and no more"])
    def test_records_that_are_trimmed_while_a_worker_is_behind(self, streams, backend, is_later):
        blocker = Blocker()
        worker = worker_of(streams, blocker, prefetch=5, on_gap="skip", max_batch_items=5)
        send(streams, 20, partition=0)
        with running(worker):
            assert blocker.entered.wait(WAIT_S)
            backend.remove_oldest(streams, 0, 12 if is_later else 20)
            blocker.release()
            lost = 7 if is_later else 15
            eventually(lambda: worker.metrics().lost_records == lost, "the gap is noticed")
            eventually(lambda: worker.metrics().handled == 20 - lost, "the rest is handled")

    @on_memory
    def test_a_gap_while_a_worker_is_behind_stops_it(self, streams, backend):
        blocker = Blocker()
        worker = worker_of(streams, blocker, prefetch=5, max_batch_items=5)
        send(streams, 20, partition=0)
        worker.start()
        assert blocker.entered.wait(WAIT_S)
        backend.remove_oldest(streams, 0, 12)
        blocker.release()
        with pytest.raises(TruncatedError, match="7 records after offset"):
            worker.run()
