"""Programs that send over HTTP and are killed, stopped, or lose their server; items by key."""

import os
import signal
from collections import Counter
from dataclasses import asdict

import pytest

from exporters_support.http_server import accept, half, lost, refuse_connection, status
from exporters_support.orders import order


def counted(server):
    """Returns how often each number has arrived, each whole."""
    with server.lock:
        items = list(server.stored)
    assert items == [asdict(order(item["id"])) for item in items]
    return Counter(item["id"] for item in items)


def each(number, act):
    """Acts on each n-th request, and takes the others."""

    def answer(server, handler, request):
        is_it = len(server.requests) % number == 0  # its client has one request at a time
        (act if is_it else accept)(server, handler, request)

    return answer


def check_after_restart(killed, server, start, last):
    """Sends what was not acknowledged, and checks that nothing but the last batch may be twice."""
    first = len(killed.done())
    assert killed.done() == set(range(first))
    start(url=server.url, first=first, last=first + 200).ended()
    counts = counted(server)
    assert set(counts) == set(range(first + 200))
    assert {number for number, count in counts.items() if count > 1} <= last
    assert set(counts.values()) <= {1, 2}
    return counts


ENDS = [refuse_connection, lost, half, accept]


@pytest.mark.parametrize("act", ENDS, ids=lambda act: act.__name__)
def test_program_that_is_killed_in_a_request_may_repeat_only_that(server, start, act):
    def kill(server, handler, request):
        os.kill(int(request.headers["X-Process"]), signal.SIGKILL)
        act(server, handler, request)

    server.script += [accept, accept, kill]
    killed = start(url=server.url)
    killed.killed()
    last = {item["id"] for item in server.requests[2].items}
    counts = check_after_restart(killed, server, start, last)
    copies = 1 if act is refuse_connection else 2
    assert {counts[number] for number in last} == {copies}


def test_program_that_is_killed_after_an_answer_repeats_the_batch(server, start):
    killed = start(url=server.url, kill_at=3, point="answered")
    killed.killed()
    *_, last = killed.noted("sent")
    counts = check_after_restart(killed, server, start, set(last))
    assert {counts[number] for number in last} == {2}


@pytest.mark.parametrize("after", [1, 333, 1_234])
def test_program_that_is_killed_at_any_moment_may_repeat_its_last_batch_only(server, start, after):
    killed = start(url=server.url)
    killed.eventually_done(after)
    killed.process.kill()
    killed.killed()
    assert killed.done() <= set(counted(server))
    *_, last = killed.noted("sent")
    check_after_restart(killed, server, start, set(last))


def test_sigterm_under_load_delivers_or_returns_every_item(server, start):
    server.always = each(7, status(400))
    program = start(url=server.url)
    program.eventually_done(500)
    result = program.terminated()
    refused = [item["id"] for request in server.requests[6::7] for item in request.items]
    assert result["letters"] == refused
    assert counted(server) == Counter({*result["accepted"]} - {*refused})


def test_sigterm_in_an_outage_delivers_or_returns_every_item(server, start):
    program = start(url=server.url, shutdown_s=3)
    program.eventually_done(100)
    server.stop()
    program.eventually_failed(3)
    result = program.terminated()
    counts, letters = counted(server), set(result["letters"])
    assert set(counts.values()) == {1}
    assert set(counts) | letters == {*result["accepted"]}
    # The server may have stored the batch whose answer the stop has cut off.
    cut_off, *_ = program.noted("failed")
    assert set(counts) & letters in (set(), set(cut_off))


def test_outage_under_load_loses_no_item(server, start):
    program = start(url=server.url)
    for _ in range(2):
        program.eventually_done(200)
        server.stop()
        program.eventually_failed(10)
        server.start()
    program.eventually_done(200)
    result = program.terminated()
    counts = counted(server)
    assert not result["letters"]
    assert set(counts) == {*result["accepted"]}
    failed = {number for batch in program.noted("failed") for number in batch}
    assert {number for number, count in counts.items() if count > 1} <= failed


@pytest.mark.parametrize("act", [lost, half, refuse_connection], ids=lambda act: act.__name__)
def test_answers_that_are_lost_under_load_repeat_what_was_stored_and_no_other(server, start, act):
    server.always = each(5, act)
    program = start(url=server.url)
    program.eventually_done(500)
    result = program.terminated()
    counts = counted(server)
    assert not result["letters"]
    assert set(counts) == {*result["accepted"]}
    cut_off = [item["id"] for request in server.requests[4::5] for item in request.items]
    repeated = Counter() if act is refuse_connection else Counter(cut_off)
    assert counts == Counter(result["accepted"]) + repeated
