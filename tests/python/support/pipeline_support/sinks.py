"""Sinks that keep what they got, and may hang or raise."""

import json
import sqlite3
import threading
from contextlib import closing

from core_support.waits import WAIT_S


class Kept:
    """A sink that keeps the numbers of the chunks, in order."""

    def __init__(self, batch_rows=500):
        self.batch_rows = batch_rows
        self.numbers = []
        self.writes = []
        self.chunks = []

    def write(self, chunks):
        self.writes.append(len(chunks))
        self.chunks += chunks
        for chunk in chunks:
            self.numbers += chunk["n"].to_pylist()


class Gated(Kept):
    """A sink whose writes wait until it is opened, from the n-th write on."""

    def __init__(self, batch_rows=500, after=0):
        super().__init__(batch_rows)
        self.after = after
        self.entered = threading.Event()
        self.gate = threading.Event()

    def write(self, chunks):
        if len(self.writes) >= self.after:
            self.entered.set()
            self.gate.wait(10 * WAIT_S)
        super().write(chunks)


class Ledger:
    """A transactional sink: numbers and cuts in a database, each cut in one transaction."""

    def __init__(self, path, batch_rows=500):
        self.path = str(path)
        self.batch_rows = batch_rows
        self.held = []
        self.skipped_commits = 0

    def open(self, pipeline):
        self.held = []

    def write(self, chunks):
        for chunk in chunks:
            self.held += chunk["n"].to_pylist()

    def commit(self, cut, positions):
        last = self.last_cut()
        assert cut == (0 if last is None else last[0]) + 1
        with closing(self._connected()) as connection, connection:
            connection.executemany("INSERT INTO numbers VALUES (?)", [(n,) for n in self.held])
            connection.execute("INSERT INTO cuts VALUES (?, ?)", (cut, json.dumps(dict(positions))))
        self.held = []

    def last_cut(self):
        with closing(self._connected()) as connection:
            row = connection.execute("SELECT * FROM cuts ORDER BY number DESC LIMIT 1").fetchone()
        return None if row is None else (row[0], json.loads(row[1]))

    @property
    def numbers(self):
        with closing(self._connected()) as connection:
            return sorted(n for (n,) in connection.execute("SELECT n FROM numbers"))

    @property
    def cuts(self):
        with closing(self._connected()) as connection:
            return [n for (n,) in connection.execute("SELECT number FROM cuts ORDER BY number")]

    def _connected(self):
        connection = sqlite3.connect(self.path, timeout=30)
        connection.execute("CREATE TABLE IF NOT EXISTS numbers (n INTEGER)")
        connection.execute("CREATE TABLE IF NOT EXISTS cuts (number INTEGER, positions TEXT)")
        return connection
