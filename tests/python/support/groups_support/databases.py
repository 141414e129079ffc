"""Databases with a fence, and batches that are stored there."""

import itertools
import sqlite3
from contextlib import closing, contextmanager
from dataclasses import dataclass

import psycopg

from batchqueue.groups.record import Record
from batchqueue.groups.sinks import Fence
from core_support.waits import WAIT_S, eventually

FENCE = Fence.sql()


@dataclass
class FakeBatch:
    token: int
    records: list
    group: str = "billing"
    stream: str = "orders"
    partition: int = 7
    kind: str = ""

    @property
    def last(self):
        return self.records[-1].offset


def batch(first, last, token=1, **place):
    """Returns a batch with the offsets from `first` to `last`."""
    records = [Record(f"value {offset}", None, offset, 0) for offset in range(first, last + 1)]
    return FakeBatch(token, records, **place)


def offsets(records):
    return [record.offset for record in records]


class Database:
    """An empty database with a table of what handlers stored. It remembers its connections."""

    placeholder = "?"
    begin = None

    def __init__(self):
        self.opened = []
        with self.transaction(self.connect()) as connection:
            connection.execute("CREATE TABLE stored (number bigint)")

    def wait_until_blocked(self, call):
        """Returns when a call waits for another transaction, if the database shows that."""

    @contextmanager
    def transaction(self, connection, committed=True):
        if self.begin:
            connection.execute(self.begin)
        try:
            yield connection
        except BaseException:
            connection.rollback()
            raise
        connection.commit() if committed else connection.rollback()

    def store(self, connection, item, fence=FENCE):
        """Does what a handler does; returns the offsets that it stored."""
        with self.transaction(connection):
            return self.write(connection, fence.new(connection, item))

    def write(self, connection, records):
        insert = f"INSERT INTO stored VALUES ({self.placeholder})"
        connection.cursor().executemany(insert, [(offset,) for offset in offsets(records)])
        return offsets(records)

    def rows(self, table, columns="*"):
        with self.transaction(self.connect()) as connection:
            return sorted(connection.execute(f"SELECT {columns} FROM {table}").fetchall())

    def stored(self):
        return [number for (number,) in self.rows("stored")]

    def fences(self):
        return self.rows("batchqueue_fence")

    def close(self):
        for connection in self.opened:
            connection.close()


class Sqlite(Database):
    """A file."""

    schema = "main"

    def __init__(self, folder, journal="DELETE", begin=None, **options):
        self.path = folder / "shop.db"
        self.begin = begin
        self.options = {"timeout": WAIT_S, "check_same_thread": False, **options}
        with closing(sqlite3.connect(self.path)) as connection:
            connection.execute(f"PRAGMA journal_mode = {journal}")
        super().__init__()

    def connect(self):
        self.opened.append(sqlite3.connect(self.path, **self.options))
        return self.opened[-1]


class Postgres(Database):
    """A schema."""

    placeholder = "%s"
    numbers = itertools.count()

    def __init__(self, server):
        self.schema = f"fence_{next(self.numbers)}"
        self.conninfo = server.conninfo(
            options=f"-c search_path={self.schema}", application_name=self.schema
        )
        with psycopg.connect(server.conninfo()) as connection:
            connection.execute(f"CREATE SCHEMA {self.schema}")
        super().__init__()

    def connect(self, **options):
        self.opened.append(psycopg.connect(self.conninfo, **options))
        return self.opened[-1]

    def wait_until_blocked(self, call):
        blocked = (
            "SELECT count(*) > 0 FROM pg_stat_activity"
            " WHERE application_name = %s AND wait_event_type = 'Lock'"
        )
        watcher = self.connect(autocommit=True)
        eventually(
            lambda: call.done() or watcher.execute(blocked, (self.schema,)).fetchone()[0],
            "the wait for a lock",
        )
