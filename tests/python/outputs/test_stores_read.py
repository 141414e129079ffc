"""What a store has is read back, as partials or as Arrow, all of it or a selection."""

import math
import os
import pickle
import random
import tempfile
import traceback
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest

from batchqueue import ConfigError
from batchqueue.aggregation import (
    CountMetrics,
    MaxMetrics,
    MeanMetrics,
    Ranking,
    SumMetrics,
    metric_type,
)
from batchqueue.outputs import (
    MetricsReader,
    ParquetStore,
    Selection,
    SqliteStore,
    StoredMetric,
    StoreError,
    StoreUnavailableError,
)
from outputs_support.users import give_up_root

COUNT = metric_type("test.count", CountMetrics)
TOTAL = metric_type("test.total", SumMetrics, columns={"total": int, "compensation": int})
LATEST = metric_type("test.latest", MaxMetrics, columns={"value": str})
MEAN = metric_type("test.mean", MeanMetrics)
WORST = metric_type("test.worst", Ranking, limit=2)
HOUR, DAY = 3_600, 86_400


def write(store, metrics, sink_id="default"):
    with store.transaction(sink_id) as transaction:
        transaction.save(metrics)


def all_of(metric, sink_id="default"):
    return Selection(metric_type=metric, sink_id=sink_id)


@pytest.mark.parametrize("seed", range(5))
def test_selection_of_a_model_is_read(store, seed):
    chance = random.Random(seed)
    model = {
        (entity, hour * HOUR): chance.randrange(100)
        for entity in ("a", "A", "ä", "b c", "it's", "")
        for hour in chance.sample(range(-50, 200), 40)
    }
    write(store, [COUNT(*key, count) for key, count in model.items()])
    write(store, [COUNT("a", 0, -1)], "other")
    write(store, [metric_type("test.neighbour", CountMetrics)("a", 0, -1)])
    for _ in range(20):
        entities = chance.choice([None, [], ["ä"], ["a", "it's", "a", "absent"]])
        since = chance.choice([None, chance.randrange(-60, 210) * HOUR + chance.choice([-1, 0, 1])])
        before = chance.choice([None, chance.randrange(-60, 210) * HOUR + chance.choice([0, 1])])
        expected = sorted(
            (entity, bucket, count)
            for (entity, bucket), count in model.items()
            if (entities is None or entity in entities)
            and (since is None or bucket >= since)
            and (before is None or bucket < before)
        )
        limits = {"entities": entities, "since": since, "before": before}
        found = store.read(COUNT, **limits)
        assert [(*item.key, item.count) for item in found] == expected, limits
        table = store.read_table(COUNT, **limits)
        assert list(zip(*table.to_pydict().values(), strict=True)) == expected, limits


def test_table_has_the_columns_of_the_metric_with_their_types(open_store):
    store = open_store()
    write(store, [MEAN("a", 0, math.nan), MEAN("b", 0, None), MEAN("c", 0, 0.1, 4)])
    write(store, [TOTAL("a", 0, 2**62)])
    write(store, [LATEST("a", 0, "x")])
    write(store, [WORST("a", 0, 9.0, "x"), WORST("b", 0, 8.5, "y", "Y")])
    table = store.read_table(MEAN)
    assert table.schema == pa.schema(
        {
            "entity": pa.string(),
            "time_bucket": pa.int64(),
            "total": pa.float64(),
            "compensation": pa.float64(),
            "count": pa.int64(),
        }
    )
    nan, *rest = table["total"].to_pylist()
    assert math.isnan(nan)
    assert rest == [None, 0.1]
    assert store.read_table(TOTAL)["total"].to_pylist() == [2**62]
    assert store.read_table(LATEST).schema.field("value").type == pa.string()
    assert store.read_table(WORST).to_pylist() == [
        {"entity": "a", "time_bucket": 0, "rank": 1, "score": 9.0, "id": "x", "label": ""},
        {"entity": "b", "time_bucket": 0, "rank": 1, "score": 8.5, "id": "y", "label": "Y"},
    ]


def test_metric_or_sink_that_wrote_nothing_is_an_empty_table_with_columns(store):
    write(store, [COUNT("a", 0)])
    for empty in (store.read_table(TOTAL), store.read_table(COUNT, "absent")):
        assert empty.num_rows == 0
        assert empty.column_names[:2] == ["entity", "time_bucket"]
    assert store.read(TOTAL) == store.read(COUNT, "absent") == []


def test_any_number_of_entities_can_be_wanted(store):
    write(store, [COUNT(str(number), 0) for number in range(100)])
    wanted = [str(number) for number in range(50, 40_000)]
    assert store.read_table(COUNT, entities=wanted).num_rows == 50
    assert len(store.read(COUNT, entities=(name for name in wanted))) == 50


def test_entity_with_nul_is_found(open_sqlite):
    store = open_sqlite()
    write(store, [COUNT("a", 0), COUNT("a\0b", 0)])
    assert [item.entity for item in store.read(COUNT, entities=["a\0b"])] == ["a\0b"]


def test_limits_are_times_of_any_zone(store):
    write(store, [COUNT("a", day * DAY) for day in range(4)])
    found = store.read(
        COUNT,
        since=datetime(1970, 1, 2, tzinfo=UTC),
        before=datetime.fromisoformat("1970-01-04T01:00+01:00"),
    )
    assert [item.time_bucket for item in found] == [DAY, 2 * DAY]


@pytest.mark.parametrize(
    ("limits", "words"),
    [
        ({"entities": "rome"}, ["entities='rome'", "give a list"]),
        ({"entities": ["rome", 7]}, ["entities has 7, an int", "an entity is a str"]),
        ({"since": "2026-01-01"}, ["since='2026-01-01'", "a datetime with a zone"]),
        ({"before": datetime(2026, 1, 1)}, ["before=", "a datetime with a zone"]),
        ({"before": 2**63}, ["before=9223372036854775808", "up to 64 bits"]),
    ],
)
def test_wrong_selections_are_refused(store, limits, words):
    for read in (store.read, store.read_table):
        with pytest.raises(ConfigError) as refused:
            read(COUNT, **limits)
        assert all(word in str(refused.value) for word in words), str(refused.value)


@pytest.mark.parametrize("wrong", ["test.count", int, COUNT("a", 0)])
def test_only_a_metric_type_can_be_read(store, wrong):
    with pytest.raises(ConfigError, match="give a metric type, as metric_type"):
        store.read(wrong)


@pytest.mark.parametrize(
    ("metric", "value", "kind"),
    [
        (metric_type("test.sum", SumMetrics), 2**53 + 1, "double"),
        (MaxMetrics, "x", "double"),
        (TOTAL, 1.5, "int64"),
    ],
)
def test_value_of_another_type_than_its_column_is_named_and_read_returns_it(
    open_sqlite, metric, value, kind
):
    store = open_sqlite()
    write(store, [metric("a", 0, value)])
    with pytest.raises(StoreError, match=rf"metric .* does not fit .*{kind}.*columns=.*read\(\)"):
        store.read_table(metric)
    assert store.read(metric) == [metric("a", 0, value)]


def test_rows_are_those_of_one_commit(store):
    write(store, [COUNT(f"{number:04}", 0, 1) for number in range(3_000)])
    rows = store.rows(all_of(COUNT))
    first = next(rows)
    write(store, [COUNT(f"{number:04}", 0, 2) for number in range(3_000)])
    with store.transaction() as transaction:
        transaction.delete(DAY)
    assert {count for _, _, count in [first, *rows]} == {1}
    assert store.read(COUNT) == []


def test_parts_together_are_the_selection_and_stay_readable_when_they_are_replaced(open_parquet):
    store = open_parquet()
    write(store, [COUNT("a", hour * HOUR, 1) for hour in range(24 * 5)])
    selection = Selection(metric_type=COUNT, sink_id="default", since=DAY, before=3 * DAY + HOUR)
    assert len(store.parts(selection)) == 1
    parts = pickle.loads(pickle.dumps(store.parts(selection, 10)))
    assert len(parts) == 3
    write(store, [COUNT("a", hour * HOUR, 2) for hour in range(24 * 5)])
    rows = [row for part in parts for batch in store.batches(part) for row in batch.to_pylist()]
    assert [row["time_bucket"] for row in rows] == [hour * HOUR for hour in range(24, 73)]
    assert {row["count"] for row in rows} == {1}


def test_metrics_of_a_sink_are_known_by_what_it_stored(store):
    write(store, [COUNT("a", -HOUR), COUNT("b", DAY), TOTAL("a", 7, 3), LATEST("a", 0, "x")])
    write(store, [WORST("a", 0, 2.5, "x")])
    write(store, [MEAN("a", 0, 1.5)], "other")
    found = store.metrics()
    assert [(metric.metric_type.name, *metric[1:]) for metric in found] == [
        ("test.count", 2, -HOUR, DAY),
        ("test.latest", 1, 0, 0),
        ("test.total", 1, 7, 7),
        ("test.worst", 1, 0, 0),
    ]
    for known, metric in zip(found, (COUNT, LATEST, TOTAL, WORST), strict=True):
        assert store.read_table(known.metric_type) == store.read_table(metric)
    assert store.metrics("absent") == []
    assert store.metrics()[0].metric_type is found[0].metric_type
    with pytest.raises(
        ConfigError, match=r"the kind of metric test.count is not known: .*read_tab"
    ):
        store.read(found[0].metric_type)


def test_neighbouring_files_share_a_part_by_their_size(open_parquet):
    store = open_parquet()
    write(store, [COUNT("a", day * DAY) for day in range(20)])
    for count, expected in ((1, 1), (4, 4), (20, 20), (1_000, 20)):
        parts = store.parts(all_of(COUNT), count)
        assert len(parts) == expected
        files = [store.files(COUNT)[0].with_name(name) for part in parts for name in part.files]
        assert files == store.files(COUNT)
    assert store.parts(all_of(TOTAL), 4) == []


def test_part_that_was_planned_too_long_ago_is_an_error_with_the_remedy(open_parquet):
    store = open_parquet(keep_replaced_s=0)
    write(store, [COUNT("a", 0, 1)])
    (part,) = store.parts(all_of(COUNT))
    for count in (2, 3):
        write(store, [COUNT("a", 0, count)])
    with pytest.raises(StoreError, match=r"replaced after .*load\(\).*larger keep_replaced_s"):
        list(store.rows(part))
    assert [row[-1] for row in store.rows(all_of(COUNT))] == [3]


class StoreOfAUser(MetricsReader):
    """The least that a store needs to be read."""

    def __init__(self, partials):
        self.partials = partials

    def rows(self, selection):
        for item in self.partials:
            if selection.wants(*item.key):
                yield from ((*item.key, *values) for values in item.to_rows())

    def metrics(self, sink_id="default"):
        return [StoredMetric(COUNT, len(self.partials), 0, 0)]


def test_store_of_a_user_is_read_likewise():
    partials = [COUNT(f"{number:06}", 0, number) for number in range(100_000)]
    store = StoreOfAUser(partials)
    assert store.read(COUNT, entities=["000007"], before=1) == [COUNT("000007", 0, 7)]
    assert store.read(COUNT, since=1) == store.read(COUNT, before=0) == []
    assert store.read_table(COUNT)["count"].to_pylist() == list(range(100_000))
    batches = list(store.batches(all_of(COUNT)))
    assert len(batches) > 1
    assert pickle.loads(pickle.dumps(store.parts(all_of(COUNT)))) == [all_of(COUNT)]


@pytest.mark.parametrize("kind", [SqliteStore, ParquetStore])
def test_store_that_is_missing_cannot_be_read(kind, tmp_path):
    store = kind(tmp_path / "missing")
    for read in (store.read, store.read_table, lambda _: store.metrics()):
        with pytest.raises(StoreError, match=r"cannot read the store .*missing.*write to it first"):
            read(COUNT)


def in_a_child_without_rights(check):
    """Root may write everywhere, so a child process gives up its rights first."""
    child = os.fork()
    if child == 0:
        try:
            give_up_root()
            check()
            os._exit(0)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0


@pytest.fixture
def read_only_folder():
    """Of the system's folder for temporary files, because other users cannot enter `tmp_path`."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        yield Path(folder)
        os.chmod(folder, 0o755)


@pytest.mark.parametrize("kind", [SqliteStore, ParquetStore])
def test_reading_needs_no_right_to_write(kind, read_only_folder):
    store = kind(read_only_folder / "store")
    write(store, [COUNT("a", 0, 7)])
    os.chmod(read_only_folder, 0o555)

    def check():
        with pytest.raises(StoreError):
            write(store, [COUNT("a", 0, 8)])
        assert store.read(COUNT) == [COUNT("a", 0, 7)]
        assert store.read_table(COUNT, entities=["a"]).num_rows == 1
        assert store.sinks() == ["default"]
        assert len(store.metrics()) == 1

    in_a_child_without_rights(check)


def test_sqlite_file_is_read_without_rights_beside_its_writer(read_only_folder):
    store = SqliteStore(read_only_folder / "store.db")
    write(store, [COUNT("a", 0, 7)])
    with store.transaction() as transaction:
        transaction.save([COUNT("a", 0, 8)])

        def check():
            assert store.read(COUNT) == [COUNT("a", 0, 7)]

        in_a_child_without_rights(check)
    assert store.read(COUNT) == [COUNT("a", 0, 8)]


def test_writer_that_comes_while_a_sqlite_file_is_read_alone_is_noticed(read_only_folder):
    store = SqliteStore(read_only_folder / "store.db")
    write(store, [COUNT("a", 0, 7), COUNT("b", 0, 7)])
    (began, begin), (changed, change) = os.pipe(), os.pipe()
    os.chmod(read_only_folder, 0o555)
    child = os.fork()
    if child == 0:
        try:
            give_up_root()
            rows = store.rows(all_of(COUNT))
            next(rows)
            os.write(begin, b"!")
            os.read(changed, 1)
            with pytest.raises(StoreUnavailableError, match="a writer changed it meanwhile"):
                list(rows)
            os._exit(0)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)
    os.close(begin)  # so that a child that fails is not waited for
    assert os.read(began, 1) == b"!"
    os.chmod(read_only_folder, 0o755)
    write(store, [COUNT("a", 0, 8)])
    os.write(change, b"!")
    assert os.waitpid(child, 0)[1] == 0
