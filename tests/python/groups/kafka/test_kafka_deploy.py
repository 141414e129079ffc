"""Rolling deploys: each worker gets SIGTERM inside long handlers, and another one replaces it."""

import sqlite3
import threading
from collections import defaultdict
from contextlib import closing, contextmanager
from itertools import pairwise
from typing import NamedTuple

import pytest

from core_support.waits import HANG_S, eventually
from groups_support.crowd import Crowd

pytestmark = [pytest.mark.timeout(2 * HANG_S), pytest.mark.matrix(24, name="many workers on Kafka")]


class Call(NamedTuple):
    """A call of a handler."""

    worker: str
    partition: int
    token: int
    first: int
    last: int
    began: float
    ended: float | None


class DeployGroup(Crowd):
    """A group with long handlers, whose records come steadily, and two partitions per worker."""

    sink = "calls"

    def __init__(self, broker, folder, *, workers, handler_s, **settings):
        partitions = 2 * workers
        super().__init__(broker, folder, partitions=partitions, handler_s=handler_s, **settings)
        self._handler_s = handler_s
        self.limit_s = Crowd.limit_s + 5 * handler_s
        # Threads for all partitions that a worker may get while another one is away.
        self._settings["worker"] = {"grace": 2 * handler_s + 20, "max_batch_items": 10}
        self._settings["threads"] = 4

    @contextmanager
    def fed(self):
        """Sends records all the time: two per partition in the time of a call."""
        stop = threading.Event()

        def feed():
            while not stop.is_set():
                for partition in range(self.partitions):
                    self.producer.send(str(self.sent), partition=partition)
                    self.sent += 1
                stop.wait(self._handler_s / 2)

        feeder = threading.Thread(target=feed)
        feeder.start()
        try:
            yield
        finally:
            stop.set()
            feeder.join()

    def calls(self):
        with closing(sqlite3.connect(self.database, timeout=60)) as db:
            rows = db.execute("SELECT * FROM calls ORDER BY began").fetchall()
        calls = defaultdict(list)
        for call in map(Call._make, rows):
            calls[call.partition].append(call)
        return calls

    def check_calls(self):
        """All have returned; no two of a partition overlap, in time or in their records.

        A partition has another token only behind another owner.
        """
        for calls in self.calls().values():
            assert all(call.ended for call in calls), "a handler was cut off"
            for call, following in pairwise(calls):
                assert call.ended <= following.began
                assert call.last < following.first
                is_kept = call.worker == following.worker
                assert (call.token == following.token) is is_kept


@pytest.fixture
def make_group(tmp_path, steady_kafka_broker):
    made = []

    def make(**settings):
        made.append(DeployGroup(steady_kafka_broker, tmp_path, **settings))
        return made[-1]

    yield make
    for group in made:
        group.close()


def deploy(group, workers):
    """Replaces all workers; returns their summaries, and which partitions stayed in each step."""
    summaries, stayed = [], []
    for number in range(workers):
        before = group.owners()
        summaries.append(group.end(f"old-{number}"))
        group.launch(f"new-{number}")
        after = group.owners()
        stayed.append([each for each in before if before[each] == after[each]])
    return summaries, stayed


SLOW = (
    pytest.mark.slow,
    pytest.mark.timeout(1_800),
    pytest.mark.matrix(1, name="slow on Kafka"),
)


@pytest.mark.parametrize(
    ("workers", "handler_s", "sessions_ms"),
    [
        pytest.param(4, 1, {"consumer": 30_000, "classic": 30_000}, id="4 workers"),
        pytest.param(10, 1, {"consumer": 30_000, "classic": 30_000}, id="10 workers", marks=SLOW),
        # With the classic protocol a move waits for handlers for half of the session at most.
        pytest.param(10, 30, {"consumer": 45_000, "classic": 90_000}, id="real", marks=SLOW),
    ],
)
@pytest.mark.parametrize("protocol", ["consumer", "classic"])
def test_rolling_deploy_cuts_nothing_off(make_group, protocol, workers, handler_s, sessions_ms):
    group = make_group(
        workers=workers,
        handler_s=handler_s,
        session_ms=sessions_ms[protocol],
        protocol=protocol,
        revoke_wait=30 + handler_s,
    )
    group.launch(*(f"old-{number}" for number in range(workers)))
    with group.fed():
        is_busy = "handlers are inside all partitions"
        eventually(lambda: len(group.calls()) == group.partitions, is_busy, group.limit_s)
        summaries, stayed = deploy(group, workers)
    group.check()
    summaries += group.end_all()
    for summary in summaries:
        assert (summary["lost"], summary["unfinished"]) == (0, {})
    assert sum(summary["handled"] for summary in summaries) == group.sent
    group.check_calls()
    assert all(stayed)
