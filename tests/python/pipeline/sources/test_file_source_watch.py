"""A watched directory is read as it grows: each file once, across restarts and crashes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from batchqueue.base.background_log import flush_log
from batchqueue.exceptions import ConfigError
from batchqueue.pipeline import FileSource, Limit, PositionError, SourceChangedError
from batchqueue.pipeline.testing import check_source
from core_support.waits import WAIT_S

EVERYTHING = Limit(1 << 31, 1 << 40)


def write(path: Path, *numbers: int) -> None:
    hidden = path.parent / f".{path.name}"
    pq.write_table(pa.table({"n": pa.array(numbers, pa.int64())}), hidden, row_group_size=2)
    hidden.rename(path)


@pytest.fixture
def inbox(tmp_path: Path) -> Path:
    (tmp_path / "in").mkdir()
    return tmp_path / "in"


def watch(inbox: Path, **settings) -> FileSource:
    settings = {"listing": inbox.parent / "listing", "watch_interval_s": 0} | settings
    return FileSource(inbox, watch=True, **settings)


def drain(source: FileSource, at, limit: Limit = EVERYTHING):
    """Returns all rows there are, and the position behind them."""
    rows, patience = [], 2  # a file is taken by the second scan that finds it
    while patience:
        plan = source.plan(at, limit)
        for split in plan.splits:
            rows += [n for batch in source.read(split) for n in batch["n"].to_pylist()]
        at = json.loads(json.dumps(plan.end))
        patience = 2 if plan.splits else patience - 1
    return rows, at


def test_files_are_read_as_they_come_and_once(inbox: Path):
    source = watch(inbox)
    assert not source.bounded
    at = source.initial()
    assert drain(source, at) == ([], at)
    write(inbox / "5.parquet", 1, 2, 3)
    rows, at = drain(source, at)
    assert rows == [1, 2, 3]
    write(inbox / "4.parquet", 4)  # its name sorts before, and its rows still come after
    write(inbox / "6.parquet", 5)
    restarted = watch(inbox)
    assert restarted.plan(at, EVERYTHING).splits == ()
    assert drain(restarted, at)[0] == [4, 5]
    assert drain(source, source.initial())[0] == [1, 2, 3, 4, 5]
    assert source.lag(at)["files"].records == 2
    assert source.lag(at)["files"].seconds >= 0


@pytest.mark.parametrize("rows", [1, 3, 1_000])
def test_replay_gives_the_splits_that_were_planned_before_more_files_came(inbox: Path, rows: int):
    source = watch(inbox)
    at, planned = source.initial(), []
    for number in range(4):
        write(inbox / f"{9 - number}.parquet", *range(10 * number, 10 * number + 5))
        for _ in range(8):
            plan = source.plan(at, Limit(rows, 1 << 20))
            planned += plan.splits
            at = plan.end
    for replayed in (source, watch(inbox)):
        assert list(replayed.between(source.initial(), at)) == planned
        for split in planned:
            assert list(replayed.between(split.start, split.end)) == [split]
    assert len(planned) == 12


def test_watched_source_keeps_the_contract(inbox: Path):
    for number in range(5):
        write(inbox / f"{number}.parquet", *range(number, number + 5))
    source = watch(inbox)
    drain(source, source.initial())
    check_source(source, rows=25)


def test_files_that_are_being_written_wait(inbox: Path):
    source = watch(inbox)
    at = source.initial()
    write(inbox / "whole.parquet", 1)
    content = (inbox / "whole.parquet").read_bytes()
    (inbox / "grows.parquet").touch()
    (inbox / "_temporary").mkdir()
    (inbox / "_temporary" / "x.parquet").write_bytes(content)
    (inbox / ".x.parquet").write_bytes(content)
    for size in (100, 200, len(content)):
        (inbox / "grows.parquet").write_bytes(content[:size])
        source.plan(at, EVERYTHING)
    rows, _ = drain(source, at)
    assert rows == [1, 1]


def test_search_waits_for_the_interval(inbox: Path):
    source = watch(inbox, watch_interval_s=3_600)
    at = source.initial()
    source.plan(at, EVERYTHING)
    write(inbox / "1.parquet", 1)
    assert drain(source, at)[0] == []
    assert drain(watch(inbox), at)[0] == [1]


def test_schema_has_to_be_given_before_the_first_file(inbox: Path):
    source = watch(inbox)
    with pytest.raises(ConfigError, match=r"no file has come yet.*give `schema`"):
        source.schema()
    write(inbox / "1.parquet", 1)
    drain(source, source.initial())
    assert source.schema() == pa.schema({"n": pa.int64()})
    assert watch(inbox, schema=source.schema()).schema() == source.schema()


def test_file_that_was_read_may_be_deleted(inbox: Path):
    source = watch(inbox)
    write(inbox / "1.parquet", 1)
    _, at = drain(source, source.initial())
    (inbox / "1.parquet").unlink()
    write(inbox / "2.parquet", 2)
    restarted = watch(inbox)
    assert drain(restarted, at)[0] == [2]
    assert restarted.schema().names == ["n"]
    with pytest.raises(SourceChangedError, match=r"1\.parquet was listed .* and is gone"):
        drain(watch(inbox), source.initial())


def test_file_that_is_written_again_is_logged_and_not_read_twice(inbox: Path, caplog):
    source = watch(inbox)
    write(inbox / "1.parquet", 1)
    _, at = drain(source, source.initial())
    write(inbox / "1.parquet", 1, 2)
    assert drain(source, at)[0] == []
    assert flush_log(WAIT_S)
    assert caplog.text.count("write new rows to new files") == 1


def test_listing_that_was_lost_is_noticed(inbox: Path):
    source = watch(inbox)
    write(inbox / "1.parquet", 1, 2, 3)
    middle = source.initial()
    while not (plan := source.plan(middle, Limit(1, 1))).splits:
        pass
    listing = inbox.parent / "listing"
    lines = listing.read_bytes().splitlines(keepends=True)
    listing.write_bytes(lines[0])
    with pytest.raises(SourceChangedError, match=r"has 0 files.*refers to 1 file .*restore"):
        watch(inbox).plan(plan.end, EVERYTHING)
    listing.unlink()
    with pytest.raises(SourceChangedError, match="restore the listing"):
        watch(inbox).plan(plan.end, EVERYTHING)


def test_listing_of_other_paths_and_files_that_are_not_listings_are_refused(inbox: Path):
    watch(inbox).initial()
    other = FileSource(inbox / "*.x", watch=True, listing=inbox.parent / "listing")
    with pytest.raises(ConfigError, match=r"is version 1 for .*in'\], and needed.*its own"):
        other.initial()
    for content in ("precious", "precious\n", '{"listing": '):
        (inbox.parent / "file").write_text(content)
        source = FileSource(inbox, watch=True, listing=inbox.parent / "file")
        if content.startswith("precious"):
            with pytest.raises(ConfigError, match="is not a listing of files"):
                source.initial()
            assert (inbox.parent / "file").read_text() == content
        else:
            source.initial()  # the torn head of a writer that died


def test_torn_last_line_is_cut_off_and_the_file_listed_again(inbox: Path):
    source = watch(inbox)
    write(inbox / "1.parquet", 1)
    _, at = drain(source, source.initial())
    with open(inbox.parent / "listing", "ab") as listing:
        listing.write(b'["/half/of/a/li')
    write(inbox / "2.parquet", 2)
    assert drain(watch(inbox), at)[0] == [2]
    assert drain(watch(inbox), source.initial())[0] == [1, 2]


def test_two_processes_that_share_a_listing_note_each_file_once(inbox: Path):
    program = """
import sys
from batchqueue.pipeline import FileSource, Limit
source = FileSource(sys.argv[1], watch=True, listing=sys.argv[2], watch_interval_s=0)
at, rows = source.initial(), 0
while rows < 200:
    plan = source.plan(at, Limit(1, 1))
    rows, at = rows + sum(split.rows for split in plan.splits), plan.end
"""
    arguments = [sys.executable, "-c", program, inbox, inbox.parent / "listing"]
    readers = [subprocess.Popen(arguments) for _ in range(2)]
    for number in range(200):
        write(inbox / f"{number}.parquet", number)
    assert [reader.wait() for reader in readers] == [0, 0]
    lines = map(json.loads, (inbox.parent / "listing").read_text().splitlines())
    paths = [line[0] for line in lines if isinstance(line, list)]
    assert len(paths) == len(set(paths)) == 200


def test_position_of_a_bounded_source_is_refused(inbox: Path):
    write(inbox / "1.parquet", 1)
    bounded = FileSource(inbox)
    with pytest.raises((PositionError, SourceChangedError), match="new checkpoint"):
        watch(inbox).plan(bounded.initial(), EVERYTHING)
    with pytest.raises((PositionError, SourceChangedError), match="new checkpoint"):
        bounded.plan(watch(inbox).initial(), EVERYTHING)


def test_killed_planner_loses_and_doubles_nothing(inbox: Path):
    """A process that plans, and prints what it read, is killed again and again."""
    program = """
import json, sys
from batchqueue.pipeline import FileSource, Limit
source = FileSource(sys.argv[1], watch=True, listing=sys.argv[2], watch_interval_s=0)
at = json.loads(sys.argv[3]) or source.initial()
while True:
    plan = source.plan(at, Limit(1, 1))
    rows = [n for s in plan.splits for b in source.read(s) for n in b["n"].to_pylist()]
    at = plan.end
    if rows:
        print(json.dumps([rows, at]), flush=True)
"""
    position, rows = None, []
    for turn in range(6):
        for number in range(10):
            write(inbox / f"{9 - turn}-{number}.parquet", 10 * turn + number)
        arguments = [program, inbox, inbox.parent / "listing", json.dumps(position)]
        reader = subprocess.Popen(
            [sys.executable, "-c", *arguments], stdout=subprocess.PIPE, text=True
        )
        for _ in range(7 if turn < 5 else 60 - len(rows)):
            more, position = json.loads(reader.stdout.readline())
            rows += more
        os.kill(reader.pid, 9)
        reader.communicate()
    assert sorted(rows) == list(range(60))
