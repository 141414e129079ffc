"""Programs that write rows and are killed, stopped, or lose their server; rows counted by key."""

from collections import Counter

import pytest

from batchqueue.exporters import PostgresRows
from core_support.proxy import Proxy
from core_support.waits import WAIT_S, eventually
from exporters_support.orders import Order, execute, ids, order, stored
from exporters_support.points import POINTS, AtPoint
from exporters_support.queues import exporting

ON_CONFLICT = pytest.mark.parametrize("keys", [None, ["id"]], ids=["append", "update"])


@pytest.fixture
def table(postgres_server, orders, keys):
    """The connection string of a server with a table; it has a key if rows are updated."""
    if keys is None:
        execute(postgres_server, "ALTER TABLE orders DROP CONSTRAINT orders_pkey")
    return orders


def counted(server):
    """Returns how many rows each number has, none of which is torn."""
    rows = stored(server)
    assert rows == [(it.id, it.name, it.cents) for it in (order(row[0]) for row in rows)]
    return Counter(row[0] for row in rows)


def check_batches(program, counts):
    """Checks that what was acknowledged is there, and that each batch is there or is not."""
    assert program.done() <= set(counts)
    for batch in program.noted("sent"):
        assert len({number in counts for number in batch}) == 1, batch


@ON_CONFLICT
@pytest.mark.parametrize("point", [*POINTS, "answered"])
def test_program_that_is_killed_loses_nothing_that_was_acknowledged(
    postgres_server, table, start, point, keys
):
    killed = start(conninfo=table, keys=keys, kill_at=3, point=point)
    killed.killed()
    # The server may still be ending the last transaction.
    eventually(lambda: no_session(postgres_server), "the end of its session")
    counts = counted(postgres_server)
    check_batches(killed, counts)
    assert set(counts.values()) == {1}
    *_, last = killed.noted("sent")
    assert set(counts) - killed.done() == (set(last) if point == "answered" else set())

    first = len(killed.done())
    assert killed.done() == set(range(first))
    start(conninfo=table, keys=keys, first=first, last=first + 200).ended()
    counts = counted(postgres_server)
    assert set(counts) == set(range(first + 200))
    twice = {number for number, count in counts.items() if count > 1}
    assert twice == (set(last) if point == "answered" and keys is None else set())
    assert set(counts.values()) <= {1, 2}


@ON_CONFLICT
@pytest.mark.parametrize("after", [1, 333, 1_234])
def test_program_that_is_killed_at_any_moment_may_repeat_its_last_batch_only(
    postgres_server, table, start, after, keys
):
    killed = start(conninfo=table, keys=keys)
    killed.eventually_done(after)
    killed.process.kill()
    killed.killed()
    eventually(lambda: no_session(postgres_server), "the end of its session")
    check_batches(killed, counted(postgres_server))

    first = len(killed.done())
    start(conninfo=table, keys=keys, first=first, last=first + 200).ended()
    counts = counted(postgres_server)
    assert set(counts) == set(range(first + 200))
    twice = {number for number, count in counts.items() if count > 1}
    *_, last = killed.noted("sent")
    assert twice <= (set(last) if keys is None else set())
    assert set(counts.values()) <= {1, 2}


@ON_CONFLICT
def test_sigterm_under_load_stores_or_returns_every_row(postgres_server, table, start, keys):
    program = start(conninfo=table, keys=keys, has_bad=True)
    program.eventually_done(500)
    result = program.terminated()
    bad = [number for number in result["accepted"] if number % 97 == 13]
    assert result["letters"] == bad
    assert counted(postgres_server) == Counter({*result["accepted"]} - {*bad})


@ON_CONFLICT
def test_sigterm_in_an_outage_stores_or_returns_every_row(postgres_server, table, start, keys):
    program = start(conninfo=table, keys=keys, shutdown_s=3)
    program.eventually_done(100)
    postgres_server.stop("immediate")
    program.eventually_failed(3)
    result = program.terminated()
    postgres_server.start()
    counts, letters = counted(postgres_server), set(result["letters"])
    assert set(counts.values()) == {1}
    assert set(counts) | letters == {*result["accepted"]}
    # The server may have stored the batch whose answer the stop has cut off.
    cut_off, *_ = program.noted("failed")
    assert set(counts) & letters in (set(), set(cut_off))


@ON_CONFLICT
def test_sigterm_while_the_server_hangs_ends_the_program_and_counts_what_it_gives_up(
    postgres_server, table, start, keys
):
    program = start(conninfo=table, keys=keys, shutdown_s=2)
    program.eventually_done(100)
    postgres_server.freeze()
    try:
        eventually(lambda: is_inside(program), "a call")
        result = program.terminated(gives_up=True)
    finally:
        postgres_server.thaw()
    eventually(lambda: no_session(postgres_server), "the end of its session")
    counts = counted(postgres_server)
    check_batches(program, counts)
    assert set(counts.values()) == {1}
    assert len(program.done()) == result["consumed"]


@ON_CONFLICT
@pytest.mark.parametrize("kind", ["immediate", "fast", "frozen"])
def test_outage_under_load_loses_no_row(postgres_server, table, start, kind, keys):
    is_frozen = kind == "frozen"
    program = start(conninfo=table, keys=keys, has_bad=True, timeout=1 if is_frozen else 30)
    for _ in range(2):
        program.eventually_done(200)
        postgres_server.freeze() if is_frozen else postgres_server.stop(kind)
        try:
            program.eventually_failed(2 if is_frozen else 10)
        finally:
            postgres_server.thaw() if is_frozen else postgres_server.start()
    program.eventually_done(200)
    result = program.terminated()
    bad = [number for number in result["accepted"] if number % 97 == 13]
    assert result["letters"] == bad
    counts = counted(postgres_server)
    assert set(counts) == {*result["accepted"]} - {*bad}
    twice = {number for number, count in counts.items() if count > 1}
    failed = {number for batch in program.noted("failed") for number in batch}
    assert twice <= (failed if keys is None else set())


@ON_CONFLICT
def test_lost_answer_to_a_commit_repeats_the_batch_only_without_a_key(postgres_server, table, keys):
    proxy = Proxy(postgres_server.port)
    exporter = PostgresRows(f"{table} port={proxy.port}", "orders", on_conflict=keys)
    with exporting(Order, exporter) as (queue, letters):
        queue.produce(order(0))
        assert queue.flush(WAIT_S)
        AtPoint(exporter, "end", proxy.hold_answers)
        queue.produce(order(1))
        eventually(lambda: ids(postgres_server) == [0, 1], "the commit")
        proxy.cut()
        proxy.wake()
        eventually(lambda: queue.stats().held, "the end of the attempt")
        proxy.restore()
    proxy.close()
    assert not letters
    assert counted(postgres_server) == {0: 1, 1: 2 if keys is None else 1}


def no_session(server):
    """Whether the server has no session of an exporter."""
    sessions = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'batchqueue'"
    return execute(server, sessions) == [(0,)]


def is_inside(program):
    """Whether an attempt of a program has begun and not ended."""
    return len(program.noted("sent")) > len(program.noted("done")) + len(program.noted("failed"))
