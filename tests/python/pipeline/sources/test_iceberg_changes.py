"""What is appended to an Iceberg table follows, and other changes are noticed."""

from typing import Any

import pyarrow as pa
import pytest

from batchqueue.pipeline.contract import (
    SourceChangedError,
    SourceDataError,
)
from batchqueue.pipeline.sources.iceberg import IcebergSource
from batchqueue.pipeline.testing import check_source
from pipeline_support.tables import (
    ALL,
    ids,
    numbers,
    read_on,
    read_until_error,
)

pytest.importorskip("pyiceberg", reason="pyiceberg is not installed")
pytest.importorskip("sqlalchemy", reason="sqlalchemy, for a catalog in a file, is not installed")

from pyiceberg.schema import Schema
from pyiceberg.types import IntegerType, LongType, NestedField, StringType

from pipeline_support.iceberg_commits import compact, delete_equal, delete_positions
from pipeline_support.iceberg_shop import Shop


def paths(splits: Any) -> list[str]:
    return [split.what.file.file_path for split in splits]


# New data


def test_appended_snapshots_follow_in_their_order(shop: Shop):
    shop.append(0, 100)
    source = shop.source(watch=True)
    first = source.initial()
    rows, at = read_on(source, first)
    assert ids(rows) == list(range(100))
    shop.append(100, 200, 201, 300)
    planned_with = source._history.table
    assert source.lag(at)["shop.orders"].records == 200
    assert source._history.table is planned_with, "another thread may plan with it"
    rows, end = read_on(source, at)
    assert ids(rows) == list(range(100, 300))
    assert source.lag(end)["shop.orders"] == (0, 0.0)
    splits = shop.source(watch=True).between(first, end)
    snapshots = [snapshot.snapshot_id for snapshot in shop.orders.snapshots()]
    assert [split.end["snapshot"] for split in splits] == snapshots


def test_start_latest_and_start_behind_a_snapshot_read_only_what_follows(shop: Shop):
    shop.append(0, 100, 200)
    latest = shop.source(watch=True, start="latest")
    at = latest.initial()
    assert latest.plan(at, ALL).splits == ()
    first_snapshot = shop.orders.snapshots()[0].snapshot_id
    bounded = shop.source(start=first_snapshot)
    bounded_at = bounded.initial()
    shop.append(200, 210)
    assert ids(read_on(latest, at)[0]) == list(range(200, 210))
    assert ids(read_on(bounded, bounded_at)[0]) == list(range(100, 200))


def test_compaction_is_passed_over(shop: Shop):
    shop.append(0, 100, 200)
    source = shop.source(watch=True)
    _, at = read_on(source, source.initial())
    compact(shop.orders)
    nothing = source.plan(at, ALL)
    assert nothing.splits == ()
    shop.append(200, 210)
    assert ids(read_on(source, at)[0]) == list(range(200, 210))
    shop.expire(0, 1)
    again = shop.source(watch=True)
    rows, end = read_on(again, nothing.end)
    assert ids(rows) == list(range(200, 210)), "what was passed over may expire"
    assert len(again.between(nothing.end, end)) == 1
    assert len(read_on(shop.source(), shop.source().initial())[0]) == 210


# Deleted and overwritten rows


def test_position_deletes_are_applied(shop: Shop):
    shop.append(0, 100, 200)
    source = shop.source(watch=True)
    splits = source.plan(source.initial(), ALL).splits
    delete_positions(shop.orders, paths(splits)[0], [0, 5, 99])
    gone = {next(source.read(splits[0]))["id"][row].as_py() for row in (0, 5, 99)}
    rows, _ = read_on(shop.source(), shop.source().initial())
    assert sorted(ids(rows)) == sorted(set(range(200)) - gone)
    check_source(shop.source(), rows=197)


def test_equality_deletes_are_refused_with_what_to_do(shop: Shop):
    shop.append(0, 100)
    delete_equal(shop.orders, [5])
    source = shop.source()
    with pytest.raises(SourceDataError, match="rewrite its data files first"):
        source.plan(source.initial(), ALL)


def by_position(shop: Shop) -> None:
    path = next(iter(shop.orders.refresh().scan().plan_files())).file.file_path
    delete_positions(shop.orders, path, [0])


def rewriting(shop: Shop) -> None:
    shop.orders.delete("id = 5")


def whole_files(shop: Shop) -> None:
    shop.orders.delete("id < 100")


def overwriting(shop: Shop) -> None:
    shop.orders.overwrite(numbers(5, 6), "id = 5")


@pytest.mark.parametrize("change", [by_position, rewriting, whole_files, overwriting])
def test_changed_rows_are_an_error_or_passed_over(shop: Shop, change: Any):
    shop.append(0, 100)
    source = shop.source(watch=True)
    _, at = read_on(source, source.initial())
    shop.append(100, 150)
    change(shop)
    shop.append(150, 160)
    assert source.lag(at)["shop.orders"].records is None
    rows, error = read_until_error(source, at)
    assert ids(rows) == list(range(100, 150)), "what comes before the change is read"
    assert isinstance(error, SourceChangedError)
    assert "of the kind 'delete'" in str(error) or "of the kind 'overwrite'" in str(error)
    assert "on_change='skip'" in str(error)

    tolerant = shop.source(watch=True, on_change="skip")
    overwritten = [5] if change is overwriting else []  # pyiceberg deletes, and then appends
    assert ids(read_on(tolerant, at)[0]) == [*range(100, 150), *overwritten, *range(150, 160)]


# Snapshots that are gone


def test_expired_snapshots_are_an_error_in_any_case(shop: Shop):
    first = shop.source(watch=True).initial()
    shop.append(0, 100)
    source = shop.source(watch=True, on_change="skip")
    _, at = read_on(source, source.initial())
    scan = shop.source().initial()
    shop.append(100, 200, 300)
    shop.expire(0, 1)
    for position in (first, at):
        with pytest.raises(SourceChangedError, match=r"expired.*new checkpoint"):
            shop.source(watch=True, on_change="skip").plan(position, ALL)
    with pytest.raises(SourceChangedError, match=r"expired.*new checkpoint"):
        shop.source().plan(scan, ALL)


def test_a_table_that_was_rolled_back_is_an_error(shop: Shop):
    shop.append(0, 100, 200)
    source = shop.source(watch=True)
    _, at = read_on(source, source.initial())
    before = shop.orders.snapshots()[0].snapshot_id
    shop.orders.manage_snapshots().rollback_to_snapshot(before).commit()
    with pytest.raises(SourceChangedError, match="rolled back"):
        source.plan(at, ALL)


def test_a_table_made_again_is_not_the_same(shop: Shop):
    shop.append(0, 100)
    at = shop.source().initial()
    shop.catalog.drop_table("shop.orders")
    with pytest.raises(SourceChangedError, match=r"shop\.orders is not in its catalog"):
        shop.source().plan(at, ALL)
    shop.create()
    with pytest.raises(SourceChangedError, match="removed and made again"):
        shop.source().plan(at, ALL)


# Columns


def test_added_column_is_null_in_older_files(shop: Shop):
    shop.append(0, 2)
    old = shop.source(watch=True)
    old.schema()
    at = old.initial()
    with shop.orders.update_schema() as update:
        update.add_column("cents", LongType())
    shop.orders.append(numbers(2, 3).append_column("cents", [[7]]))
    rows, _ = read_on(shop.source(watch=True), at)
    assert [row["cents"] for row in rows] == [None, None, 7]
    assert rows[2]["text"] == "row 2"
    rows, _ = read_on(old, at)
    assert rows == numbers(0, 3).to_pylist(), "columns stay while a source is open"


def test_renamed_column_is_read_under_its_new_name_from_older_files(shop: Shop):
    shop.append(0, 2)
    old = shop.source(watch=True)
    old.schema()
    at = old.initial()
    with shop.orders.update_schema() as update:
        update.rename_column("text", "words")
    shop.orders.append(numbers(2, 3).rename_columns(["id", "words"]))
    rows, _ = read_on(shop.source(watch=True, columns=["words"]), at)
    assert rows == [{"words": "row 0"}, {"words": "row 1"}, {"words": "row 2"}]
    assert read_on(old, at)[0] == numbers(0, 3).to_pylist()


def test_another_column_with_a_former_name_does_not_get_its_values(shop: Shop):
    shop.append(0, 2)
    at = shop.source(watch=True).initial()
    with shop.orders.update_schema() as update:
        update.delete_column("text")
    with shop.orders.update_schema() as update:
        update.add_column("text", StringType())
    rows, _ = read_on(shop.source(watch=True), at)
    assert rows == [{"id": 0, "text": None}, {"id": 1, "text": None}]


def test_widened_type_is_cast_in_older_files(shop: Shop):
    shop.catalog.create_table("shop.small", Schema(NestedField(1, "n", IntegerType())))
    small = shop.catalog.load_table("shop.small")
    small.append(pa.table({"n": pa.array([1, 2], pa.int32())}))
    with small.update_schema() as update:
        update.update_column("n", LongType())
    source = IcebergSource(small)
    assert source.schema().field("n").type == pa.int64()
    assert read_on(source, source.initial())[0] == [{"n": 1}, {"n": 2}]
