"""A directory shows exactly the cuts that were committed, to every reader and at any time."""

import pickle
import threading
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import dataset

from batchqueue.exceptions import ConfigError
from batchqueue.pipeline import CutError, FileSink, SinkError
from batchqueue.pipeline.testing import check_sink


def chunk(*numbers: int, **more) -> pa.RecordBatch:
    return pa.record_batch({"n": pa.array(numbers, pa.int64())} | more)


def rows(directory: Path, format: str = "parquet") -> list[int]:
    table = dataset.dataset(directory, format=format).to_table()
    return sorted(table["n"].to_pylist()) if table.num_columns else []


def commit(sink: FileSink, cut: int, *numbers: int) -> None:
    sink.write([chunk(*numbers)])
    sink.commit(cut, {"orders": {"cut": cut}})


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "out"


@pytest.fixture
def written(directory: Path) -> Path:
    """A directory with two cuts of pipeline "orders"."""
    sink = FileSink(directory)
    sink.open("orders")
    commit(sink, 1, 1, 2)
    commit(sink, 2, 3)
    sink.close()
    return directory


@pytest.mark.parametrize("format", ["parquet", "arrow", "csv"])
def test_every_format_keeps_the_contract(directory: Path, format: str):
    check_sink(
        lambda: FileSink(directory, format=format),
        read=lambda: dataset.dataset(directory, format=format).to_table().to_pylist(),
    )
    names = sorted(path.name for path in directory.iterdir())
    assert names == ["_batchqueue", f"cut-0000000001.{format}", f"cut-0000000002.{format}"]
    assert sorted(path.name for path in (directory / "_batchqueue").iterdir()) == [
        "cut.json",
        "lock",
    ]


def test_readers_see_whole_cuts_only_while_they_are_written(directory: Path):
    sink, seen, is_done = FileSink(directory), [], threading.Event()
    commit(sink, 1, *range(1_000))

    def read() -> None:
        while not is_done.is_set():
            seen.append(len(rows(directory)))

    reader = threading.Thread(target=read)
    reader.start()
    for cut in range(2, 40):
        for _ in range(4):
            sink.write([chunk(*range(250))])
        sink.commit(cut, {})
    is_done.set()
    reader.join()
    assert len(set(seen)) > 2
    assert {count % 1_000 for count in seen} == {0}


def test_constructing_and_pickling_touch_nothing(directory: Path):
    sink = FileSink(directory)
    pickle.loads(pickle.dumps(sink))
    assert not directory.exists()
    commit(sink, 1, 1)
    copy = pickle.loads(pickle.dumps(sink))
    sink.close()
    commit(copy, 2, 2)
    assert rows(directory) == [1, 2]


def test_small_chunks_make_large_row_groups_and_large_ones_stay_bounded(directory: Path):
    sink = FileSink(directory)
    for _ in range(100):
        sink.write([chunk(*range(500))])
    sink.commit(1, {})
    wide = ["x" * (1 << 20)] * 10
    for _ in range(5):
        sink.write([chunk(*range(10), wide=wide).select(["n"])])
    sink.commit(2, {})
    groups = [
        pq.ParquetFile(directory / f"cut-000000000{cut}.parquet").num_row_groups for cut in (1, 2)
    ]
    assert groups == [1, 1]
    large = FileSink(directory.with_name("large"))
    for _ in range(5):
        large.write([chunk(*range(10), wide=wide)])
    large.commit(1, {})
    file = pq.ParquetFile(directory.with_name("large") / "cut-0000000001.parquet")
    assert file.num_row_groups == 3


def test_compression_is_that_of_the_setting(directory: Path):
    commit(FileSink(directory, compression="zstd"), 1, 1)
    metadata = pq.ParquetFile(directory / "cut-0000000001.parquet").metadata
    assert metadata.row_group(0).column(0).compression == "ZSTD"


def test_metadata_of_chunks_and_nulls_in_later_ones_do_not_matter(directory: Path):
    strict = pa.schema([pa.field("n", pa.int64(), nullable=False)], metadata={"origin": "a"})
    sink = FileSink(directory)
    sink.write(
        [pa.record_batch([[1]], strict), pa.record_batch([[None]], pa.schema({"n": "int64"}))]
    )
    sink.commit(1, {})
    file = pq.read_schema(directory / "cut-0000000001.parquet")
    assert "origin" not in {key.decode() for key in file.metadata or {}}
    assert dataset.dataset(directory).to_table()["n"].to_pylist() == [1, None]


def test_cut_without_rows_has_no_file(written: Path):
    sink = FileSink(written)
    sink.write([chunk()])
    sink.commit(3, {"orders": {"cut": 3}})
    commit(sink, 4, 4)
    assert sorted(path.name for path in written.glob("*.parquet")) == [
        f"cut-000000000{cut}.parquet" for cut in (1, 2, 4)
    ]


def test_old_files_may_be_moved_away(written: Path):
    for file in written.glob("*.parquet"):
        file.unlink()
    sink = FileSink(written)
    assert sink.last_cut() == (2, {"orders": {"cut": 2}})
    commit(sink, 3, 4)
    assert rows(written) == [4]


@pytest.mark.parametrize("cut", [1, 2, 4])
def test_cut_that_does_not_follow_the_last_one_is_refused(written: Path, cut: int):
    sink = FileSink(written)
    sink.write([chunk(9)])
    with pytest.raises(CutError, match=rf"has cut 2 and is to store cut {cut}.*the next"):
        sink.commit(cut, {})
    sink.open("orders")
    assert rows(written) == [1, 2, 3]
    commit(sink, 3, 4)
    assert rows(written) == [1, 2, 3, 4]


def test_rows_that_were_not_committed_are_dropped_by_the_next_run(written: Path):
    sink = FileSink(written)
    sink.open("orders")
    sink.write([chunk(9)])
    sink.open("orders")
    commit(sink, 3, 4)
    sink.write([chunk(9)])
    sink.close()
    assert list((written / "_batchqueue").glob("pending*")) == []
    commit(sink, 4, 5)
    assert rows(written) == [1, 2, 3, 4, 5]


# Directories that do not belong to the sink.


def test_directory_of_another_pipeline_is_refused_and_left_alone(written: Path):
    sink = FileSink(written)
    with pytest.raises(SinkError, match="belongs to pipeline 'orders' and not to 'clients'"):
        sink.open("clients")
    sink = FileSink(written)  # a run that does not name its pipeline
    commit(sink, 3, 4)
    sink.close()
    with pytest.raises(SinkError, match="belongs to pipeline 'orders'"):
        FileSink(written).open("clients")
    assert rows(written) == [1, 2, 3, 4]


def test_directory_without_a_cut_may_be_taken_over(directory: Path):
    sink = FileSink(directory)
    sink.open("orders")
    sink.write([chunk(1)])
    sink.close()
    sink.open("clients")
    commit(sink, 1, 2)
    assert rows(directory) == [2]


def test_directory_with_files_of_others_is_refused_and_left_alone(directory: Path):
    directory.mkdir()
    (directory / ".hidden").touch()
    FileSink(directory).last_cut()
    other = directory.with_name("other")
    other.mkdir()
    (other / "precious.parquet").touch()
    with pytest.raises(SinkError, match=r"has 'precious\.parquet', which it did not write"):
        FileSink(other).last_cut()
    assert [path.name for path in other.iterdir()] == ["precious.parquet"]


def test_directory_in_use_is_refused_until_it_is_closed(directory: Path):
    sink, other = FileSink(directory), FileSink(directory)
    sink.write([chunk(1)])
    for call in (other.last_cut, lambda: other.open("orders"), lambda: other.write([chunk(2)])):
        with pytest.raises(SinkError, match="in use by another run"):
            call()
    sink.commit(1, {})
    sink.close()
    other.open("orders")
    commit(other, 2, 2)
    assert rows(directory) == [1, 2]


def test_other_format_is_refused(written: Path):
    with pytest.raises(SinkError, match="was written as version 1, parquet, and now"):
        FileSink(written, format="csv").last_cut()


@pytest.mark.parametrize("missing", ["_batchqueue", "_batchqueue/cut.json"])
def test_files_without_their_last_cut_are_never_overwritten(written: Path, missing: str):
    before = {path.name: path.read_bytes() for path in written.glob("*.parquet")}
    for path in sorted((written / missing).glob("*")):
        path.unlink()
    (written / missing).rmdir() if missing == "_batchqueue" else (written / missing).unlink()
    with pytest.raises((CutError, SinkError), match=r"restore both|did not write"):
        FileSink(written).last_cut()
    assert {path.name: path.read_bytes() for path in written.glob("*.parquet")} == before


def test_corrupt_state_is_named(written: Path):
    (written / "_batchqueue" / "cut.json").write_text('{"cut": 2')
    with pytest.raises(SinkError, match=r"cut\.json is corrupt .*restore it together"):
        FileSink(written).last_cut()


# Chunks and settings that do not fit.


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (pa.record_batch({"m": [1]}), r"has the columns \['m'\] and the files have \['n'\]"),
        (pa.record_batch({"n": ["x"]}), "column 'n' is string in a chunk and int64 in the files"),
    ],
)
@pytest.mark.parametrize("when", ["in the same cut", "in a later run"])
def test_chunk_of_other_columns_is_refused_and_its_cut_cannot_be_committed(
    written: Path, other: pa.RecordBatch, message: str, when: str
):
    sink = FileSink(written)
    if when == "in the same cut":
        sink.write([chunk(4)])
    with pytest.raises(SinkError, match=message):
        sink.write([other])
    for call in (lambda: sink.write([chunk(4)]), lambda: sink.commit(3, {})):
        with pytest.raises(SinkError, match=r"failed before .*rows of this cut are missing"):
            call()
    sink.open("orders")
    commit(sink, 3, 4)
    assert rows(written) == [1, 2, 3, 4]


def test_given_schema_is_that_of_the_files(directory: Path, written: Path):
    wider = pa.schema({"n": pa.int64(), "m": pa.int64()})
    with pytest.raises(SinkError, match=r"\['n', 'm'\] and the files have \['n'\]"):
        FileSink(written, schema=wider).write([chunk(4)])
    with pytest.raises(SinkError, match=r"\['n'\] and the files have \['n', 'm'\]"):
        FileSink(directory.with_name("wide"), schema=wider).write([chunk(4)])


def test_type_that_the_format_cannot_hold_is_an_error_of_the_sink(directory: Path):
    sink = FileSink(directory, format="csv")
    with pytest.raises(SinkError, match=r"column 'n' is list<item: int64>, and CSV has no"):
        sink.write([pa.record_batch({"n": [[1, 2]]})])
    assert list(directory.glob("*.csv")) == []


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"directory": ""}, "directory"),
        ({"directory": 7}, "directory"),
        ({"format": "json"}, "one of parquet, arrow, csv"),
        ({"schema": {"n": int}}, r"pyarrow\.Schema"),
        ({"compression": "x"}, "name of a codec"),
        ({"compression": "zstd", "format": "csv"}, "name of a codec"),
        ({"batch_rows": 0}, "batch_rows"),
    ],
)
def test_invalid_setting_is_refused_with_the_remedy(settings, message: str):
    with pytest.raises(ConfigError, match=message):
        FileSink(**({"directory": "out"} | settings))
