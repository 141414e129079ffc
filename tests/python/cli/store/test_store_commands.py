"""`batchqueue store`: copies are whole whenever they are made, and damage is named."""

import pickle
import shutil
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from batchqueue.outputs import ParquetStore, SqliteStore, StoreError
from outputs_support.filled import COUNT, FILLED, TOTAL, at, filled, path_of, state

WRITER = """
import itertools, pickle, sys
from batchqueue.aggregation import CountMetrics, metric_type
count = metric_type("test.count", CountMetrics)
store = pickle.loads(bytes.fromhex(sys.argv[1]))
for number in itertools.count():
    with store.transaction("busy") as transaction:
        transaction.merge([count("a", 0), count("b", 86_400)])
        transaction.record("query", number, {"rows": 2})
    print(number, flush=True)
"""

HOLDER = """
import pickle, sys
from batchqueue.aggregation import CountMetrics, metric_type
count = metric_type("test.count", CountMetrics)
with pickle.loads(bytes.fromhex(sys.argv[1])).transaction("nightly") as transaction:
    transaction.merge([count("held", 0)])
    print("written", flush=True)
    sys.stdin.readline()
"""


def process(script, store):
    return subprocess.Popen(
        [sys.executable, "-c", script, pickle.dumps(store).hex()],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )


def test_reader_of_the_output_that_ends_ends_the_command(tmp_path):
    store = SqliteStore(tmp_path / "metrics.db")
    with store.transaction("nightly") as transaction:
        transaction.merge([COUNT(f"entity {number}", 0) for number in range(20_000)])
    show = ["store", "show", path_of(store), "nightly", COUNT.name, "--rows", "20000", "--json"]
    shown = subprocess.Popen(
        [sys.executable, "-m", "batchqueue", *show],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert b"entity" in shown.stdout.readline()
    shown.stdout.close()
    assert shown.stderr.read() == b""
    assert shown.wait() == 141


def test_characters_that_a_terminal_would_act_on_are_shown_as_escapes(command, tmp_path):
    store = SqliteStore(tmp_path / "metrics.db")
    with store.transaction("red \x1b[31m") as transaction:
        transaction.merge([COUNT("bell\x07", 0)])
    _, sinks = command("ls", path_of(store))[:2]
    _, rows = command("show", path_of(store), "red \x1b[31m", COUNT.name)[:2]
    assert r"red \x1b[31m" in sinks
    assert r"bell\x07" in rows
    assert "\x1b" not in sinks + rows


def test_copy_is_the_store_and_the_store_does_not_change_it(store, command, tmp_path):
    copy = tmp_path / "copy"
    assert command("backup", path_of(store), copy)[0] == 0
    with store.transaction("nightly") as transaction:
        transaction.merge([COUNT("a", 0, 100)])
    assert state(at(store, copy)) == FILLED
    assert at(store, copy).read(COUNT, "other") == [COUNT("a", 0, 7)]
    assert at(store, copy).read(TOTAL, "nightly") == [TOTAL("a", 0, 10)]


def test_copy_that_is_restored_replaces_the_store_which_is_put_aside(store, command, tmp_path):
    copy = tmp_path / "copy"
    command("backup", path_of(store), copy)
    filled_again = at(store, path_of(store))
    with filled_again.transaction("nightly") as transaction:
        transaction.record("query", 2, {})
    code, printed, _ = command("restore", copy, path_of(store))
    assert (code, state(store)) == (0, FILLED)
    _, aside = printed.splitlines()
    former = at(store, aside.removeprefix("put aside: "))
    assert state(former)[1:] == (2, [0, 1, 2])
    with store.transaction("nightly") as transaction:
        transaction.merge([COUNT("a", 0)])
        transaction.record("query", 2, {})
    assert state(store) == ({"a": 3, "b": 2}, 2, [0, 1, 2])
    assert state(at(store, copy)) == FILLED  # and can be restored again


def test_copy_can_be_restored_where_nothing_is(store, command, tmp_path):
    copy = tmp_path / "copy"
    command("backup", path_of(store), copy)
    code, printed, _ = command("restore", copy, tmp_path / "new")
    assert (code, len(printed.splitlines())) == (0, 1)
    assert state(at(store, tmp_path / "new")) == FILLED


def test_copy_made_beside_a_writer_is_whole(open_files, command, tmp_path):
    """Each of its transactions adds 1 to two metrics, which a day of data files separates."""
    store = open_files()
    writer = process(WRITER, store)
    writer.stdout.readline()
    lines = threading.Thread(target=writer.stdout.read)
    lines.start()
    marks = []
    for number in range(5):
        copy = tmp_path / f"copy-{number}"
        assert command("backup", path_of(store), copy)[0] == 0
        counts, last, epochs = state(at(store, copy), "busy")
        assert counts == {"a": last + 1, "b": last + 1}
        assert epochs[-1] == last
        marks.append(last)
    writer.kill()
    lines.join()
    writer.communicate()
    assert marks == sorted(marks)


def test_copy_does_not_replace_an_existing_file(store, command, tmp_path):
    taken = tmp_path / "taken"
    taken.write_text("mine")
    code, _, error = command("backup", path_of(store), taken)
    assert (code, taken.read_text()) == (2, "mine")
    assert "exists; give the copy another name" in error


def test_restore_is_refused_while_a_writer_is_active(store, command, tmp_path):
    copy = tmp_path / "copy"
    command("backup", path_of(store), copy)
    holder = process(HOLDER, store)
    assert holder.stdout.readline() == b"written\n"
    code, _, error = command("restore", copy, path_of(store))
    assert code == 1
    assert "stop the programs that write to" in error
    holder.communicate(b"commit\n")
    assert state(store)[0] == {"a": 2, "b": 2, "held": 1}
    assert command("restore", copy, path_of(store))[0] == 0
    assert state(store) == FILLED


def test_copy_of_another_kind_of_store_is_refused(command, tmp_path):
    filled(ParquetStore(tmp_path / "parquet"))
    filled(SqliteStore(tmp_path / "sqlite.db"))
    for copy, store in (("parquet", "sqlite.db"), ("sqlite.db", "parquet")):
        code, _, error = command("restore", tmp_path / copy, tmp_path / store)
        assert (code, "give a copy of this one" in error) == (2, True)
    assert state(SqliteStore(tmp_path / "sqlite.db")) == FILLED
    assert state(ParquetStore(tmp_path / "parquet")) == FILLED


def test_copy_below_a_file_is_refused(command, tmp_path):
    filled(SqliteStore(tmp_path / "metrics.db"))
    code, _, error = command("backup", tmp_path / "metrics.db", tmp_path / "metrics.db" / "copy")
    assert code != 0
    assert "Traceback" not in error


def test_what_is_not_a_store_is_neither_copied_nor_restored(store, command, tmp_path):
    (folder := tmp_path / "folder").mkdir()
    database = tmp_path / "other.db"
    sqlite3.connect(database).execute("CREATE TABLE mine (x)")
    (text := tmp_path / "text").write_text("no database" * 100)
    for odd in (folder, database, text):
        for arguments in (("backup", odd, tmp_path / "copy"), ("restore", odd, path_of(store))):
            code, _, error = command(*arguments)
            if arguments[0] == "restore" and odd.is_dir() != path_of(store).is_dir():
                assert (code, "give a copy of this one" in error) == (2, True), error
            else:
                assert (code, "not a" in error) == (1, True), error
        assert not (tmp_path / "copy").exists()
        code, _, error = command("check", odd)
        assert (code, "not a" in error) == (1, True)
    assert state(store) == FILLED
    assert command("restore", path_of(store), path_of(store))[0] == 2
    code, _, error = command("check", tmp_path / "absent")
    assert (code, "does not exist; give the file of a SqliteStore" in error) == (2, True)


def test_check_prints_the_sinks_of_every_store(open_store, command, postgres_server):
    store = filled(open_store())
    arguments = [path_of(store)] if hasattr(store, "path") or hasattr(store, "directory") else []
    if not arguments:
        arguments = [postgres_server.conninfo(), "--schema", store.schema]
    code, printed, error = command("check", *arguments)
    assert (code, error) == (0, "")
    assert [line.split() for line in printed.splitlines()] == [
        ["SINK", "QUERIES", "ROWS", "LAST", "COMMIT"],
        ["nightly", "1", "3", "2026-09-21", "14:13:20.500Z"],
        ["other", "1", "1", "?"],
        ["nothing", "is", "wrong"],
    ]


def test_check_changes_no_file(store, command):
    def files():
        return {path: path.read_bytes() for path in path_of(store).parent.rglob("*.*")}

    before = files()
    command("check", path_of(store))
    assert {path: content for path, content in files().items() if path in before} == before


def test_check_finds_marks_and_summaries_of_different_states(command, open_sqlite):
    store = filled(open_sqlite())
    with sqlite3.connect(store.path) as connection:
        connection.execute("UPDATE batchqueue_marks SET batch_id = 9 WHERE query_id = 'query'")
    code, _, error = command("check", store.path)
    assert code == 1
    assert (
        "wrong: sink 'nightly' has epochs of query query up to 9 according to its mark, and up to "
        "1 according to its summaries" in error
    )


def test_check_finds_damage_in_a_sqlite_file(command, open_sqlite, tmp_path):
    store = open_sqlite()
    with store.transaction() as transaction:
        transaction.merge([COUNT(str(number), 0) for number in range(5_000)])
    content = bytearray(store.path.read_bytes())
    content[40_000:44_000] = b"\xa5" * 4_000
    store.path.write_bytes(content)
    code, _, error = command("check", store.path)
    assert (code, "wrong: " in error or "malformed" in error) == (1, True)
    code, _, error = command("backup", store.path, tmp_path / "copy")
    assert (code, (tmp_path / "copy").exists()) == (1, False)
    assert "damaged" in error


@pytest.mark.parametrize("damage", ["missing", "cut"])
def test_check_finds_damage_in_a_parquet_directory(command, open_parquet, tmp_path, damage):
    store = filled(open_parquet())
    file = store.files(COUNT, "nightly")[1]
    if damage == "missing":
        file.unlink()
    else:
        file.write_bytes(file.read_bytes()[:100])
    code, _, error = command("check", store.directory)
    assert code == 1
    assert f"{file} of sink 'nightly' cannot be read" in error
    assert command("backup", store.directory, tmp_path / "copy")[0] == 1
    assert not (tmp_path / "copy").exists()


def test_check_finds_a_table_that_a_postgres_schema_lacks(command, open_postgres, postgres_server):
    import psycopg

    store = filled(open_postgres())
    arguments = (postgres_server.conninfo(), "--schema", store.schema)
    with psycopg.connect(postgres_server.conninfo()) as connection:
        connection.execute(f"DROP TABLE {store.schema}.count_metrics")
    code, _, error = command("check", *arguments)
    assert (code, 'count_metrics", which holds metrics, is missing' in error) == (1, True)
    with psycopg.connect(postgres_server.conninfo()) as connection:
        connection.execute(f"DROP TABLE {store.schema}.batchqueue_marks")
    code, _, error = command("check", *arguments)
    assert (code, "has no ledger, or a part of one" in error) == (1, True)


def test_postgres_is_referred_to_its_own_programs_without_the_password(command, tmp_path):
    address = "postgresql://spark:secret@db1/shop"
    for arguments, program in (
        (("backup", address, tmp_path / "copy"), "pg_dump --format=custom --schema=SCHEMA"),
        (("restore", tmp_path / "copy", address), "pg_restore --clean --if-exists"),
    ):
        code, printed, error = command(*arguments)
        assert (code, program in error, "secret" in printed + error) == (2, True, False)


def test_dump_of_a_postgres_schema_is_whole_and_can_be_restored(
    command, open_postgres, postgres_server
):
    store = filled(open_postgres())
    dump = postgres_server.dump(store.schema)
    with store.transaction("nightly") as transaction:
        transaction.merge([COUNT("a", 0, 100)])
        transaction.record("query", 2, {})
    postgres_server.restore(dump)
    assert state(store) == FILLED
    code, _, error = command("check", postgres_server.conninfo(), "--schema", store.schema)
    assert (code, error) == (0, "")


def test_restore_resolves_an_older_copy_beside_the_log_of_a_newer_state(
    command, open_sqlite, tmp_path
):
    store = filled(open_sqlite())
    command("backup", store.path, tmp_path / "copy")
    with store.transaction("nightly") as transaction:
        transaction.merge([COUNT("a", 0)])
    reader = sqlite3.connect(store.path)
    reader.execute("SELECT count(*) FROM batchqueue_marks").fetchall()
    with store.transaction("nightly") as transaction:
        transaction.merge([COUNT("a", 0)])
    log = Path(f"{store.path}-wal")
    left = log.read_bytes()
    reader.close()
    shutil.copy(tmp_path / "copy", store.path)
    log.write_bytes(left)
    with pytest.raises(StoreError, match="batchqueue store restore"):
        store.read(COUNT)
    code, _, error = command("check", store.path)
    assert (code, "does not continue" in error) == (1, True)
    code, printed, _ = command("restore", tmp_path / "copy", store.path)
    assert (code, state(store)) == (0, FILLED)
    aside = {
        Path(line.removeprefix("put aside: ")).read_bytes() for line in printed.splitlines()[1:]
    }
    assert left in aside
    assert command("check", store.path)[0] == 0


def test_reader_of_another_process_reads_on_while_a_sqlite_file_is_restored(
    command, open_sqlite, tmp_path
):
    store = filled(open_sqlite())
    command("backup", store.path, tmp_path / "copy")
    with store.transaction("nightly") as transaction:
        transaction.record("query", 2, {})
    script = (
        "import sqlite3, sys; connection = sqlite3.connect(sys.argv[1]);"
        "connection.execute('SELECT count(*) FROM batchqueue_marks').fetchall();"
        "print('open', flush=True); sys.stdin.readline()"
    )
    reader = subprocess.Popen(
        [sys.executable, "-c", script, store.path], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    reader.stdout.readline()
    assert command("restore", tmp_path / "copy", store.path)[0] == 0
    assert state(store) == FILLED
    reader.communicate()
    assert state(store) == FILLED


def test_directory_of_a_copy_must_exist(store, command, tmp_path):
    code, _, error = command("backup", path_of(store), tmp_path / "absent" / "copy")
    assert (code, "cannot" in error) == (1, True)
    assert isinstance(store, SqliteStore | ParquetStore)
