"""Lance datasets are read version by version, each row once, and changes are noticed."""

import logging
import pickle
import shutil
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from batchqueue import ConfigError
from batchqueue.pipeline.contract import Limit
from batchqueue.pipeline.errors import PositionError, SourceChangedError, SourceDataError
from batchqueue.pipeline.sources._lance_history import Fragment
from batchqueue.pipeline.sources.lance import LanceSource
from batchqueue.pipeline.testing import check_source
from pipeline_support.tables import (
    ALL,
    LIMITS,
    ids,
    numbers,
    read_on,
    read_until_error,
    restarted_before_every_split,
)

lance = pytest.importorskip("lance", reason="pylance is not installed")


class Orders:
    """A dataset of 1,000 rows in three fragments of one version, and what is done to it."""

    def __init__(self, path: Path) -> None:
        self.uri = str(path)
        lance.write_dataset(numbers(0, 1_000), self.uri, max_rows_per_file=400)

    @property
    def now(self) -> Any:
        return lance.dataset(self.uri)

    def append(self, table: pa.Table) -> None:
        lance.write_dataset(table, self.uri, mode="append")

    def source(self, **settings: Any) -> LanceSource:
        return LanceSource(self.uri, **{"split_rows": 150, **settings})

    @property
    def data_files(self) -> list[Path]:
        return list(Path(self.uri, "data").iterdir())


@pytest.fixture
def orders(tmp_path: Path) -> Orders:
    return Orders(tmp_path / "orders.lance")


# Each row once, in order


@pytest.mark.parametrize("settings", [{}, {"watch": True}, {"columns": ["text", "id"]}])
def test_source_keeps_the_contract(orders: Orders, settings: dict[str, Any]):
    orders.append(numbers(1_000, 1_030))
    check_source(orders.source(**settings), rows=1_030)


def test_rows_are_those_of_the_writer_with_a_restart_before_every_split(orders: Orders):
    rows = list(restarted_before_every_split(orders.source()))
    assert rows == numbers(0, 1_000).to_pylist()


@pytest.mark.parametrize("limit", LIMITS)
def test_rows_do_not_depend_on_the_limit(orders: Orders, limit: Limit):
    source = orders.source()
    rows, _ = read_on(source, source.initial(), (limit,))
    assert rows == numbers(0, 1_000).to_pylist()


def test_splits_end_at_multiples_of_their_rows_in_each_fragment(orders: Orders):
    source = orders.source()
    splits = source.plan(source.initial(), ALL).splits
    assert [split.rows for split in splits] == [150, 150, 100, 150, 150, 100, 150, 50]
    assert {split.end["version"] for split in splits} == {1}
    inside = {**splits[0].end, "row": 70}
    assert [split.rows for split in source.plan(inside, ALL).splits][:3] == [80, 150, 100]


def test_deleted_rows_are_left_out_at_every_offset(orders: Orders):
    orders.now.delete("id % 7 = 0 or id between 300 and 500")
    expected = [n for n in range(1_000) if n % 7 and not 300 <= n <= 500]
    for split_rows in (1, 13, 150, 5_000):
        source = orders.source(split_rows=split_rows)
        assert ids(read_on(source, source.initial(), (ALL,))[0]) == expected
    check_source(orders.source(split_rows=13), rows=len(expected))


def test_one_version_is_read_whatever_is_written_meanwhile(orders: Orders):
    source = orders.source()
    first, rest = source.plan(source.initial(), Limit(1, 1)), []
    orders.append(numbers(1_000, 1_100))
    orders.now.delete("id >= 0")
    orders.now.optimize.compact_files()
    rest, _ = read_on(orders.source(), first.end)
    assert ids(rest) == list(range(150, 1_000))


def test_a_version_can_be_given(orders: Orders):
    orders.append(numbers(1_000, 1_100))
    old = orders.source(version=1)
    assert ids(read_on(old, old.initial())[0]) == list(range(1_000))


def test_a_table_without_rows_is_an_empty_plan(tmp_path: Path):
    lance.write_dataset(numbers(0, 0), str(tmp_path / "empty.lance"))
    for watch in (False, True):
        source = LanceSource(str(tmp_path / "empty.lance"), watch=watch)
        assert source.plan(source.initial(), ALL) == ((), source.initial())
        assert source.schema().names == ["id", "text"]
    lance.write_dataset(numbers(0, 3), str(tmp_path / "empty.lance"), mode="append")
    assert ids(read_on(source, source.initial())[0]) == [0, 1, 2]


def test_2000_fragments_are_read_each_once(tmp_path: Path):
    uri = str(tmp_path / "many.lance")
    lance.write_dataset(numbers(0, 6_000), uri, max_rows_per_file=3, max_rows_per_group=3)
    source = LanceSource(uri)
    assert len(source.plan(source.initial(), ALL).splits) == 2_000
    rows, end = read_on(source, source.initial(), (Limit(1_000, 1 << 20),))
    assert rows == numbers(0, 6_000).to_pylist()
    assert len(source.between(source.initial(), end)) == 2_000


# New data


def test_appended_fragments_follow_version_by_version(orders: Orders):
    source = orders.source(watch=True)
    first = source.initial()
    rows, at = read_on(source, first)
    assert ids(rows) == list(range(1_000))
    orders.append(numbers(1_000, 1_200))
    orders.append(numbers(1_200, 1_201))
    assert source.lag(at)["orders"].records == 201
    rows, end = read_on(source, at)
    assert ids(rows) == list(range(1_000, 1_201))
    assert source.lag(end)["orders"] == (0, 0.0)
    splits = orders.source(watch=True).between(first, end)
    assert [split.end["version"] for split in splits] == [1] * 8 + [2, 2, 3]


def test_starting_at_the_latest_version_reads_only_what_follows(orders: Orders):
    source = orders.source(watch=True, start="latest")
    at = source.initial()
    assert source.plan(at, ALL).splits == ()
    orders.append(numbers(1_000, 1_010))
    assert ids(read_on(source, at)[0]) == list(range(1_000, 1_010))


def test_versions_without_changes_of_rows_are_passed_over(orders: Orders):
    source = orders.source(watch=True)
    _, at = read_on(source, source.initial())
    orders.now.create_scalar_index("id", "BTREE")
    orders.now.update_config({"owner": "tests"})
    nothing = source.plan(at, ALL)
    assert nothing.splits == ()
    assert nothing.end["version"] == orders.now.version > at["version"]
    assert source.between(at, nothing.end) == []
    orders.append(numbers(1_000, 1_010))
    assert ids(read_on(source, at)[0]) == list(range(1_000, 1_010))
    source.commit(nothing.end)
    orders.now.cleanup_old_versions(timedelta(0), error_if_tagged_old_versions=False)
    rows, _ = read_on(orders.source(watch=True), nothing.end)
    assert ids(rows) == list(range(1_000, 1_010)), "what was passed over may be removed"


# Changes of what was read


def compact(orders: Orders) -> None:
    orders.now.optimize.compact_files()


def overwrite(orders: Orders) -> None:
    lance.write_dataset(numbers(0, 10), orders.uri, mode="overwrite")


def delete(orders: Orders) -> None:
    orders.now.delete("id = 5")


def update(orders: Orders) -> None:
    orders.now.update({"text": "'new'"}, where="id = 5")


def rewrite_values(orders: Orders) -> None:
    values = pa.table({"id": pa.array([5], pa.int64()), "text": ["new"]})
    fragment, fields = orders.now.get_fragment(0).update_columns(values, "id")
    operation = lance.LanceOperation.Update(updated_fragments=[fragment], fields_modified=fields)
    lance.LanceDataset.commit(orders.uri, operation, read_version=orders.now.version)


@pytest.mark.parametrize("change", [compact, overwrite, delete, update, rewrite_values])
def test_changed_rows_are_an_error_or_passed_over(orders: Orders, change: Any):
    source = orders.source(watch=True)
    _, at = read_on(source, source.initial())
    orders.append(numbers(1_000, 1_010))
    change(orders)
    orders.append(numbers(1_010, 1_020))
    assert source.lag(at)["orders"].records is None
    rows, error = read_until_error(source, at)
    assert ids(rows) == list(range(1_000, 1_010)), "what comes before the change is read"
    assert isinstance(error, SourceChangedError)
    assert "changed, deleted or moved rows" in str(error)
    assert "on_change='skip'" in str(error)

    tolerant = orders.source(watch=True, on_change="skip")
    assert ids(read_on(tolerant, at)[0]) == list(range(1_000, 1_020))


def test_versions_removed_before_a_change_are_an_error_in_any_case(orders: Orders):
    source = orders.source(watch=True, on_change="skip")
    _, at = read_on(source, source.initial())
    orders.append(numbers(1_000, 1_010))
    compact(orders)
    orders.now.cleanup_old_versions(timedelta(0), error_if_tagged_old_versions=False)
    with pytest.raises(SourceChangedError, match="versions in between have been removed"):
        source.plan(at, ALL)


def test_a_removed_version_is_an_error_that_names_the_tag(orders: Orders):
    source = orders.source(tag=None)
    at = source.initial()
    overwrite(orders)
    orders.now.cleanup_old_versions(timedelta(0))
    with pytest.raises(SourceChangedError, match=r"version 1 of .*tag"):
        orders.source(tag=None).plan(at, ALL)


def test_a_dataset_made_again_is_not_the_same(orders: Orders, tmp_path: Path):
    at = orders.source().initial()
    shutil.rmtree(orders.uri)
    with pytest.raises(SourceChangedError, match="cannot be opened"):
        orders.source().plan(at, ALL)
    Orders(tmp_path / "orders.lance")
    with pytest.raises(SourceChangedError, match="removed and made again"):
        orders.source().plan(at, ALL)


# The version in use is protected


def test_version_of_the_last_cut_is_tagged_until_the_end(orders: Orders):
    source = orders.source(tag="revenue")
    at = source.initial()
    overwrite(orders)
    with pytest.raises(OSError, match="revenue"):
        orders.now.cleanup_old_versions(timedelta(0))
    orders.now.cleanup_old_versions(timedelta(0), error_if_tagged_old_versions=False)
    rows, end = read_on(orders.source(tag="revenue"), at)
    assert ids(rows) == list(range(1_000))
    source.commit(end)
    assert orders.now.tags.list() == {}


def test_tag_moves_with_the_cuts(orders: Orders):
    source = orders.source(watch=True)
    at = source.initial()
    orders.append(numbers(1_000, 1_010))
    _, end = read_on(source, at)
    assert orders.now.tags.list()["batchqueue"]["version"] == 1
    source.commit(end)
    assert orders.now.tags.list()["batchqueue"]["version"] == 2


def test_a_dataset_that_cannot_be_tagged_is_read_with_a_warning(
    orders: Orders, caplog: pytest.LogCaptureFixture
):
    Path(orders.uri, "_refs").write_text("not a directory")
    with caplog.at_level(logging.WARNING, "batchqueue.pipeline"):
        source = orders.source()
        rows, _ = read_on(source, source.initial())
    assert len(rows) == 1_000
    assert "cannot be tagged 'batchqueue'" in caplog.text
    assert "tag=None" in caplog.text


# Columns


def test_added_column_is_null_in_older_versions(orders: Orders):
    old = orders.source(watch=True)
    at = old.plan(old.initial(), Limit(1, 1)).end
    orders.now.add_columns({"double": "id * 2"})
    orders.append(numbers(1_000, 1_001).append_column("double", [[7]]))
    rows, _ = read_on(orders.source(watch=True), at)
    assert rows[0] == {"id": 150, "text": "row 150", "double": None}
    assert rows[-1] == {"id": 1_000, "text": "row 1000", "double": 7}
    rows, _ = read_on(old, at)
    assert rows[-1] == {"id": 1_000, "text": "row 1000"}, "columns stay while a source is open"


@pytest.mark.parametrize(
    "change",
    [
        lambda now: now.alter_columns({"path": "text", "name": "words"}),
        lambda now: now.drop_columns(["text"]),
    ],
    ids=["renamed", "dropped"],
)
def test_lost_column_is_an_error_that_names_it(orders: Orders, change: Any):
    source = orders.source(watch=True)
    source.schema()
    _, at = read_on(source, source.initial())
    change(orders.now)
    orders.append(orders.now.to_table(limit=1))
    with pytest.raises(SourceChangedError, match=r"column 'text' is .*name the columns"):
        read_on(source, at)


def test_name_from_before_a_renaming_is_an_error_for_older_versions(orders: Orders):
    at = orders.source().initial()
    orders.now.alter_columns({"path": "text", "name": "words"})
    with pytest.raises(SourceChangedError, match="column 'words' is named 'text' there"):
        read_on(orders.source(), at)
    assert len(read_on(orders.source(columns=["id"]), at)[0]) == 1_000


def test_widened_type_is_cast_in_older_versions(orders: Orders):
    lance.write_dataset(pa.table({"n": pa.array([1, 2], pa.int32())}), orders.uri, mode="overwrite")
    at = orders.source().initial()
    orders.now.alter_columns({"path": "n", "data_type": pa.int64()})
    source = orders.source()
    assert source.schema().field("n").type == pa.int64()
    assert read_on(source, at)[0] == [{"n": 1}, {"n": 2}]


def test_cast_and_added_columns_are_not_changes_of_rows(orders: Orders):
    source = orders.source(watch=True)
    source.schema()
    _, at = read_on(source, source.initial())
    orders.now.alter_columns({"path": "id", "data_type": pa.int32()})
    orders.now.alter_columns({"path": "text", "data_type": pa.large_string()})
    orders.now.add_columns({"double": "id * 2"})
    orders.append(orders.now.to_table(limit=1))
    assert read_on(source, at)[0] == numbers(0, 1).to_pylist()


def test_file_whose_fields_are_out_of_use_may_go():
    before = Fragment(10, 0, (("a", (0, -2)), ("b", (-2, 1))))
    assert Fragment(10, 0, (("a", (0, -2)), ("c", (2,)))).has_rows_of(before)
    assert not Fragment(10, 0, (("a", (0, -2)), ("c", (1,)))).has_rows_of(before)


# What cannot be read


def test_damaged_and_missing_data_are_errors_that_name_the_fragment(orders: Orders):
    plan = orders.source().plan(orders.source().initial(), Limit(1, 1))
    for file in orders.data_files:
        file.write_bytes(file.read_bytes()[:100])
    with pytest.raises(SourceDataError, match=r"fragment 0 of version 1 .* cannot be read"):
        list(orders.source().read(plan.splits[0]))
    for file in orders.data_files:
        file.unlink()
    with pytest.raises(SourceChangedError, match=r"fragment 0 of version 1 .* is gone"):
        list(orders.source().read(plan.splits[0]))


def test_position_of_another_kind_is_refused(orders: Orders):
    source = orders.source()
    at = source.initial()
    for wrong in ({}, {**at, "row": -1}, {**at, "row": "1"}, {**at, "version": True}, [1]):
        with pytest.raises(PositionError, match=r"checkpoint|dict"):
            source.plan(wrong, ALL)
    with pytest.raises(SourceChangedError, match="no split"):
        source.between(at, {**at, "fragment": 0, "row": 70})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"uri": ""}, "uri is ''"),
        ({"version": 0}, "version is 0"),
        ({"split_rows": 0}, "split_rows is 0"),
        ({"start": "earliest"}, "start is 'earliest'; give 'table' or 'latest'"),
        ({"start": "latest"}, "watch=True"),
        ({"on_change": None}, "on_change is None"),
        ({"columns": []}, "columns is"),
        ({"columns": "id"}, "columns is 'id'"),
        ({"columns": ["id", "id"]}, "once"),
    ],
)
def test_invalid_setting_is_refused(settings: dict[str, Any], message: str):
    with pytest.raises(ConfigError, match=message):
        LanceSource(**{"uri": "orders.lance", **settings})


def test_missing_dataset_version_or_column_is_a_wrong_setting(orders: Orders, tmp_path: Path):
    with pytest.raises(ConfigError, match=r"missing\.lance cannot be opened"):
        LanceSource(str(tmp_path / "missing.lance")).initial()
    with pytest.raises(ConfigError, match="version 7"):
        orders.source(version=7).initial()
    with pytest.raises(ConfigError, match=r"no columns \['city'\]; it has \['id', 'text'\]"):
        orders.source(columns=["city"]).schema()


def test_pickled_source_has_no_open_dataset_but_the_same_columns(orders: Orders):
    source = orders.source()
    source.schema()
    data = pickle.dumps(source)
    assert b"LanceDataset" not in data
    orders.now.add_columns({"double": "id * 2"})
    assert pickle.loads(data).schema().names == ["id", "text"]
