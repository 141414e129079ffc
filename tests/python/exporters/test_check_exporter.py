"""`check_exporter` passes on the exporters that we have and on another one, and finds mistakes."""

from contextlib import contextmanager
from dataclasses import dataclass, replace

import psycopg
import pytest

from batchqueue.exporters import Exporter, HttpBatches, NotDelivered, PostgresRows, check_exporter


@dataclass(frozen=True)
class Item:
    """Has a key, and may be refused."""

    id: int
    name: str = "x"


def key(item):
    return item.id


def make_bad_item(number):
    return Item(number, "bad")


def test_rows_in_postgres_keep_the_contract(postgres_server):
    conninfo = postgres_server.conninfo()

    @contextmanager
    def outage():
        postgres_server.stop("immediate")
        try:
            yield
        finally:
            postgres_server.start()

    def receive():
        with psycopg.connect(conninfo) as database:
            return [id for (id,) in database.execute("SELECT id FROM items ORDER BY at")]

    with psycopg.connect(conninfo) as database:
        database.execute("DROP TABLE IF EXISTS items")
        database.execute(
            "CREATE TABLE items (id int, name text CHECK (name <> 'bad'), at bigserial)"
        )
    check_exporter(
        lambda: PostgresRows(conninfo, "items"),
        receive,
        make_item=Item,
        key=key,
        make_bad_item=make_bad_item,
        outage=outage,
    )


def test_http_batches_keep_the_contract(server):
    @contextmanager
    def outage():
        server.stop()
        try:
            yield
        finally:
            server.start()

    check_exporter(
        lambda: HttpBatches(server.url),
        lambda: [item["id"] for item in server.stored],
        make_item=Item,
        key=key,
        outage=outage,
    )


class Listed(Exporter):
    """Stores in a list."""

    stored: list

    def export(self, items):
        self.stored += [item.id for item in items if item.name != "bad"]
        return [
            NotDelivered(ValueError("bad"), retry=False) if item.name == "bad" else None
            for item in items
        ]


class Forgetful(Listed):
    def export(self, items):
        return [*super().export(items[:-1]), None]


class Twice(Listed):
    def export(self, items):
        return super().export(items + items)[: len(items)]


class Backwards(Listed):
    def export(self, items):
        return super().export(items[::-1])[::-1]


class Short(Listed):
    def export(self, items):
        return super().export(items)[:-1]


class Strange(Listed):
    def export(self, items):
        super().export(items)
        return [True] * len(items)


class Patient(Listed):
    def export(self, items):
        return [
            NotDelivered(ValueError("bad")) if outcome else None
            for outcome in super().export(items)
        ]


class Late(Listed):
    """Buffers, and delivers the last items when it is closed."""

    def __init__(self):
        self.buffer = []

    def export(self, items):
        self.buffer += items
        super().export(self.buffer[:-1])
        del self.buffer[:-1]


class Closed(Listed):
    """Cannot be used after `close`."""

    is_closed = False

    def export(self, items):
        if self.is_closed:
            raise ValueError("closed")
        return super().export(items)

    def disconnect(self):
        self.is_closed = True


class Silent(Listed):
    """Reports nothing of a call that does not end."""

    def close(self, timeout=None):
        super().close(timeout)
        return []


def check(kind):
    kind.stored = []
    check_exporter(kind, lambda: kind.stored, make_item=Item, key=key, make_bad_item=make_bad_item)


def test_another_exporter_keeps_the_contract():
    check(Listed)


@pytest.mark.parametrize(
    ("kind", "claim"),
    [
        (Forgetful, "each item once, in order"),
        (Twice, "each item once, in order"),
        (Backwards, "each item once, in order"),
        (Short, "items failed"),
        (Strange, "items failed"),
        (Late, "each item once, in order"),
        (Closed, "after close, export connects again|closed"),
        (Silent, "close returns the items of a call"),
    ],
)
def test_mistake_is_found(kind, claim):
    with pytest.raises((AssertionError, ValueError), match=claim):
        check(kind)


def test_bad_items_that_are_tried_again_are_found(monkeypatch):
    import batchqueue.exporters.check as module

    monkeypatch.setattr(module, "_WAIT_S", 0.3)
    config = module._config
    monkeypatch.setattr(
        module, "_config", lambda *given: replace(config(*given), shutdown_timeout=0.1)
    )
    with pytest.raises(AssertionError, match=r"all items are done within"):
        check(Patient)
