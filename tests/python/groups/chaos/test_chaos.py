"""Worker processes on a real server: killed, stopped, cut off. Each record is stored once."""

import random
import signal

import pytest

from core_support.proxy import Proxy
from core_support.waits import HANG_S, eventually
from groups_support.chaos import LEASE_MS, Group, MetricsGroup

pytestmark = pytest.mark.timeout(2 * HANG_S)


@pytest.fixture
def make_group(tmp_path, request):
    made = []

    def make(server=None, kind=Group, **settings):
        server = server or request.getfixturevalue("redis_server")
        group = kind(server.url, tmp_path, **settings)
        made.append(group)
        return group

    yield make
    for group in made:
        group.close()


def test_calm_joins_and_leaves_store_each_record_once(make_group):
    group = make_group()
    group.start("a")
    group.send(2_000)
    group.start("b")
    group.send(2_000)
    group.start("c")
    group.send(2_000)
    left = group.end("a")
    group.settles()
    group.send(2_000)
    group.is_done()
    summaries = [left, *group.end_all()]
    group.check()
    for summary in summaries:
        ended = summary["handled"] + summary["dropped"]
        assert summary["fetched"] == ended
        assert summary["lost"] == 0
        assert summary["unfinished"] == {}
    assert sum(summary["handled"] for summary in summaries) == group.sent


@pytest.mark.parametrize("kind", [Group, MetricsGroup])
def test_killed_worker(make_group, kind):
    group = make_group(kind=kind, handler_s=0.01)
    group.start("a", "b")
    group.send(5_000)
    eventually(lambda: group.count() > 500, "both are at work")
    group.processes.pop("a").kill()
    group.send(1_000)
    group.settles()
    group.check()


def test_stopped_worker_wakes_when_its_lease_is_over(make_group):
    group = make_group(handler_s=0.01)
    group.start("a", "b")
    group.send(5_000)
    eventually(lambda: len(group.stored()) > 500, "both are at work")
    stopped = group.processes.pop("a")
    stopped.signal(signal.SIGSTOP)
    group.settles()  # b owns everything
    group.send(1_000)
    stopped.signal(signal.SIGCONT)
    group.processes["a"] = stopped
    group.settles()
    group.check()


def test_sigterm_in_a_handler_finishes_it(make_group):
    group = make_group(handler_s=0.5, partitions=2)
    group.start("a", "b")
    group.send(400)
    eventually(lambda: len(group.stored()) > 0, "a handler runs")
    assert group.end("a")["unfinished"] == {}
    group.settles()
    group.check()


def test_all_leave_together_and_come_back(make_group):
    group = make_group()
    group.start("a", "b", "c")
    group.send(3_000)
    for summary in group.end_all():
        assert summary["unfinished"] == {}
    group.send(1_000)
    group.start("d", "e")
    group.check()


def test_more_workers_than_partitions(make_group):
    group = make_group(partitions=2)
    group.start("a", "b", "c")
    group.send(1_000)
    owner = next(name for name in group.owners().values())
    group.processes.pop(owner).kill()
    group.settles()
    group.check()


@pytest.mark.parametrize("seed", range(2))
def test_storm_of_joins_ends_and_kills(make_group, seed):
    group, chance = make_group(handler_s=0.005), random.Random(seed)
    group.start("w0")
    for number in range(1, 9):
        group.send(500)
        name = chance.choice(list(group.processes))
        action = chance.choice(["kill", "end", "join", "join"])
        if action == "kill":
            group.processes.pop(name).kill()
        elif action == "end":
            group.end(name)
        if action == "join" or not group.processes:
            group.start(f"w{number}")
    group.settles()
    group.check()


def test_scripts_that_the_server_has_forgotten(make_group, redis_server):
    group = make_group()
    group.start("a", "b")
    for _ in range(5):
        group.send(500)
        redis_server.client().script_flush()
    group.check()


def test_server_that_is_killed_and_comes_back(make_group, durable_server):
    group = make_group(durable_server)
    group.start("a", "b")
    before = group.owners()
    for _ in range(2):
        group.send(1_000)
        durable_server.restart()
    group.settles()
    group.check()
    assert group.owners() == before


def test_network_that_is_cut_for_longer_than_the_lease(make_group, redis_server):
    proxy = Proxy(redis_server.port)
    try:
        group = make_group(worker_url=f"redis://127.0.0.1:{proxy.port}/0", handler_s=0.01)
        group.start("a", "b")
        group.send(3_000)
        eventually(lambda: len(group.stored()) > 200, "they are at work")
        proxy.cut()
        eventually(lambda: not any(group.owners().values()), "the leases are over")
        group.send(500)
        proxy.restore()
        group.settles()
        group.check()
    finally:
        proxy.close()


def test_interpreter_that_is_held_for_longer_than_the_lease(make_group):
    group = make_group(handler_s=0.01)
    group.start("a", "b")
    group.send(3_000)
    process = group.processes.pop("a")
    process.order(f"gil {3 * LEASE_MS / 1_000}")
    group.settles()
    group.processes["a"] = process
    group.settles()
    group.check()


@pytest.mark.parametrize("kind", [Group, MetricsGroup])
def test_full_disk_of_the_sink_holds_up_its_records_and_loses_none(make_group, kind):
    """A limit on the size of files: SQLite can write nothing further."""
    group = make_group(kind=kind)
    group.start("a", "b")
    group.send(500)
    group.is_done()
    for process in group.processes.values():
        process.order("disk 8192")

    def all_wait():
        group.send(8)
        return group.blocked() == set(range(group.partitions))

    eventually(all_wait, "all partitions wait")
    before = group.count()
    assert before < group.sent
    for process in group.processes.values():
        process.order("disk -1")
    group.check()


def test_trim_while_workers_come_and_go(make_group):
    group = make_group()
    group.start("a")
    administration = group.source.open_administration("g")
    removed = 0
    for name in ("b", "c"):
        group.send(2_000)
        group.is_done()
        removed += administration.trim()
        group.start(name)
    group.send(1_000)
    group.check()
    administration.close()
    assert removed == 4_000
