"""The fence: no record is stored twice, and none by a worker that lost its partition."""

import itertools
import pickle
import random
import sqlite3
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import psycopg
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from psycopg.rows import dict_row

from batchqueue import ConfigError
from batchqueue.groups.errors import StaleTokenError
from batchqueue.groups.sinks import Fence
from core_support.waits import WAIT_S
from groups_support.databases import FENCE, FakeBatch, Postgres, Sqlite, batch, offsets
from outputs_support.postgres_server import postgres_server

__all__ = ["postgres_server"]

# Token, first offset, further offsets, whether the transaction is committed
STEPS = st.tuples(st.integers(1, 4), st.integers(0, 12), st.integers(0, 4), st.booleans())

SQLITE = {
    "sqlite": {},
    "sqlite-begin": {"journal": "WAL", "begin": "BEGIN", "isolation_level": None},
}
if sys.version_info >= (3, 12):
    SQLITE["sqlite-pep249"] = {"journal": "WAL", "autocommit": False}


@pytest.fixture
def postgres(postgres_server):
    with closing(Postgres(postgres_server)) as database:
        yield database


@pytest.fixture(params=[*SQLITE, "postgres"])
def database(request, tmp_path):
    if request.param == "postgres":
        yield request.getfixturevalue("postgres")
        return
    with closing(Sqlite(tmp_path, **SQLITE[request.param])) as database:
        yield database


@pytest.fixture
def threads():
    with ThreadPoolExecutor() as executor:
        yield executor


def test_batch_that_comes_again_stores_nothing_twice(database):
    connection = database.connect()
    assert database.store(connection, batch(0, 9)) == list(range(10))
    assert database.store(connection, batch(0, 9)) == []
    assert database.store(database.connect(), batch(0, 9, token=2)) == []
    assert database.stored() == list(range(10))


@pytest.mark.parametrize("base", [0, 2**63 - 15], ids=["kafka", "redis"])
def test_batch_that_overlaps_stores_the_rest(database, base):
    connection = database.connect()
    database.store(connection, batch(base, base + 9))
    assert database.store(connection, batch(base + 5, base + 14)) == [*range(base + 10, base + 15)]
    assert database.stored() == [*range(base, base + 15)]


def test_token_older_than_the_stored_one_is_refused_and_nothing_is_stored(database):
    connection = database.connect()
    database.store(connection, batch(0, 9, token=2**52))
    with pytest.raises(StaleTokenError) as raised:
        database.store(connection, batch(10, 19, token=2**52 - 1))
    assert raised.value.args == ("orders", 7, 2**52 - 1, 2**52, None)
    with database.transaction(connection), pytest.raises(StaleTokenError):
        FENCE.new(connection, batch(10, 19))  # the caller commits in spite of the refusal
    assert database.stored() == list(range(10))
    assert database.fences() == [("billing", "orders", 7, 2**52, 9)]


def test_position_never_moves_back(database):
    connection = database.connect()
    database.store(connection, batch(0, 9, token=1))
    assert database.store(connection, batch(0, 4, token=2)) == []
    assert database.fences() == [("billing", "orders", 7, 2, 9)]
    assert database.store(connection, batch(5, 10, token=2)) == [10]


def test_groups_streams_and_partitions_share_a_table_without_meeting(database):
    connection = database.connect()
    groups = ("billing", "stock", "Billing", "'; DROP TABLE stored --")
    expected = []
    for token, place in enumerate(itertools.product(groups, ("orders", "returns"), (0, 1)), 1):
        item = FakeBatch(token, batch(0, token).records, *place)
        assert database.store(connection, item) == list(range(token + 1))
        expected.append((*place, token, token))
    assert database.fences() == sorted(expected)


def test_rollback_takes_the_position_with_the_records(database):
    """Also the first time, when it takes the table as well."""
    connection = database.connect()
    for _ in range(2):
        with database.transaction(connection, committed=False):
            database.write(connection, FENCE.new(connection, batch(0, 4)))
    assert database.store(connection, batch(0, 4)) == [0, 1, 2, 3, 4]
    with database.transaction(connection, committed=False):
        database.write(connection, FENCE.new(connection, batch(5, 9, token=2)))
    assert database.fences() == [("billing", "orders", 7, 1, 4)]
    assert database.store(connection, batch(0, 9)) == [5, 6, 7, 8, 9]
    assert database.stored() == list(range(10))


def test_two_batches_in_a_transaction(database):
    connection = database.connect()
    with database.transaction(connection):
        database.write(connection, FENCE.new(connection, batch(0, 4)))
        database.write(connection, FENCE.new(connection, batch(0, 9)))
        database.write(connection, FENCE.new(connection, batch(0, 9, partition=8)))
    assert database.stored() == sorted([*range(10), *range(10)])


@pytest.mark.parametrize("committed", [True, False])
@pytest.mark.parametrize("partition", [7, 8])
@pytest.mark.parametrize("exists", [True, False])
def test_writer_waits_for_the_transaction_of_another(
    database, threads, committed, partition, exists
):
    """Also when both use the fence for the first time and would create its table."""
    if exists:
        database.store(database.connect(), batch(0, 4, partition=9))
    first, second = database.connect(), database.connect()
    with database.transaction(first, committed):
        database.write(first, FENCE.new(first, batch(0, 9)))
        call = threads.submit(database.store, second, batch(0, 14, partition=partition))
        if not exists or partition == 7:
            database.wait_until_blocked(call)
    again = [10, 11, 12, 13, 14] if committed and partition == 7 else list(range(15))
    assert call.result(WAIT_S) == again


def test_former_owner_that_waited_for_the_newer_one_is_refused(database, threads):
    database.store(database.connect(), batch(0, 4, token=4))
    newer, former = database.connect(), database.connect()
    with database.transaction(newer):
        database.write(newer, FENCE.new(newer, batch(5, 9, token=5)))
        call = threads.submit(database.store, former, batch(5, 14, token=4))
        database.wait_until_blocked(call)
    with pytest.raises(StaleTokenError, match=r"token 4 is older than 5: "):
        call.result(WAIT_S)
    assert database.stored() == list(range(10))
    assert database.fences() == [("billing", "orders", 7, 5, 9)]


def test_two_writers_of_the_same_batches_store_each_record_once(database, threads):
    start = threading.Barrier(2)

    def write(connection, seed):
        chosen = random.Random(seed)
        done = 0
        start.wait(WAIT_S)
        while done < 60:
            last = done + chosen.randrange(1, 6)
            database.store(connection, batch(done, last))
            done = last - chosen.randrange(0, 2)

    calls = [threads.submit(write, database.connect(), seed) for seed in range(2)]
    for call in calls:
        call.result(WAIT_S)
    stored = database.stored()
    assert stored == list(range(len(stored)))
    assert len(stored) > 60


@settings(max_examples=50, deadline=None)
@given(steps=st.lists(STEPS, max_size=12))
def test_fence_agrees_with_a_model_of_it(steps):
    connection = sqlite3.connect(":memory:")
    seen, stored = 0, -1
    for token, first, length, committed in steps:
        last = first + length
        if token < seen:
            with pytest.raises(StaleTokenError, match=f"token {token} is older than {seen}: "):
                FENCE.new(connection, batch(first, last, token))
        else:
            new = FENCE.new(connection, batch(first, last, token))
            assert offsets(new) == list(range(max(first, stored + 1), last + 1))
            if committed:
                connection.commit()
                seen, stored = token, max(stored, last)
        connection.rollback()
    connection.close()


@pytest.mark.parametrize(
    "options",
    [{"isolation_level": None}, *([{"autocommit": True}] if sys.version_info >= (3, 12) else [])],
)
def test_autocommit_of_sqlite_is_refused_unless_the_caller_began_a_transaction(tmp_path, options):
    connection = sqlite3.connect(tmp_path / "shop.db", **options)
    with pytest.raises(ConfigError, match=r"autocommit mode.* or execute BEGIN IMMEDIATE first"):
        FENCE.new(connection, batch(0, 9))
    assert connection.execute("SELECT name FROM sqlite_master").fetchall() == []
    for end, new in (("ROLLBACK", 10), ("COMMIT", 10), ("COMMIT", 0)):
        connection.execute("BEGIN IMMEDIATE")
        assert len(FENCE.new(connection, batch(0, 9))) == new
        connection.execute(end)
    connection.close()


def test_autocommit_of_psycopg_is_refused_unless_the_caller_began_a_transaction(postgres):
    connection = postgres.connect(autocommit=True)
    with pytest.raises(ConfigError, match=r"autocommit mode.*; connect with autocommit=False, or "):
        FENCE.new(connection, batch(0, 9))
    assert connection.execute("SELECT to_regclass('batchqueue_fence')").fetchone() == (None,)
    for undone, new in ((True, 10), (False, 10), (False, 0)):
        with connection.transaction(force_rollback=undone):
            assert len(FENCE.new(connection, batch(0, 9))) == new


def test_isolated_transaction_of_psycopg_fails_instead_of_storing_twice(postgres, threads):
    first, second = postgres.connect(), postgres.connect()
    second.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
    for exists in (False, True):
        with postgres.transaction(first):
            postgres.write(first, FENCE.new(first, batch(0, 9 + exists)))
            call = threads.submit(postgres.store, second, batch(0, 14))
            postgres.wait_until_blocked(call)
        with pytest.raises(psycopg.errors.SerializationFailure):
            call.result(WAIT_S)
    assert postgres.store(second, batch(0, 14)) == [11, 12, 13, 14]


def test_rows_and_cursors_of_the_caller_may_be_of_any_kind(tmp_path, postgres):
    lite = sqlite3.connect(tmp_path / "shop.db")
    lite.row_factory = lambda cursor, row: {"only": row}
    dictionaries = postgres.connect(row_factory=dict_row)
    numbered = postgres.connect(cursor_factory=psycopg.RawCursor)
    for connection, first in ((lite, 0), (lite, 5), (dictionaries, 0), (numbered, 5)):
        assert offsets(FENCE.new(connection, batch(0, first + 4))) == [*range(first, first + 5)]
        connection.commit()
    lite.close()


def test_pickled_fence_keeps_its_table_which_may_be_in_a_schema(database):
    fence = pickle.loads(pickle.dumps(Fence.sql(f"{database.schema}.Positions")))
    connection = database.connect()
    assert database.store(connection, batch(0, 4), fence) == [0, 1, 2, 3, 4]
    assert database.store(connection, batch(0, 4), fence) == []
    assert database.rows(f'{database.schema}."Positions"', "token") == [(1,)]


@pytest.mark.parametrize("table", ["", "a.", ".a", 'a"b', "a;b", "1a", "a.b.c", "ä", "a" * 64])
def test_name_that_is_not_plain_is_refused(table):
    with pytest.raises(ConfigError, match=r"cannot be the name of a table or column"):
        Fence.sql(table)


@pytest.mark.parametrize("connection", [None, object(), "shop.db"])
def test_other_connections_are_refused_with_what_to_do_instead(connection):
    with pytest.raises(ConfigError, match=r"; give a connection of sqlite3 or psycopg 3\. Else"):
        FENCE.new(connection, batch(0, 9))


def test_error_of_the_database_is_not_hidden(tmp_path):
    connection = sqlite3.connect(tmp_path / "shop.db")
    connection.execute("CREATE TABLE batchqueue_fence (a)")
    with pytest.raises(sqlite3.OperationalError, match=r"no column named") as raised:
        FENCE.new(connection, batch(0, 9))
    assert raised.value.__context__ is None, "it was tried twice, which doubles a wait for a lock"
    connection.close()
