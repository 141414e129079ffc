"""Iceberg tables are read snapshot by snapshot, each row once, and changes are noticed."""

import pickle
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from batchqueue import ConfigError
from batchqueue.pipeline.contract import Limit
from batchqueue.pipeline.errors import (
    PositionError,
    SourceChangedError,
    SourceDataError,
    SourcePickleError,
)
from batchqueue.pipeline.sources.iceberg import IcebergSource
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

pytest.importorskip("pyiceberg", reason="pyiceberg is not installed")
pytest.importorskip("sqlalchemy", reason="sqlalchemy, for a catalog in a file, is not installed")

from pyiceberg.catalog import load_catalog
from pyiceberg.catalog.memory import InMemoryCatalog
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import IntegerType, LongType, NestedField, StringType

from pipeline_support.iceberg_commits import compact, delete_equal, delete_positions

COLUMNS = Schema(
    NestedField(1, "id", LongType(), required=False),
    NestedField(2, "text", StringType(), required=False),
)


class Shop:
    """A catalog in a file, with the table `shop.orders`."""

    def __init__(self, folder: Path) -> None:
        folder.joinpath("warehouse").mkdir()
        self.properties = {
            "name": "tests",
            "uri": f"sqlite:///{folder}/catalog.db",
            "warehouse": f"file://{folder}/warehouse",
        }
        self.catalog = load_catalog(**self.properties)
        self.catalog.create_namespace("shop")
        self.create()

    def create(self, **settings: Any) -> None:
        self.orders: Table = self.catalog.create_table("shop.orders", COLUMNS, **settings)

    def append(self, *bounds: int) -> None:
        """Append the rows between each two bounds, each in a separate snapshot and file."""
        for first, behind in pairwise(bounds):
            self.orders.append(numbers(first, behind))

    def source(self, **settings: Any) -> IcebergSource:
        return IcebergSource("shop.orders", catalog=self.properties, **settings)

    def expire(self, *positions: int) -> None:
        """Expire snapshots by their places in the history."""
        history = self.orders.refresh().snapshots()
        chosen = [history[position].snapshot_id for position in positions]
        self.orders.maintenance.expire_snapshots().by_ids(chosen).commit()
        self.orders.refresh()


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    shop = Shop(tmp_path)
    yield shop
    shop.catalog.engine.dispose()


def paths(splits: Any) -> list[str]:
    return [split.what.file.file_path for split in splits]


# Each row once


@pytest.mark.parametrize(
    "settings", [{}, {"watch": True}, {"columns": ["text", "id"]}, {"start": "second"}], ids=str
)
def test_source_keeps_the_contract(shop: Shop, settings: dict[str, Any]):
    shop.append(0, 40, 100, 101, 230)
    rows = 230
    if settings.get("start") == "second":
        settings = {"start": shop.orders.snapshots()[1].snapshot_id}
        rows = 130
    check_source(shop.source(**settings), rows=rows)


def test_rows_are_those_of_the_writer_with_a_restart_before_every_split(shop: Shop):
    shop.append(0, 400, 800, 1_000)
    rows = list(restarted_before_every_split(shop.source()))
    assert sorted(rows, key=lambda row: row["id"]) == numbers(0, 1_000).to_pylist()


@pytest.mark.parametrize("limit", LIMITS)
def test_rows_do_not_depend_on_the_limit(shop: Shop, limit: Limit):
    source = shop.source(watch=True)
    at = source.initial()
    shop.append(0, 400, 800, 1_000)
    assert read_on(source, at, (limit,))[0] == numbers(0, 1_000).to_pylist()


def test_a_split_is_a_data_file_in_the_order_of_paths(shop: Shop):
    shop.append(0, 400, 800, 1_000)
    source = shop.source()
    splits = source.plan(source.initial(), ALL).splits
    assert paths(splits) == sorted(paths(splits))
    assert sorted(split.rows for split in splits) == [200, 400, 400]
    for split in splits:
        batches = list(source.read(split))
        size = sum(batch.nbytes for batch in batches)
        assert size / 2 <= split.bytes <= size * 2, "the size is right at least roughly"


def test_one_snapshot_is_read_whatever_is_written_meanwhile(shop: Shop):
    shop.append(0, 400, 800, 1_000)
    source = shop.source()
    first = source.plan(source.initial(), Limit(1, 1))
    begun = ids(row for batch in source.read(first.splits[0]) for row in batch.to_pylist())
    shop.append(1_000, 1_100)
    shop.orders.delete("id >= 0")
    rest, _ = read_on(shop.source(), first.end)
    assert sorted(begun + ids(rest)) == list(range(1_000))


def test_a_table_without_rows_is_an_empty_plan(shop: Shop):
    for watch in (False, True):
        source = shop.source(watch=watch)
        at = source.initial()
        assert source.plan(at, ALL) == ((), at)
        assert source.lag(at)["shop.orders"] == (0, 0.0)
    shop.append(0, 3)
    assert ids(read_on(source, at)[0]) == [0, 1, 2]
    assert shop.source().plan({**at, "until": None}, ALL).splits == (), "a bounded one has ended"


def test_2000_files_are_read_each_once(shop: Shop, tmp_path: Path):
    files = tmp_path / "files"
    files.mkdir()
    for number in range(2_000):
        pq.write_table(numbers(number * 3, number * 3 + 3), files / f"{number:04}.parquet")
    shop.orders.add_files([f"file://{file}" for file in sorted(files.iterdir())])
    source = shop.source()
    first = source.initial()
    assert len(source.plan(first, ALL).splits) == 2_000
    rows, end = read_on(source, first, (Limit(1_000, 1 << 20),))
    assert rows == numbers(0, 6_000).to_pylist()
    assert len(shop.source().between(first, end)) == 2_000


def test_partitioned_tables_are_read_with_their_partition_columns(shop: Shop):
    shop.catalog.drop_table("shop.orders")
    city = PartitionSpec(PartitionField(2, 1_000, IdentityTransform(), "text"))
    shop.create(partition_spec=city)
    table = pa.table({"id": [1, 2, 3, 4], "text": ["Rome", "Oslo", "Rome", None]})
    shop.orders.append(table)
    source = shop.source()
    splits = source.plan(source.initial(), ALL).splits
    assert len(splits) == 3
    rows, _ = read_on(source, source.initial())
    assert sorted(rows, key=lambda row: row["id"]) == table.to_pylist()


def test_a_table_can_be_given_and_is_opened_through_its_catalog_again(shop: Shop):
    shop.append(0, 10)
    source = pickle.loads(pickle.dumps(IcebergSource(shop.orders)))
    assert source.name == "shop.orders"
    assert ids(read_on(source, source.initial())[0]) == list(range(10))
    assert shop.properties["uri"] not in repr(source)


# New data


def test_appended_snapshots_follow_in_their_order(shop: Shop):
    shop.append(0, 100)
    source = shop.source(watch=True)
    first = source.initial()
    rows, at = read_on(source, first)
    assert ids(rows) == list(range(100))
    shop.append(100, 200, 201, 300)
    assert source.lag(at)["shop.orders"].records == 200
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


# What cannot be read


def test_damaged_and_missing_files_are_errors_that_name_the_file(shop: Shop):
    shop.append(0, 100)
    source = shop.source()
    (split,) = source.plan(source.initial(), ALL).splits
    path = Path(split.what.file.file_path.removeprefix("file://"))
    path.write_bytes(path.read_bytes()[:50])
    with pytest.raises(SourceDataError, match=rf"{path.name} cannot be read"):
        list(source.read(split))
    pq.write_table(numbers(0, 7).cast(COLUMNS.as_arrow()), path)
    with pytest.raises(SourceChangedError, match="has 7 rows, and the table says 100"):
        list(source.read(split))
    path.unlink()
    with pytest.raises(SourceChangedError, match=rf"{path.name} .* is gone"):
        list(source.read(split))


def test_missing_manifests_are_an_error_that_names_the_snapshot(shop: Shop, tmp_path: Path):
    shop.append(0, 100)
    source = shop.source()
    at = source.initial()
    for file in tmp_path.glob("warehouse/**/*.avro"):
        file.unlink()
    with pytest.raises(SourceChangedError, match=f"snapshot {at['snapshot']} .* is gone"):
        source.plan(at, ALL)


def test_a_catalog_that_cannot_be_reached_is_an_error_that_names_the_table(tmp_path: Path):
    lost = {"name": "lost", "uri": f"sqlite:///{tmp_path}/missing/catalog.db"}
    with pytest.raises(SourceDataError, match=r"shop\.orders cannot be loaded from its catalog"):
        IcebergSource("shop.orders", catalog=lost).initial()


def test_a_catalog_in_memory_is_read_but_not_pickled(tmp_path: Path):
    catalog = InMemoryCatalog("memory", warehouse=f"file://{tmp_path}")
    catalog.create_namespace("shop")
    table = catalog.create_table("shop.orders", COLUMNS)
    table.append(numbers(0, 5))
    source = IcebergSource(table)
    assert ids(read_on(source, source.initial())[0]) == list(range(5))
    with pytest.raises(SourcePickleError, match="its catalog is in the memory of this one"):
        pickle.dumps(source)


def test_position_of_another_kind_is_refused(shop: Shop):
    shop.append(0, 100)
    source = shop.source()
    at = source.initial()
    for wrong in ({}, {**at, "file": -1}, {**at, "file": "1"}, {**at, "part": "all"}, [1]):
        with pytest.raises(PositionError, match=r"checkpoint|dict"):
            source.plan(wrong, ALL)
    with pytest.raises(SourceChangedError, match="no split"):
        source.between(at, {**at, "file": 7})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"table": ""}, "table is ''"),
        ({"table": 5}, "table is 5; give an identifier"),
        ({"start": "earliest"}, "start is 'earliest'; give 'table' or 'latest'"),
        ({"start": True}, "start is True"),
        ({"start": "latest"}, "watch=True"),
        ({"on_change": None}, "on_change is None"),
        ({"columns": []}, "columns is"),
        ({"columns": ["id", "id"]}, "once"),
    ],
)
def test_invalid_setting_is_refused(settings: dict[str, Any], message: str):
    with pytest.raises(ConfigError, match=message):
        IcebergSource(**{"table": "shop.orders", **settings})


def test_missing_table_or_column_is_a_wrong_setting(shop: Shop):
    with pytest.raises(ConfigError, match=r"shop\.clients is not in its catalog"):
        IcebergSource("shop.clients", catalog=shop.properties).initial()
    with pytest.raises(ConfigError, match="a table and a catalog"):
        IcebergSource(shop.orders, catalog="other")
    with pytest.raises(ConfigError, match=r"no columns \['city'\]; it has \['id', 'text'\]"):
        shop.source(columns=["city"]).schema()
