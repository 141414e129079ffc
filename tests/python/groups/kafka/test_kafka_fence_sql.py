"""Workers that are killed or stopped at each moment of a transaction behind a fence.

The table has each record once, in SQLite and in PostgreSQL.
"""

import signal
import sqlite3
from contextlib import closing
from pathlib import Path
from uuid import uuid4

import psycopg
import pytest

from core_support.waits import HANG_S, eventually
from groups_support.chaos import KafkaGroup
from outputs_support.postgres_server import postgres_server

__all__ = ["postgres_server"]

pytestmark = [pytest.mark.timeout(2 * HANG_S), pytest.mark.matrix(24, name="many workers on Kafka")]


class SqliteGroup(KafkaGroup):
    """A group whose sink is a table of SQLite."""

    in_order = "rowid"

    def connected(self):
        return closing(sqlite3.connect(self.database, timeout=60))

    def rows(self, columns):
        with self.connected() as db:
            return db.execute(f"SELECT {columns} FROM stored ORDER BY {self.in_order}").fetchall()

    def stored(self):
        return self.rows('partition, "offset", value, worker, at')

    def check(self):
        super().check()
        for number in range(self.partitions):
            tokens = [token for at, token in self.rows("partition, token") if at == number]
            assert tokens == sorted(tokens), "a former owner has stored behind a newer one"


class PostgresGroup(SqliteGroup):
    """A group whose sink is a table of PostgreSQL."""

    in_order = "number"

    def __init__(self, server, broker, folder, **settings):
        schema = f"fence_{uuid4().hex}"
        self._conninfo = server.conninfo(options=f"-c search_path={schema}")
        with psycopg.connect(server.conninfo()) as db:
            db.execute(f"CREATE SCHEMA {schema}")
            db.execute(
                f'CREATE TABLE {schema}.stored (partition int, "offset" bigint, value text,'
                " worker text, token bigint, at double precision, number bigserial)"
            )
        super().__init__(broker, folder, **settings)
        self._settings["postgres"] = self._conninfo

    def connected(self):
        return psycopg.connect(self._conninfo)


@pytest.fixture(params=["sqlite", "postgres"])
def make_group(tmp_path, new_kafka_broker, request):
    made = []

    def make(**settings):
        if request.param == "postgres":
            server = request.getfixturevalue("postgres_server")
            made.append(PostgresGroup(server, new_kafka_broker, tmp_path, **settings))
        else:
            made.append(SqliteGroup(new_kafka_broker, tmp_path, **settings))
        return made[-1]

    yield make
    for group in made:
        group.close()


def state_of(process):
    """Returns the letter that Linux has for the state of a process."""
    return Path(f"/proc/{process.process.pid}/stat").read_text().rpartition(")")[2].split()[0]


@pytest.mark.parametrize("moment", ["before", "inside", "after"])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
@pytest.mark.parametrize("protocol", ["consumer", "classic"])
def test_worker_that_is_interrupted_in_its_transaction(make_group, protocol, number, moment):
    group = make_group(protocol=protocol, handler_s=0.1)
    group.start("a", "b")
    interrupted = group.processes["a"]
    interrupted.order(f"{moment} {number}")
    group.send(4_000)
    eventually(lambda: state_of(interrupted) in "TZ", "it has interrupted itself")
    del group.processes["a"]
    group.settles()  # b owns everything
    group.send(1_000)
    if number == signal.SIGKILL:
        interrupted.kill()
    else:
        group.processes["a"] = interrupted
        interrupted.signal(signal.SIGCONT)
        group.settles()
    group.check()
