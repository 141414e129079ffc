"""Items over HTTP: what each answer means for them; sent = stored + dead."""

import logging
import os
import socket
from collections import Counter
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from email.utils import format_datetime
from typing import NamedTuple
from uuid import UUID

import pytest

from batchqueue import BatchQueue, ConfigError, RetryPolicy
from batchqueue.exporters import HttpBatches, HttpRefused, NotDelivered
from core_support.queues import config
from core_support.waits import WAIT_S, eventually
from exporters_support.http_server import (
    accept,
    accept_and_close,
    bulk,
    drip,
    half,
    hang,
    hang_stored,
    lost,
    refuse_connection,
    status,
)
from exporters_support.queues import QUICK, exporting, send

httpx = pytest.importorskip("httpx")


@dataclass
class Event:
    """An item."""

    id: int
    at: object = None


class Point(NamedTuple):
    """Another one."""

    x: int


def numbers(count, start=0):
    return [{"id": number} for number in range(start, start + count)]


# Requests.


@pytest.mark.parametrize("gzip", [False, True])
@pytest.mark.parametrize("format", ["json", "ndjson"])
def test_batch_is_one_request(server, format, gzip):
    exporter = HttpBatches(server.url, format=format, gzip=gzip, headers={"X-Key": "k"})
    items = [{"id": 1, "text": 'ä\n"\u2028'}, {"id": 2, "text": None}]
    assert not send(dict, exporter, items)
    assert server.stored == items
    (request,) = server.requests
    assert request.method == "POST"
    assert request.headers["X-Key"] == "k"
    kind = {"json": "application/json", "ndjson": "application/x-ndjson"}[format]
    assert request.headers["Content-Type"] == kind
    assert request.headers.get("Content-Encoding") == ("gzip" if gzip else None)


def test_items_are_encoded_by_their_fields_or_a_function(server):
    at = datetime(2024, 2, 29, tzinfo=UTC)
    exporter = HttpBatches(server.url, method="PUT")
    assert not send(Event, exporter, [Event(1, at), Event(2, Event(3, date(2024, 1, 1)))])
    assert not send(Point, HttpBatches(server.url, row=lambda x: x.x), [Point(7)])
    assert not send(Event, HttpBatches(server.url), [Event(4, [Decimal("1.10"), UUID(int=1)])])
    assert server.stored == [
        {"id": 1, "at": "2024-02-29T00:00:00+00:00"},
        {"id": 2, "at": {"id": 3, "at": "2024-01-01"}},
        7,
        {"id": 4, "at": ["1.10", "00000000-0000-0000-0000-000000000001"]},
    ]
    assert server.requests[0].method == "PUT"


@pytest.mark.parametrize("bad", [float("nan"), object(), "\ud800", b"x"])
def test_item_that_is_not_json_is_a_dead_letter_alone(server, bad):
    letters = send(Event, HttpBatches(server.url), [Event(1), Event(2, bad), Event(3)])
    assert [letter.item.id for letter in letters] == [2]
    assert [item["id"] for item in server.stored] == [1, 3]


def test_headers_may_be_made_for_each_request(server):
    exporter = HttpBatches(server.url, headers=lambda items: {"X-Key": str(items[0]["id"])})
    send(dict, exporter, numbers(3, 5), max_batch_items=1)
    assert [request.headers["X-Key"] for request in server.requests] == ["5", "6", "7"]


WRONG_HEADERS = [
    {"Authorization": "Bearer secret\n"},
    {"Authorization": " secret"},
    {"X-Name": "secret ä"},
    {"X Name": "secret"},
    {"X-Name": 5},
    {b"X-Name": "secret"},
]


@pytest.mark.parametrize("headers", WRONG_HEADERS, ids=repr)
def test_header_that_cannot_be_sent_is_refused_without_showing_its_value(server, headers):
    with pytest.raises(ConfigError, match=r"header .*(Authorization|Name)") as refused:
        HttpBatches(server.url, headers=headers)
    assert "secret" not in str(refused.value)

    letters = send(dict, HttpBatches(server.url, headers=lambda _: headers), numbers(2))
    assert [(type(letter.error), letter.attempts) for letter in letters] == [(ConfigError, 1)] * 2
    assert not server.requests


def test_headers_that_cannot_be_made_now_are_tried_again(server):
    """As when the service that gives the token is away; the first half was delivered."""
    tries = iter([None, None, OSError("no token"), None])

    def headers(items):
        if error := next(tries):
            raise error
        return {}

    server.script.append(status(413))
    assert not send(dict, HttpBatches(server.url, headers=headers), numbers(4))
    assert server.stored == numbers(4)


def test_password_of_the_address_is_sent_and_never_shown(server, caplog):
    url = server.url.replace("http://", "http://me:secret@")
    exporter = HttpBatches(url)
    server.script.append(status(400))
    with caplog.at_level(logging.DEBUG):
        letters = send(dict, exporter, numbers(1))
    assert server.requests[0].headers["Authorization"] == "Basic bWU6c2VjcmV0"
    assert "127.0.0.1" in caplog.text
    assert "secret" not in f"{exporter!r} {letters} {caplog.text}"


def test_small_packets_are_not_held_back_and_connections_are_reused(server):
    exporter = HttpBatches(server.url)
    opened = []
    make = socket.create_connection
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            socket, "create_connection", lambda *a, **k: opened.append(make(*a, **k)) or opened[-1]
        )
        for number in range(3):
            exporter.consume([{"id": number}])
    (connection,) = opened
    assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
    exporter.close()
    assert connection.fileno() == -1
    assert {request.connection for request in server.requests} == {0}


# Answers.


@pytest.mark.parametrize("code", [408, 425, 429, 500, 502, 503, 504])
def test_answer_that_may_change_is_tried_again(server, code):
    server.script += [status(code), status(code)]
    assert not send(dict, HttpBatches(server.url), numbers(5))
    assert server.stored == numbers(5)
    assert len(server.requests) == 3


@pytest.mark.parametrize("code", [301, 400, 401, 403, 404, 409, 422])
def test_answer_that_will_not_change_makes_dead_letters_at_the_first_attempt(server, code):
    server.script.append(status(code, b"because", Location="/other"))
    letters = send(dict, HttpBatches(server.url), numbers(3))
    assert [letter.item for letter in letters] == numbers(3)
    assert {letter.attempts for letter in letters} == {1}
    assert {letter.error.status for letter in letters} == {code}
    shown = "moved to /other" if code == 301 else "because"
    assert shown in str(letters[0].error)
    assert not server.stored


def test_statuses_that_are_tried_again_can_be_given(server):
    server.script += [status(401), status(429)]
    exporter = HttpBatches(server.url, retry_statuses=(401,))
    letters = send(dict, exporter, numbers(1))
    assert [letter.error.status for letter in letters] == [429]
    assert len(server.requests) == 2


@pytest.mark.parametrize(
    ("headers", "pauses"),
    [
        ({"Retry-After": "3"}, [3]),
        ({"Retry-After": "12"}, [5, 5, 2]),
        ({"Retry-After": "100000"}, [5, 5, 5, 5]),
        ({"Retry-After": "2.5"}, [2.5]),
        ({"Retry-After": "0"}, []),
        ({"Retry-After": "inf"}, []),
        ({"Retry-After": "soon"}, []),
        ({"Retry-After": "-1"}, []),
        ({}, []),
        (
            {
                "Retry-After": "Fri, 31 Dec 1999 23:59:59 GMT",
                "Date": "Fri, 31 Dec 1999 23:59:56 GMT",
            },
            [3],
        ),
        ({"Retry-After": "Fri, 31 Dec 1999 23:59:59 GMT", "Date": "?"}, []),
    ],
)
def test_retry_after_is_respected_up_to_a_limit(server, clock, headers, pauses):
    server.script.append(with_headers(429, headers))
    exporter = HttpBatches(server.url, max_retry_after=20)
    assert not send(dict, exporter, numbers(2))
    assert clock.pauses == pauses
    assert len(server.requests) == 2
    assert server.stored == numbers(2)


def test_retry_after_with_a_date_is_compared_with_this_clock_if_the_answer_has_no_date(
    server, clock
):
    soon = format_datetime(datetime.fromtimestamp(2_000_000_000, UTC), usegmt=True)
    server.script.append(with_headers(503, {"Retry-After": soon}, is_dated=False))
    assert not send(dict, HttpBatches(server.url, max_retry_after=4), numbers(1))
    assert clock.pauses == ([4] if datetime.now(UTC).timestamp() < 2_000_000_000 else [])


def with_headers(code, headers, is_dated=True):
    def act(_server, handler, _request):
        handler.send_response_only(code)
        for name, value in headers.items():
            handler.send_header(name, value)
        if is_dated and "Date" not in headers:
            handler.send_header("Date", handler.date_time_string())
        handler.send_header("Content-Length", "0")
        handler.end_headers()

    return act


def test_retry_after_does_not_outlast_a_shutdown(server):
    server.always = status(429, **{"Retry_After": "3600"})
    letters = []
    queue = BatchQueue("end", config(retry=QUICK, max_batch_items=2))
    queue.add_handler(
        dict, HttpBatches(server.url, max_retry_after=3_600), dead_letter=letters.extend
    )
    queue.produce_many(numbers(7))
    eventually(lambda: server.requests)
    assert queue.shutdown(3) == 0
    assert [letter.item for letter in letters] == numbers(7)
    assert {letter.error.status for letter in letters} == {429}


def test_shutdown_sends_for_the_last_time_before_the_time_that_the_server_asked_for(server):
    server.script.append(status(429, **{"Retry_After": "3600"}))
    exporter = HttpBatches(server.url, max_retry_after=3_600)
    queue = BatchQueue("end", config(retry=QUICK))
    queue.add_handler(dict, exporter)
    queue.produce_many(numbers(3))
    eventually(lambda: server.requests)
    assert queue.shutdown(WAIT_S) == 0
    assert {item["id"] for item in server.stored} == {0, 1, 2}


def test_half_that_was_delivered_is_not_sent_again_when_the_other_is_lost(server):
    server.script += [status(413), accept, refuse_connection]
    assert not send(dict, HttpBatches(server.url), numbers(4))
    assert server.stored == numbers(4)


@pytest.mark.parametrize("gzip", [False, True])
def test_batch_that_is_too_large_is_halved_and_an_item_that_is_too_large_is_dead(server, gzip):
    server.most_bytes = 400
    items = [{"id": number, "text": "x" * 20} for number in range(100)]
    items[30]["text"] = os.urandom(500).hex()
    exporter = HttpBatches(server.url, format="ndjson", gzip=gzip)
    letters = send(dict, exporter, items)
    assert [letter.item["id"] for letter in letters] == [30]
    assert [letter.error.status for letter in letters] == [413]
    assert server.stored == items[:30] + items[31:]


# Connections.


@pytest.mark.parametrize("act", [lost, half, refuse_connection], ids=lambda act: act.__name__)
def test_lost_answer_is_unknown_and_tried_again(server, act):
    server.script += [act, act]
    assert not send(dict, HttpBatches(server.url), numbers(3))
    counts = Counter(item["id"] for item in server.stored)
    assert set(counts) == {0, 1, 2}
    assert set(counts.values()) == ({1} if act is refuse_connection else {3})


@pytest.mark.parametrize("act", [hang, hang_stored, drip], ids=lambda act: act.__name__)
def test_answer_that_does_not_end_is_tried_again(server, act):
    server.script.append(act)
    exporter = HttpBatches(server.url, timeout=0.2)
    assert not send(dict, exporter, numbers(3))
    copies = 2 if act is hang_stored else 1
    assert Counter(item["id"] for item in server.stored) == dict.fromkeys(range(3), copies)


def test_answer_that_is_there_counts_however_long_the_request_took(server, clock):
    def slow(server, handler, request):
        clock.now += 100
        accept(server, handler, request)

    server.script.append(slow)
    assert not send(dict, HttpBatches(server.url, timeout=30), numbers(3))
    assert server.stored == numbers(3)


def test_server_that_closes_idle_connections_costs_no_item(server):
    server.always = accept_and_close
    with exporting(dict, HttpBatches(server.url), max_batch_items=1) as (queue, letters):
        queue.produce_many(numbers(50))
    assert not letters
    assert {item["id"] for item in server.stored} == set(range(50))


def test_server_that_is_restarted_gets_every_item(server):
    exporter = HttpBatches(server.url, connect_timeout=5)
    with exporting(dict, exporter, max_batch_items=10) as (queue, letters):
        queue.produce_many(numbers(100))
        eventually(lambda: server.stored)
        server.stop()
        queue.produce_many(numbers(100, 100))
        eventually(lambda: queue.stats().held)
        server.start()
    assert not letters
    assert {item["id"] for item in server.stored} == set(range(200))


def test_child_of_a_fork_uses_its_own_connection(server):
    exporter = HttpBatches(server.url)
    exporter.consume(numbers(1))
    child = os.fork()
    if child == 0:
        code = 1
        try:
            exporter.consume(numbers(1, 1))
            exporter.close()
            code = 7
        finally:
            os._exit(code)
    _, code = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(code) == 7
    exporter.consume(numbers(1, 2))
    assert server.stored == numbers(3)
    assert [request.connection for request in server.requests] == [0, 1, 0]
    exporter.close()


def test_exporters_side_by_side_send_each_item_once(server):
    with BatchQueue("side by side", config(4, max_batch_items=50, retry=QUICK)) as queue:
        queue.add_handler_factory(dict, lambda: HttpBatches(server.url), partitions=4)
        queue.produce_many(numbers(4_000))
    assert sorted(item["id"] for item in server.stored) == list(range(4_000))


# Answers that name items.


def test_bulk_answers_for_each_item(server):
    tries = Counter()

    def result(action, document):
        number = document["id"]
        tries[number] += 1
        if number % 5 == 1:
            return 400
        if number % 5 == 2 and tries[number] < 3:
            return 429
        return 503 if number % 5 == 3 and tries[number] < 2 else 201

    server.always = bulk(result)
    exporter = HttpBatches(
        server.url,
        format="bulk",
        action=lambda item: {"create": {"_index": "i", "_id": item["id"]}},
    )
    letters = send(dict, exporter, numbers(100))

    assert [letter.item["id"] for letter in letters] == list(range(1, 100, 5))
    assert {letter.error.status for letter in letters} == {400}
    assert "error_400" in str(letters[0].error)
    stored = [item["id"] for item in server.stored]
    assert sorted(stored) == [number for number in range(100) if number % 5 != 1]
    assert tries == {n: {1: 1, 2: 3, 3: 2}.get(n % 5, 1) for n in range(100)}
    assert server.requests[0].items[:2] == [{"create": {"_index": "i", "_id": 0}}, {"id": 0}]


@pytest.mark.parametrize("is_done", [False, True])
def test_conflict_of_a_create_is_done_only_if_asked(server, is_done):
    server.always = bulk(lambda *_: 409)
    exporter = HttpBatches(
        server.url, format="bulk", action={"create": {}}, conflict_is_done=is_done
    )
    letters = send(dict, exporter, numbers(2))
    assert [letter.error.status for letter in letters] == ([] if is_done else [409, 409])
    index = HttpBatches(server.url, format="bulk", conflict_is_done=is_done)
    assert len(send(dict, index, numbers(2))) == 2


@pytest.mark.parametrize("body", [b"", b"not json", b"[]", b'{"errors": true, "items": []}'])
def test_bulk_answer_that_cannot_be_read_is_unknown(server, body):
    server.script.append(status(200, body))
    server.always = bulk(lambda *_: 201)
    assert not send(dict, HttpBatches(server.url, format="bulk"), numbers(3))
    assert server.stored == numbers(3)


def test_answer_of_another_api_is_read_by_a_function(server):
    def answer(response, items):
        bad = response.json()["bad"]
        again = response.json().get("again", ())
        return [
            NotDelivered(HttpRefused(400, "bad"), retry=False)
            if item["id"] in bad
            else NotDelivered(ConnectionError("again"))
            if item["id"] in again
            else None
            for item in items
        ]

    server.script += [status(200, b'{"bad": [1], "again": [2]}'), status(200, b'{"bad": []}')]
    exporter = HttpBatches(server.url, answer=answer)
    letters = send(dict, exporter, numbers(4))
    assert [letter.item["id"] for letter in letters] == [1]
    assert [[item["id"] for item in request.items] for request in server.requests] == [
        [0, 1, 2, 3],
        [2],
    ]


def test_client_may_be_made_by_the_program(server):
    made = []
    exporter = HttpBatches(
        server.url,
        client=lambda: made.append(httpx.Client(headers={"X-Own": "1"})) or made[-1],
    )
    exporter.consume(numbers(1))
    exporter.consume(numbers(1, 1))
    exporter.close()
    assert server.requests[1].headers["X-Own"] == "1"
    assert [client.is_closed for client in made] == [True]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"url": "host:80"}, "url"),
        ({"url": "http://"}, "url"),
        ({"format": "xml"}, "format"),
        ({"gzip": 1}, "gzip"),
        ({"timeout": 0}, "timeout"),
        ({"headers": "x"}, "headers"),
        ({"method": "P OST"}, "method"),
        ({"method": None}, "method"),
        ({"action": {}}, "action"),
        ({"format": "bulk", "answer": len}, "answer"),
        ({"retry_statuses": ["429"]}, "retry_statuses"),
        ({"retry_statuses": 429}, "retry_statuses"),
    ],
)
def test_invalid_argument_is_refused(options, words):
    with pytest.raises(ConfigError, match=words):
        HttpBatches(**{"url": "http://host", **options})


def test_flush_waits_for_what_is_tried_again(server):
    server.script += [status(503)] * 3
    with exporting(dict, HttpBatches(server.url)) as (queue, _):
        queue.produce_many(numbers(3))
        assert queue.flush(WAIT_S)
        assert server.stored == numbers(3)


def test_attempts_that_are_used_up_make_dead_letters(server):
    server.always = status(503)
    retry = RetryPolicy(attempts=3, backoff_ms=1)
    letters = send(dict, HttpBatches(server.url), numbers(2), retry=retry)
    assert [(letter.error.status, letter.attempts) for letter in letters] == [(503, 3)] * 2
    assert len(server.requests) == 3
