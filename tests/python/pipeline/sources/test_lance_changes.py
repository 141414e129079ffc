"""Changes of a Lance dataset are noticed, and the version in use is protected."""

import logging
import shutil
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from batchqueue.base.background_log import flush_log
from batchqueue.pipeline.contract import Limit, SourceChangedError
from batchqueue.pipeline.sources.lance import Fragment
from core_support.waits import WAIT_S
from pipeline_support.tables import (
    ALL,
    ids,
    numbers,
    read_on,
    read_until_error,
)

pytest.importorskip("lance", reason="pylance is not installed")

import lance

from pipeline_support.lance_orders import Orders

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
        assert flush_log(WAIT_S)
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
