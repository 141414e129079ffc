"""The states of a held partition: which steps lead from each, and that workers take no others."""

import random
import threading
from collections import Counter
from itertools import pairwise

import pytest

from batchqueue import RetryPolicy
from batchqueue.groups import MemoryStreams, Worker
from batchqueue.groups.worker.held import STEPS, HeldPartition, Life, Revocation
from core_support.waits import eventually
from groups_support.workers import owns, running, send

PARTITIONS = 6
SOON = RetryPolicy(attempts=None, backoff_ms=1, max_backoff_ms=5)


@pytest.fixture
def steps(monkeypatch):
    """The steps that all partitions take from now on, by how often."""
    taken, step = Counter(), HeldPartition.step

    def noted(held, state):
        before = held.life if isinstance(state, Life) else held.revocation
        step(held, state)
        taken[before, state] += 1

    monkeypatch.setattr(HeldPartition, "step", noted)
    return taken


@pytest.mark.parametrize("before", STEPS)
def test_a_partition_takes_the_steps_of_the_table_and_no_others(before):
    for state in STEPS:
        if type(state) is not type(before):
            continue
        held = HeldPartition(7, 1, "a")
        held.life, held.revocation = (
            (before, Revocation.NONE) if isinstance(before, Life) else (Life.TAKEN, before)
        )
        if state in STEPS[before]:
            held.step(state)
            assert state in (held.life, held.revocation)
        else:
            with pytest.raises(AssertionError, match=f"partition 7: {before} is not left for"):
                held.step(state)
            assert before in (held.life, held.revocation)


def test_a_partition_may_end_in_every_state():
    assert all(Life.OVER in STEPS[life] for life in Life if life is not Life.OVER)


def test_a_step_that_is_not_allowed_stops_the_worker(monkeypatch):
    streams = MemoryStreams("orders")
    monkeypatch.setitem(STEPS, Life.ANNOUNCED, frozenset({Life.OVER}))
    worker = Worker("g", streams)
    worker.handler(lambda batch: None)
    with pytest.raises(AssertionError, match=r"partition 0: Life\.ANNOUNCED is not left for"):
        worker.run()


def test_calm_worker_takes_each_partition_once(steps):
    streams = MemoryStreams("orders", partitions=PARTITIONS)
    worker = Worker("g", streams)
    worker.handler(lambda batch: None)
    with running(worker):
        owns(worker, PARTITIONS)
        worker.leave()
    lives = (Life.GRANTED, Life.OPENING, Life.OPEN, Life.ANNOUNCED, Life.TAKEN, Life.OVER)
    ends = tuple(Revocation)
    expected = {*pairwise(lives), *pairwise(ends)}
    assert steps == Counter(dict.fromkeys(expected, PARTITIONS))


class Flaky:
    """Raises, or takes a while, at random, after it has noted what it was called with."""

    def __init__(self, seed):
        self._chance = random.Random(seed)
        self._lock = threading.Lock()
        self.assigned, self.ended = set(), Counter()

    def __call__(self, *arguments):
        with self._lock:
            chance = self._chance.random()
        if chance < 0.3:
            threading.Event().wait(chance / 10)
        if chance < 0.15:
            raise ConnectionError("flaky")

    def on_assign(self, assignments):
        self.assigned.update(each.token for each in assignments)
        self()

    def on_end(self, assignments):
        with self._lock:
            self.ended.update(each.token for each in assignments)
        self()


@pytest.mark.parametrize("seed", range(3))
def test_workers_at_random_take_the_steps_of_the_table(seed, steps, monkeypatch):
    """They join, leave, crash and stall while callbacks, factories and handlers raise."""
    monkeypatch.setattr("batchqueue.groups.worker.membership._POSTPONED", SOON)
    chance, flaky = random.Random(seed), Flaky(seed)
    streams = MemoryStreams("orders", partitions=PARTITIONS)
    workers, handled = [], set()

    def make(assignment):
        flaky()
        return handle

    def handle(batch):
        flaky()
        handled.update(batch.values)

    def join(number):
        worker = Worker(
            "g",
            streams,
            codec="utf8",
            name=f"w{number}",
            lease_ms=500,
            retry=SOON,
            on_assign=flaky.on_assign,
            on_revoke=flaky.on_end,
            on_lost=flaky.on_end,
        )
        worker.handler_factory(make)
        worker.start()
        workers.append(worker)

    def end(worker, grace):
        workers.remove(worker)
        worker.leave(grace)  # which raises if a step was not allowed

    for number in range(120):
        action = chance.random()
        send(streams, PARTITIONS, prefix=f"{number}-")
        if len(workers) < 2 or (action < 0.3 and len(workers) < 4):
            join(number)
        elif action < 0.45:
            end(chance.choice(workers), grace=chance.choice([0, 5]))
        elif action < 0.55:
            worker = chance.choice(workers)
            streams.crash(worker.name)
            end(worker, grace=0)
        elif action < 0.65:
            worker = chance.choice(workers)
            streams.stall(worker.name)
            threading.Timer(chance.random(), streams.wake, [worker.name]).start()
        else:
            threading.Event().wait(chance.random() / 20)
    eventually(lambda: len(handled) == 120 * PARTITIONS, "all records are handled")
    for worker in list(workers):
        end(worker, grace=5)
    eventually(
        lambda: all(flaky.ended[token] == 1 for token in flaky.assigned),
        "each assignment has one end that its callbacks have heard of",
    )
    assert flaky.ended == Counter(flaky.assigned)
