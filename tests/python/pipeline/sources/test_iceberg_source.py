"""Iceberg tables are read snapshot by snapshot, each row once."""

import pickle
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from batchqueue import ConfigError
from batchqueue.pipeline.contract import (
    Limit,
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
    restarted_before_every_split,
)

pytest.importorskip("pyiceberg", reason="pyiceberg is not installed")
pytest.importorskip("sqlalchemy", reason="sqlalchemy, for a catalog in a file, is not installed")

from pyiceberg.catalog.memory import InMemoryCatalog
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.transforms import IdentityTransform

from pipeline_support.iceberg_shop import COLUMNS, Shop


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
