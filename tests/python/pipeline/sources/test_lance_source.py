"""Lance datasets are read version by version, each row once."""

import pickle
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from batchqueue import ConfigError
from batchqueue.pipeline.contract import Limit, PositionError, SourceChangedError, SourceDataError
from batchqueue.pipeline.sources.lance import LanceSource
from batchqueue.pipeline.testing import check_source
from pipeline_support.tables import (
    ALL,
    LIMITS,
    ids,
    numbers,
    read_on,
    restarted_before_every_split,
)

pytest.importorskip("lance", reason="pylance is not installed")

import lance

from pipeline_support.lance_orders import Orders

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
