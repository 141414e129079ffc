"""Workers at random: they join, leave, crash, stall and wake while their handlers fail."""

import random
import threading

import pytest

from batchqueue import RetryPolicy
from batchqueue.groups import MemoryStreams, OnFailure, StaleTokenError
from core_support.waits import eventually
from groups_support.workers import worker_of

PARTITIONS = 6
RECORDS = 3_000
QUICK = RetryPolicy(attempts=3, backoff_ms=1, max_backoff_ms=5)


class FencedSink:
    """Takes what is new under the newest token, as a database with a `Fence` does."""

    def __init__(self):
        self.lock = threading.Lock()
        self.state = {}
        self.stored = {number: [] for number in range(PARTITIONS)}

    def store(self, batch, bad):
        with self.lock:
            token, offset = self.state.get(batch.partition, (0, -1))
            if token > batch.token:
                raise StaleTokenError("orders", batch.partition, batch.token, token)
            new = [record for record in batch.records if record.offset > offset]
            if any(record.value in bad for record in new):
                raise ValueError("a bad record")
            self.state[batch.partition] = (batch.token, max(offset, batch.last))
            self.stored[batch.partition] += new


@pytest.mark.parametrize("seed", range(3))
def test_no_record_is_lost_or_stored_twice(seed):
    chance = random.Random(seed)
    streams, sink = MemoryStreams("orders", partitions=PARTITIONS), FencedSink()
    bad = {str(number) for number in chance.sample(range(RECORDS), 20)}
    flaky = threading.local()

    def handler(batch):
        flaky.random = getattr(flaky, "random", random.Random(seed))
        if batch.attempt == 1 and flaky.random.random() < 0.1:
            raise ConnectionError("flaky")
        if flaky.random.random() < 0.1:
            threading.Event().wait(flaky.random.random() * 0.02)
        sink.store(batch, bad)

    workers, finished = [], []

    def join():
        name = f"w{len(workers) + len(finished)}"
        worker = worker_of(
            streams,
            handler,
            name=name,
            lease_ms=500,
            retry=QUICK,
            on_failure=OnFailure.DEAD_LETTER,
            max_batch_items=50,
        )
        worker.start()
        workers.append(worker)

    def end(worker, grace):
        workers.remove(worker)
        finished.append(worker.leave(grace))

    def act(producer, number):
        producer.send(str(number), partition=chance.randrange(PARTITIONS))
        action = chance.random()
        if len(workers) < 2 or (action < 0.003 and len(workers) < 5):
            join()
        elif action < 0.005:
            end(chance.choice(workers), grace=5)
        elif action < 0.006:
            worker = chance.choice(workers)
            streams.crash(worker.name)
            end(worker, grace=0)
        elif action < 0.008:
            worker = chance.choice(workers)
            streams.stall(worker.name)
            pause = threading.Timer(chance.random(), streams.wake, [worker.name])
            pause.start()

    with streams.producer(codec="utf8") as producer:
        for number in range(RECORDS):
            act(producer, number)

    def dead():
        return [entry for each in streams.dead_letters("g").values() for entry in each]

    def count():
        return sum(map(len, sink.stored.values())) + len(dead())

    eventually(lambda: count() >= RECORDS, "all records have ended")
    finished += [worker.leave(5) for worker in workers]

    stored = [record.value for each in sink.stored.values() for record in each]
    assert sorted(stored) == sorted({str(number) for number in range(RECORDS)} - bad)
    assert {entry.value.decode() for entry in dead()} == bad
    assert len(dead()) == len(bad)
    for each in sink.stored.values():
        offsets = [record.offset for record in each]
        assert offsets == sorted(offsets)
    for summary in finished:
        ended = summary.handled + summary.dead + summary.skipped + summary.dropped
        assert summary.fetched == ended
