"""A file is open as long as its pieces are read, one after the other, and no longer."""

import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import fs, ipc

from batchqueue.pipeline import FileSource, Limit
from batchqueue.pipeline.contract import SourceChangedError, Split

PIECES = 4
ROWS = 3 * PIECES
NUMBERS = list(range(ROWS))


class CountingFiles(fs.FileSystemHandler):  # type: ignore[misc]
    """The local file system, which keeps each file that was opened."""

    def __init__(self) -> None:
        self._local = fs.LocalFileSystem()
        self.opened: list[Any] = []

    def still_open(self) -> int:
        return sum(not file.closed for file in self.opened)

    def open_input_file(self, path: str) -> pa.NativeFile:
        file = Path(path).open("rb")  # noqa: SIM115
        self.opened.append(file)
        return pa.PythonFile(file, mode="r")

    def open_input_stream(self, path: str) -> pa.NativeFile:
        return self.open_input_file(path)

    def get_file_info(self, paths: list[str]) -> Any:
        return self._local.get_file_info(paths)

    def get_file_info_selector(self, selector: fs.FileSelector) -> Any:
        return self._local.get_file_info(selector)

    def get_type_name(self) -> str:
        return "counting"

    def normalize_path(self, path: str) -> str:
        return path


for _name in fs.FileSystemHandler.__abstractmethods__ - set(vars(CountingFiles)):
    setattr(CountingFiles, _name, lambda self, *args: pytest.fail("only files are read"))
CountingFiles.__abstractmethods__ = frozenset()


def write(path: Path, form: str, numbers: list[int] = NUMBERS) -> None:
    table = pa.table({"n": numbers})
    rows = len(numbers) // PIECES
    if form == "parquet":
        pq.write_table(table, path, row_group_size=rows)
        return
    with path.open("wb") as file, ipc.new_file(file, table.schema) as writer:
        writer.write_table(table, max_chunksize=rows)


@pytest.fixture
def files() -> CountingFiles:
    return CountingFiles()


@pytest.fixture(params=["parquet", "arrow"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    path = tmp_path / f"a.{request.param}"
    write(path, request.param)
    return path


def source_of(paths: list[Path], files: CountingFiles) -> FileSource:
    return FileSource([str(path) for path in paths], filesystem=fs.PyFileSystem(files))


def splits(source: FileSource) -> list[Split]:
    found: list[Split] = []
    plan = source.plan(source.initial(), Limit(1 << 20, 1 << 30))
    while plan.splits:
        found += plan.splits
        plan = source.plan(plan.end, Limit(1 << 20, 1 << 30))
    return found


def numbers(batches: Iterator[pa.RecordBatch]) -> list[int]:
    return [number for batch in batches for number in batch.column("n").to_pylist()]


def test_pieces_of_a_file_are_read_with_one_opening(path: Path, files: CountingFiles):
    source = source_of([path], files)
    found = splits(source)
    assert len(found) == PIECES
    before = len(files.opened)
    read = []
    for number, split in enumerate(found):
        read += numbers(source.read(split))
        assert len(files.opened) == before + 1
        assert files.still_open() == (number < PIECES - 1)
    assert read == NUMBERS


def test_another_file_closes_the_one_before(path: Path, files: CountingFiles):
    other = path.with_stem("b")
    write(other, path.suffix[1:])
    source = source_of([path, other], files)
    found = splits(source)
    for split in (found[0], found[PIECES], found[1]):
        assert len(numbers(source.read(split))) == ROWS // PIECES
        assert files.still_open() == 1


def test_a_piece_that_is_not_read_to_its_end_closes_the_file(path: Path, files: CountingFiles):
    source = source_of([path], files)
    found = splits(source)
    numbers(source.read(found[0]))
    reading = source.read(found[1])
    next(iter(reading))
    reading.close()  # type: ignore[attr-defined]
    assert files.still_open() == 0
    assert [each for split in found for each in numbers(source.read(split))] == NUMBERS


def test_two_pieces_that_are_read_at_the_same_time_do_not_share_a_file(
    path: Path, files: CountingFiles
):
    source = source_of([path], files)
    found = splits(source)
    numbers(source.read(found[0]))
    pairs = [iter(source.read(split)) for split in found[1:3]]
    firsts = [next(reading) for reading in pairs]
    assert files.still_open() == 2
    rows = ROWS // PIECES
    read = numbers(iter(firsts)) + [each for reading in pairs for each in numbers(reading)]
    assert read == NUMBERS[rows : 3 * rows]
    assert files.still_open() == 1


def test_a_file_is_opened_anew_after_a_long_pause(
    path: Path, files: CountingFiles, monkeypatch: pytest.MonkeyPatch
):
    source = source_of([path], files)
    found = splits(source)
    before = len(files.opened)
    numbers(source.read(found[0]))
    monkeypatch.setattr("batchqueue.pipeline.sources.files._KEEP_S", 0.0)
    assert [each for split in found[1:] for each in numbers(source.read(split))] == NUMBERS[3:]
    assert len(files.opened) == before + PIECES
    assert files.still_open() == 0


def test_a_file_that_changes_between_two_pieces_is_refused_and_closed(
    path: Path, files: CountingFiles
):
    source = source_of([path], files)
    found = splits(source)
    numbers(source.read(found[0]))
    new = path.with_stem(".new")
    write(new, path.suffix[1:], NUMBERS * 2)
    new.replace(path)
    with pytest.raises(SourceChangedError, match=r"a\.(parquet|arrow) was"):
        numbers(source.read(found[1]))
    assert files.still_open() == 0


def test_a_source_with_an_open_file_pickles(path: Path):
    source = FileSource(path)
    found = splits(source)
    read = numbers(source.read(found[0]))
    copied, rest = pickle.loads(pickle.dumps((source, found[1:])))
    assert read + [each for split in rest for each in numbers(copied.read(split))] == NUMBERS
