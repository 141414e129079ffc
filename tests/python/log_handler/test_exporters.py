"""Exporters as targets: a service refuses some records, and others are tried again."""

import json
import logging
from collections import Counter

import psycopg
import pytest

from batchqueue.exporters import HttpBatches, PostgresRows
from batchqueue.logging import QueueHandler
from core_support.waits import WAIT_S
from exporters_support.http_server import bulk, http_server
from outputs_support.postgres_server import postgres_server

__all__ = ["postgres_server"]


@pytest.fixture
def server():
    with http_server() as server:
        yield server


def kept_by(exporter):
    """Returns the batches that an exporter remembers, because they come again."""
    return exporter._exporter_state._dead._batches


@pytest.mark.parametrize("attempts", [None, 3])
def test_records_that_a_service_refused_are_not_sent_again_with_the_others(add, server, attempts):
    tries, lost = Counter(), []

    def result(_, document):
        message = document["message"]
        tries[message] += 1
        if message == "bad":
            return 400
        is_busy = message == "late" and (attempts or tries["late"] < 5)
        return 503 if is_busy else 201

    server.always = bulk(result)
    exporter = HttpBatches(server.url, format="bulk")
    log, handler = add(
        exporter,
        items="dicts",
        max_delay_ms=60_000,
        retry={"attempts": attempts, "backoff_ms": 0},
        fallback=lambda records: lost.extend(each["message"] for each in records),
    )
    for message in ["first", "bad", "late", "last"]:
        log.info(message)
    assert handler.flush(WAIT_S)
    assert tries == {"first": 1, "bad": 1, "late": attempts or 5, "last": 1}
    assert lost == (["bad", "late"] if attempts else ["bad"])
    assert not kept_by(exporter)
    assert not handler._targets[0]._tried_again


@pytest.mark.parametrize("fallback", [None, len])
def test_batches_that_are_given_up_leave_nothing_behind(server, fallback):
    server.always = bulk(lambda _, document: 400 if document["message"] == "bad" else 503)
    exporter = HttpBatches(server.url, format="bulk")
    retry = {"attempts": 2, "backoff_ms": 0}
    handler = QueueHandler(exporter, items="dicts", retry=retry, fallback=fallback)
    for _ in range(10):
        for message in ["bad", "late"]:
            handler.handle(logging.makeLogRecord({"msg": message}))
        assert handler.flush(WAIT_S)
    stats = handler.stats()
    assert (stats.failed, stats.kept) == ((20, 0) if fallback is None else (0, 20))
    assert not kept_by(exporter)
    assert not handler._targets[0]._tried_again
    handler.close()


def test_values_of_extra_that_are_not_json_are_sent_by_a_function(add, server):
    exporter = HttpBatches(
        server.url, format="ndjson", dumps=lambda line: json.dumps(line, default=str)
    )
    log, handler = add(exporter, items="dicts")
    log.info("failed", extra={"error": KeyError("oslo"), "tags": {7}})
    assert handler.flush(WAIT_S)
    (line,) = server.stored
    assert (line["message"], line["error"], line["tags"]) == ("failed", "'oslo'", "{7}")


def test_records_become_rows_by_a_function(add, postgres_server):
    with psycopg.connect(postgres_server.conninfo(), autocommit=True) as database:
        database.execute("DROP TABLE IF EXISTS logs")
        database.execute("CREATE TABLE logs (time timestamptz, message text, error text)")
        exporter = PostgresRows(
            postgres_server.conninfo(),
            "logs",
            columns=("time", "message", "error"),
            row=lambda line: (line["time"], line["message"], line.get("exc_text")),
        )
        log, handler = add(exporter, items="dicts")
        log.info("first")
        try:
            raise KeyError("oslo")
        except KeyError:
            log.exception("second")
        assert handler.flush(WAIT_S)
        rows = database.execute("SELECT message, error FROM logs ORDER BY time").fetchall()
    assert rows[0] == ("first", None)
    assert rows[1][1].endswith("KeyError: 'oslo'")
    assert handler.stats().delivered == 2
