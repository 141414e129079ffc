"""Each format is read in pieces, keeps the contract, and has its traps taken care of."""

import gzip
import json
from datetime import datetime
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.csv as pc
import pyarrow.json as pj
import pyarrow.parquet as pq
import pytest
from pyarrow import fs, ipc

from batchqueue.pipeline import FileSource, Limit, SourceDataError
from batchqueue.pipeline.testing import check_source

ROWS = [{"n": number, "s": f'row "{number}",\n{"é" * (number % 7)}'} for number in range(1_000)]
TABLE = pa.Table.from_pylist(ROWS)


def write_parquet(path: Path, table: pa.Table) -> None:
    pq.write_table(table, path, row_group_size=130)


def write_arrow(path: Path, table: pa.Table) -> None:
    with ipc.new_file(path, table.schema) as writer:
        writer.write_table(table, max_chunksize=130)


def write_csv(path: Path, table: pa.Table) -> None:
    pc.write_csv(table, path)


def write_json(path: Path, table: pa.Table) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in table.to_pylist()))


def compressed(write):
    def write_compressed(path: Path, table: pa.Table) -> None:
        write(path, table)
        path.write_bytes(gzip.compress(path.read_bytes()))

    return write_compressed


FORMATS = {
    "parquet": write_parquet,
    "arrow": write_arrow,
    "csv": write_csv,
    "json": write_json,
    "csv.gz": compressed(write_csv),
    "jsonl.gz": compressed(write_json),
}


@pytest.mark.parametrize("suffix", FORMATS)
def test_every_format_keeps_the_contract(suffix: str, tmp_path: Path, read_all):
    for number in range(3):
        part = TABLE.slice(number * 300, 300 if number < 2 else None)
        FORMATS[suffix](tmp_path / f"{number}.{suffix}", part)
    source = FileSource(tmp_path)
    check_source(source, rows=1_000)
    assert read_all(source) == ROWS
    assert read_all(FileSource(tmp_path, columns=["s"])) == [{"s": row["s"]} for row in ROWS]
    backwards = FileSource(tmp_path, columns=["s", "n"])
    assert backwards.schema().names == ["s", "n"]
    assert read_all(backwards) == ROWS


@pytest.mark.parametrize("suffix", FORMATS)
def test_files_without_rows_are_read_as_such(suffix: str, tmp_path: Path, read_all):
    given = TABLE.schema
    for number, part in enumerate((TABLE.slice(0, 5), TABLE.slice(0, 0), TABLE.slice(5, 5))):
        FORMATS[suffix](tmp_path / f"{number}.{suffix}", part)
    (tmp_path / f"0-zero-bytes.{suffix}").touch()
    if suffix != "jsonl.gz":  # which compresses zero bytes
        check_source(FileSource(tmp_path, schema=given), rows=10)


@pytest.mark.parametrize("suffix", ["parquet", "arrow"])
def test_other_columns_are_not_fetched(suffix: str, tmp_path: Path, read_all):
    """The other column is damaged, so that reading it fails."""
    path = tmp_path / f"a.{suffix}"
    words = [" ".join(str(number * 7_919 % 1_009) for _ in range(50)) for number in range(1_000)]
    table = pa.table({"n": range(1_000), "w": words})
    if suffix == "parquet":
        pq.write_table(table, path, compression="zstd", use_dictionary=False)
    else:
        with ipc.new_file(path, table.schema, options=ipc.IpcWriteOptions(compression="zstd")) as w:
            w.write_table(table)
    content = bytearray(path.read_bytes())
    middle = len(content) // 2
    content[middle : middle + 20] = b"\xff" * 20
    path.write_bytes(content)
    with pytest.raises(SourceDataError, match=rf"a\.{suffix} cannot be read"):
        read_all(FileSource(path))
    assert read_all(FileSource(path, columns=["n"])) == [{"n": number} for number in range(1_000)]


def test_piece_has_the_rows_and_the_size_of_the_chosen_columns(tmp_path: Path):
    table = pa.table({"n": range(1_000), "same": ["x" * 100] * 1_000})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=600)
    source = FileSource(tmp_path, columns=["n"])
    splits = source.plan(source.initial(), Limit(1_000, 1 << 20)).splits
    assert [split.rows for split in splits] == [600, 400]
    assert [4_800 <= split.bytes < 10_000 for split in splits] == [True, False]
    assert source.plan(source.initial(), Limit(1_000, 5_000)).splits == splits[:1]


def test_wide_rows_come_in_small_batches(tmp_path: Path):
    table = pa.table({"w": [str(number) + "x" * (1 << 20) for number in range(24)]})
    pq.write_table(table, tmp_path / "a.parquet", use_dictionary=False)
    source = FileSource(tmp_path)
    [split] = source.plan(source.initial(), Limit(1, 1)).splits
    sizes = [batch.nbytes for batch in source.read(split)]
    assert len(sizes) > 4
    assert max(sizes) <= 8 << 20


def test_a_row_group_comes_in_batches_that_a_stage_takes_together(tmp_path: Path):
    pq.write_table(pa.table({"n": range(5_000), "s": ["x"] * 5_000}), tmp_path / "a.parquet")
    source = FileSource(tmp_path)
    [split] = source.plan(source.initial(), Limit(1, 1)).splits
    assert [batch.num_rows for batch in source.read(split)] == [2_000, 2_000, 1_000]


def test_first_and_last_rows_of_a_broken_up_row_group_are_in_order(tmp_path: Path, read_all):
    count = 200_000
    pq.write_table(pa.table({"n": range(count)}), tmp_path / "a.parquet")
    assert [row["n"] for row in read_all(FileSource(tmp_path))] == list(range(count))


def test_quoted_line_breaks_at_the_end_of_blocks_do_not_split_rows(tmp_path: Path, read_all):
    rows = [{"n": number, "s": "a\n\n,b" * (number % 90)} for number in range(3_000)]
    pc.write_csv(pa.Table.from_pylist(rows), tmp_path / "a.csv")
    small = pc.ReadOptions(block_size=700)
    assert read_all(FileSource(tmp_path, format="csv", read_options=small)) == rows


def test_delimiter_and_null_values_are_those_of_the_options(tmp_path: Path, read_all):
    (tmp_path / "a.csv").write_text("n;s\n1;none\n2;b\n")
    source = FileSource(
        tmp_path,
        format="csv",
        parse_options=pc.ParseOptions(delimiter=";"),
        convert_options=pc.ConvertOptions(null_values=["none"], strings_can_be_null=True),
    )
    assert read_all(source) == [{"n": 1, "s": None}, {"n": 2, "s": "b"}]
    check_source(source, rows=2)


def test_types_of_the_first_file_hold_for_all_files_of_text(tmp_path: Path, read_all):
    (tmp_path / "1.csv").write_text("n,s,later\n1.5,a,\n")
    (tmp_path / "2.csv").write_text("later,s,n\nb,5,2\n")
    rows = [{"n": 1.5, "s": "a", "later": ""}, {"n": 2.0, "s": "5", "later": "b"}]
    assert read_all(FileSource(tmp_path)) == rows
    (tmp_path / "3.csv").write_text("n,s,later\nx,a,b\n")
    with pytest.raises(SourceDataError, match=r"3\.csv cannot be read: .*#0.*'x'.*give `schema`"):
        read_all(FileSource(tmp_path))


def test_objects_may_lack_fields_and_have_them_null(tmp_path: Path, read_all):
    (tmp_path / "1.json").write_text('{"n":1,"s":null}\n{"n":2}\n')
    (tmp_path / "2.json").write_text('{"s":"b"}')
    rows = [{"n": 1, "s": None}, {"n": 2, "s": None}, {"n": None, "s": "b"}]
    assert read_all(FileSource(tmp_path)) == rows


@pytest.mark.parametrize("suffix", FORMATS)
def test_column_that_only_a_later_file_has_is_named(suffix: str, tmp_path: Path, read_all):
    more = TABLE.append_column("more", pa.array(range(1_000)))
    FORMATS[suffix](tmp_path / f"1.{suffix}", TABLE)
    FORMATS[suffix](tmp_path / f"2.{suffix}", more)
    with pytest.raises(SourceDataError, match=rf"2\.{suffix} has a column 'more'.*`columns`"):
        read_all(FileSource(tmp_path))
    assert len(read_all(FileSource(tmp_path, columns=["n", "s"]))) == 2_000
    rows = read_all(FileSource(tmp_path, schema=more.schema))
    assert [row["more"] for row in rows] == [None] * 1_000 + list(range(1_000))


@pytest.mark.parametrize("suffix", ["parquet", "arrow", "csv"])
def test_column_that_a_later_file_lacks_is_named(suffix: str, tmp_path: Path, read_all):
    FORMATS[suffix](tmp_path / f"1.{suffix}", TABLE)
    FORMATS[suffix](tmp_path / f"2.{suffix}", TABLE.drop_columns(["n"]))
    for columns in (None, ["n"]):
        with pytest.raises(SourceDataError, match=rf"(?s)2\.{suffix}.*'n'.*`schema`"):
            read_all(FileSource(tmp_path, columns=columns))
    needed = pa.schema([pa.field("n", pa.int64(), nullable=False)])
    with pytest.raises(SourceDataError, match=rf"2\.{suffix}.*'n'"):
        read_all(FileSource(tmp_path, schema=needed))


@pytest.mark.parametrize("suffix", ["parquet", "arrow"])
def test_column_of_another_type_is_named_and_cast_to_a_given_schema(
    suffix: str, tmp_path: Path, read_all
):
    FORMATS[suffix](tmp_path / f"1.{suffix}", pa.table({"n": pa.array([1, 2], pa.int64())}))
    FORMATS[suffix](tmp_path / f"2.{suffix}", pa.table({"n": pa.array([3.0], pa.float64())}))
    message = rf"2\.{suffix}: column 'n' is double and that of the source is int64; give `schema`"
    with pytest.raises(SourceDataError, match=message):
        read_all(FileSource(tmp_path))
    given = pa.schema({"n": pa.int64()})
    assert read_all(FileSource(tmp_path, schema=given)) == [{"n": 1}, {"n": 2}, {"n": 3}]
    FORMATS[suffix](tmp_path / f"3.{suffix}", pa.table({"n": [3.5]}))
    with pytest.raises(SourceDataError, match=rf"3\.{suffix}: column 'n' cannot be cast"):
        read_all(FileSource(tmp_path, schema=given))


@pytest.mark.parametrize("suffix", ["parquet", "arrow"])
@pytest.mark.parametrize(
    ("values", "wanted"),
    [
        (pa.array([Decimal("768003825538626644899")], pa.decimal128(38, 0)), pa.decimal128(38, 18)),
        (pa.array([1e300]), pa.float32()),
        (pa.array([2]), pa.bool_()),
        (pa.array([datetime(2026, 1, 31, 5)]), pa.date32()),
    ],
)
def test_value_that_a_given_schema_would_change_is_refused(
    suffix: str, values: pa.Array, wanted: pa.DataType, tmp_path: Path, read_all
):
    FORMATS[suffix](tmp_path / f"1.{suffix}", pa.table({"n": values}))
    with pytest.raises(SourceDataError, match=rf"1\.{suffix}: column 'n' cannot be cast.*not fit"):
        read_all(FileSource(tmp_path, schema=pa.schema({"n": wanted})))


@pytest.mark.parametrize("suffix", FORMATS)
def test_corrupt_file_is_named_after_all_before_it_was_read(suffix: str, tmp_path: Path):
    FORMATS[suffix](tmp_path / f"1.{suffix}", TABLE)
    FORMATS[suffix](tmp_path / f"2.{suffix}", TABLE)
    path = tmp_path / f"2.{suffix}"
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2] + b"\xff" * (suffix == "csv"))
    source, rows = FileSource(tmp_path), 0

    def read_to_the_end() -> None:
        nonlocal rows
        at = source.initial()
        while (plan := source.plan(at, Limit(1 << 31, 1 << 40))).splits:
            for split in plan.splits:
                for batch in source.read(split):
                    rows += batch.num_rows
            at = plan.end

    with pytest.raises(SourceDataError, match=rf"2\.{suffix} cannot be read: .*; "):
        read_to_the_end()
    assert 1_000 <= rows < 2_000


@pytest.mark.parametrize(
    ("suffix", "codec"), [("gz", "gzip"), ("bz2", "bz2"), ("zst", "zstd"), ("lz4", "lz4")]
)
def test_compressed_text_is_read(suffix: str, codec: str, tmp_path: Path, read_all):
    with pa.CompressedOutputStream(str(tmp_path / f"a.csv.{suffix}"), codec) as file:
        file.write(b"n\n1\n2\n")
    assert read_all(FileSource(tmp_path)) == [{"n": 1}, {"n": 2}]


def test_bytes_that_are_not_text_are_an_error_that_names_the_file(tmp_path: Path, read_all):
    (tmp_path / "a.csv").write_bytes(b"\x8b\xff\n\x8b\n")
    with pytest.raises(SourceDataError, match=r"a\.csv cannot be read: .*codec"):
        read_all(FileSource(tmp_path))


def test_row_larger_than_a_block_is_named_with_the_remedy(tmp_path: Path, read_all):
    (tmp_path / "a.csv").write_text('n,s\n1,"' + "x" * (3 << 20) + '"\n')
    with pytest.raises(SourceDataError, match=r"a\.csv cannot be read.*larger `block_size`"):
        read_all(FileSource(tmp_path))
    large = FileSource(tmp_path, format="csv", read_options=pc.ReadOptions(block_size=4 << 20))
    assert [len(row["s"]) for row in read_all(large)] == [3 << 20]
    line = json.dumps({"s": "x" * (3 << 20)})
    (tmp_path / "a.csv").rename(tmp_path / "a.json")
    (tmp_path / "a.json").write_text(line)
    with pytest.raises(SourceDataError, match=r"a\.json cannot be read.*larger `block_size`"):
        read_all(FileSource(tmp_path))
    large = FileSource(tmp_path, format="json", read_options=pj.ReadOptions(block_size=4 << 20))
    assert [len(row["s"]) for row in read_all(large)] == [3 << 20]


def test_dictionaries_nested_columns_and_names_with_dots_are_read(tmp_path: Path, read_all):
    table = pa.table(
        {
            "d": pa.array(["a", "b", "a"]).dictionary_encode(),
            "a.b": [1, 2, 3],
            "a": [{"b": 1}, None, {"b": 3}],
            "l": [[1], [], None],
        }
    )
    for suffix in ("parquet", "arrow"):
        (tmp_path / suffix).mkdir()
        FORMATS[suffix](tmp_path / suffix / f"1.{suffix}", table)
        source = FileSource(tmp_path / suffix)
        assert read_all(source) == table.to_pylist()
        assert (
            read_all(FileSource(tmp_path / suffix, columns=["a"]))
            == table.select(["a"]).to_pylist()
        )
        assert (
            read_all(FileSource(tmp_path / suffix, columns=["a.b"]))
            == table.select(["a.b"]).to_pylist()
        )


def test_files_of_another_filesystem_are_read(tmp_path: Path, read_all):
    (tmp_path / "in").mkdir()
    write_parquet(tmp_path / "in" / "a.parquet", TABLE)
    below = fs.SubTreeFileSystem(str(tmp_path), fs.LocalFileSystem())
    for paths in ("in/*.parquet", "in", ["in/a.parquet"], "*/a.parquet"):
        source = FileSource(paths, filesystem=below)
        assert read_all(source) == ROWS
    check_source(source, rows=1_000)
    assert read_all(FileSource(f"file://{tmp_path}/in/*.parquet")) == ROWS
