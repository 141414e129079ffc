"""Which files belong to a source, in which order, and what happens when they change."""

import json
import os
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import fs

from batchqueue.base.background_log import flush_log
from batchqueue.exceptions import ConfigError
from batchqueue.pipeline import FileSource, Limit, PositionError, SourceChangedError
from batchqueue.pipeline.sources import file_listings as listings
from batchqueue.pipeline.sources.file_scan import scan
from core_support.waits import WAIT_S

ONE = Limit(1, 1)


def write(path: Path, *numbers: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"n": pa.array(numbers, pa.int64())}), path, row_group_size=2)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    write(tmp_path / "b" / "2.parquet", 3, 4)
    write(tmp_path / "a" / "1.parquet", 1, 2)
    write(tmp_path / "c" / "deep" / "3.parquet", 5)
    write(tmp_path / "c" / "set.parquet" / "part-0.parquet", 6)
    for hidden in ("_temporary/0/x.parquet", ".x.parquet", "c/_x.parquet", "c/.y/x.parquet"):
        write(tmp_path / hidden, -1)
    (tmp_path / "a" / "0.parquet").touch()
    return tmp_path


def numbers(source: FileSource, position=None) -> list[int]:
    at, found = position or source.initial(), []
    while (plan := source.plan(at, ONE)).splits:
        for batch in source.read(plan.splits[0]):
            found += batch["n"].to_pylist()
        at = plan.end
    return found


@pytest.mark.parametrize(
    ("paths", "expected"),
    [
        ("", [1, 2, 3, 4, 5, 6]),
        ("**", [1, 2, 3, 4, 5, 6]),
        ("**/*.parquet", [1, 2, 3, 4, 5, 6]),
        ("?/?.parquet", [1, 2, 3, 4]),
        ("[ab]/*", [1, 2, 3, 4]),
        ("c/*/*.parquet", [5, 6]),
        ("c/*.parquet", [6]),
        ("b/2.parquet", [3, 4]),
        (["c/deep", "a", "a/1.parquet"], [1, 2, 5]),
        ("_temporary/0/x.parquet", [-1]),
        ("c/_*", [-1]),
    ],
)
def test_paths_directories_and_patterns_give_sorted_files_once(tree: Path, paths, expected):
    given = [paths] if isinstance(paths, str) else paths
    assert numbers(FileSource([tree / path for path in given])) == expected
    if isinstance(paths, str):
        assert numbers(FileSource(f"{tree}/{paths}")) == expected


def test_brackets_in_the_name_of_a_file_that_exists_are_not_a_pattern(tmp_path: Path):
    write(tmp_path / "a[1].parquet", 1)
    write(tmp_path / "a1.parquet", 2)
    assert numbers(FileSource(tmp_path / "a[1].parquet")) == [1]


def test_directory_that_is_linked_into_itself_is_read_once(tmp_path: Path):
    write(tmp_path / "1.parquet", 1)
    (tmp_path / "loop").symlink_to(tmp_path)
    (tmp_path / "broken.parquet").symlink_to(tmp_path / "missing")
    assert numbers(FileSource(tmp_path)) == [1]


@pytest.mark.parametrize("pattern", ["", "/*/*.parquet", "/**/*.parquet", "/day=*"])
def test_directory_that_is_removed_during_the_scan_is_empty(tmp_path: Path, pattern: str):
    class Racing(fs.PyFileSystem):
        def get_file_info(self, paths):
            if isinstance(paths, fs.FileSelector) and paths.base_dir.endswith("day=1"):
                raise FileNotFoundError(paths.base_dir)
            return super().get_file_info(paths)

    for day in (1, 2):
        (tmp_path / f"day={day}").mkdir()
        pq.write_table(pa.table({"n": [day]}), tmp_path / f"day={day}" / "a.parquet")
    racing = Racing(fs.FSSpecHandler(fsspec.filesystem("file")))
    found = scan(racing, [f"{tmp_path}{pattern}"])
    assert [Path(entry.path).parent.name for entry in found.files] == ["day=2"]


def test_relative_paths_hold_when_the_directory_changes(
    tree: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tree)
    source = FileSource("a/*.parquet")
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    assert numbers(pickle.loads(pickle.dumps(source))) == [1, 2]
    assert source.name == "a/*.parquet"


@pytest.mark.parametrize(
    ("paths", "message"),
    [
        ("x/*.parquet", "x is not a directory; correct `paths`"),
        ("a/*.csv", r"no file matches .*\.csv; correct `paths`"),
        ("a/0*", "no file matches .*, except for 1 of zero bytes"),
        ("a/9.parquet", r"9\.parquet does not exist"),
    ],
)
def test_paths_without_files_are_named(tree: Path, paths: str, message: str):
    for call in ("initial", "schema"):
        with pytest.raises(ConfigError, match=message):
            getattr(FileSource(tree / paths), call)()


def test_formats_are_not_mixed_or_guessed(tmp_path: Path):
    write(tmp_path / "1.parquet", 1)
    (tmp_path / "2.csv").write_text("n\n1\n")
    with pytest.raises(ConfigError, match=r"several formats: .*1\.parquet.*and .*2\.csv"):
        FileSource(tmp_path).initial()
    (tmp_path / "2.csv").rename(tmp_path / "2.txt")
    with pytest.raises(ConfigError, match=r"2\.txt does not say its format.*`format`"):
        FileSource(tmp_path).initial()
    assert numbers(FileSource(tmp_path / "*.txt", format="csv")) == [1]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"paths": []}, "paths"),
        ({"paths": 7}, "paths"),
        ({"paths": ["file:///a", "mock:///b"]}, "several filesystems"),
        ({"paths": "unknown://a/*.csv"}, r"unknown://a/\*\.csv is not a URI that pyarrow can open"),
        ({"format": "xls"}, "one of parquet, arrow, csv, json"),
        ({"columns": []}, "columns"),
        ({"columns": "n"}, "list of names"),
        ({"columns": ["n", "n"]}, "once"),
        ({"schema": {"n": int}}, r"pyarrow\.Schema"),
        ({"filesystem": "s3"}, r"pyarrow\.fs\.FileSystem"),
        ({"read_options": {}}, "format="),
        ({"read_options": {}, "format": "csv"}, r"pyarrow\.csv\.ReadOptions"),
        ({"convert_options": {}, "format": "json"}, "not for json"),
        ({"watch": True}, "needs `listing`"),
        ({"watch": True, "listing": "missing/log"}, "directory that exists"),
        ({"listing": "log"}, "watch=True; leave it out"),
        ({"watch": 1}, "True or False"),
        ({"watch_interval_s": -1}, "watch_interval_s"),
    ],
)
def test_invalid_setting_is_refused_with_the_remedy(settings, message: str):
    with pytest.raises(ConfigError, match=message):
        FileSource(**({"paths": "*.parquet"} | settings))


def test_unknown_column_is_named_with_those_that_exist(tree: Path):
    with pytest.raises(ConfigError, match=r"1\.parquet has no column named 'm'; it has 'n'"):
        FileSource(tree, columns=["m"]).schema()


# What happens when files change between two runs, or under a run.


@pytest.fixture
def middle(tree: Path):
    """The position behind the first of the files, as a checkpoint has it."""
    source = FileSource(tree)
    return json.loads(json.dumps(source.plan(source.initial(), ONE).end))


def test_restart_continues_at_the_position(tree: Path, middle):
    assert numbers(FileSource(tree), middle) == [3, 4, 5, 6]


def test_files_that_came_later_are_left_out_and_logged(tree: Path, middle, caplog):
    end = FileSource(tree).between(middle, middle) or middle
    write(tree / "a" / "0-new.parquet", 9)
    write(tree / "z.parquet", 9)
    source = FileSource(tree)
    assert numbers(source, end) == [3, 4, 5, 6]
    assert flush_log(WAIT_S)
    assert "2 files came after the position was made and are not read" in caplog.text
    assert "z.parquet" in caplog.text
    assert numbers(FileSource(tree)) == [9, 1, 2, 3, 4, 5, 6, 9]


def test_changed_file_at_the_position_is_named_with_what_it_was_and_is(tree: Path, middle):
    path = tree / "b" / "2.parquet"
    was = path.stat()
    write(path, 3, 4, 5)
    now = path.stat()
    message = (
        rf"{path} was {was.st_size} bytes, mtime {was.st_mtime_ns} ns and is {now.st_size} bytes, "
        rf"mtime {now.st_mtime_ns} ns; restore them, or begin with a new checkpoint"
    )
    for call in (
        lambda source: source.plan(middle, ONE),
        lambda source: source.between(middle, middle),
        lambda source: source.lag(middle),
    ):
        with pytest.raises(SourceChangedError, match=message):
            call(FileSource(tree))


def test_changed_file_elsewhere_is_named(tree: Path, middle):
    write(tree / "a" / "1.parquet", 1, 2, 3)
    with pytest.raises(SourceChangedError, match=r"1 of its 4 files.*written again.*1\.parquet"):
        FileSource(tree).plan(middle, ONE)


def test_missing_file_is_noticed(tree: Path, middle):
    (tree / "a" / "1.parquet").unlink()
    with pytest.raises(SourceChangedError, match="1 of its 4 files is gone"):
        FileSource(tree).plan(middle, ONE)
    (tree / "b" / "2.parquet").unlink()
    with pytest.raises(SourceChangedError, match=r"2\.parquet was .* bytes.* and is gone"):
        FileSource(tree).plan(middle, ONE)


def test_added_file_with_an_old_time_is_noticed(tree: Path, middle):
    write(tree / "a" / "2.parquet", 9)
    os.utime(tree / "a" / "2.parquet", ns=(1, 1))
    with pytest.raises(SourceChangedError, match="its 4 files are not the same as the 5"):
        FileSource(tree).plan(middle, ONE)


@pytest.mark.parametrize("planned", [False, True])
def test_file_that_changes_during_the_run_is_named(tree: Path, planned: bool):
    source = FileSource(tree / "a")
    at = source.initial()
    plan = source.plan(at, ONE) if planned else None
    write(tree / "a" / "1.parquet", 1, 2, 3)
    with pytest.raises(SourceChangedError, match=r"1\.parquet was .* and is .*rename them"):
        list(source.read(plan.splits[0])) if planned else source.plan(at, ONE)
    (tree / "a" / "1.parquet").unlink()
    with pytest.raises(SourceChangedError, match=r"1\.parquet was listed .* and is gone"):
        list(source.read(plan.splits[0])) if planned else source.plan(at, ONE)


def test_file_that_is_replaced_while_it_is_read_fails_the_split(tree: Path):
    source = FileSource(tree / "a")
    [split] = source.plan(source.initial(), ONE).splits
    batches = source.read(split)
    next(batches)
    write(tree / "a" / "new", 8, 9)
    (tree / "a" / "new").rename(tree / "a" / "1.parquet")
    with pytest.raises(SourceChangedError, match=r"1\.parquet was"):
        list(batches)


@pytest.mark.parametrize(
    "change",
    [
        {"source": "other"},
        {"file": -1},
        {"file": "0"},
        {"file": 5, "at": None},
        {"piece": 7},
        {"piece": True},
        {"at": None},
        {"at": ["x", 1]},
        {"list": {"id": 3}},
        {"list": None},
    ],
)
def test_position_of_another_source_is_refused(tree: Path, middle, change):
    source = FileSource(tree)
    numbers(source)
    with pytest.raises(PositionError, match="new checkpoint"):
        source.plan(middle | change, ONE)


def test_position_before_the_other_is_refused(tree: Path, middle):
    source = FileSource(tree)
    with pytest.raises(PositionError, match="does not follow"):
        source.between(middle, source.initial())


def test_threads_that_find_a_listing_together_find_the_same(tree: Path, middle, monkeypatch):
    """One plans, the other reads the lag: `between` wants positions of one listing."""
    barrier = threading.Barrier(2, timeout=WAIT_S)

    def together(*arguments):
        barrier.wait()
        return scan(*arguments)

    monkeypatch.setattr(listings, "scan", together)
    source = FileSource(tree)
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(lambda _: source._place(middle)[1], range(2)))
    assert found[0] is found[1]
