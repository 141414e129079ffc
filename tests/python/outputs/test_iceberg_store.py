"""What is special to `IcebergStore`: snapshots, other writers of its tables, and catalogs."""

import pickle

import pyarrow as pa
import pyarrow.compute as pc
import pytest

pytest.importorskip("pyiceberg", reason="pyiceberg is not installed")

from pyiceberg.catalog.memory import InMemoryCatalog
from pyiceberg.table import DataScan
from pyiceberg.transforms import IdentityTransform

from batchqueue.aggregation import CountMetrics, SumMetrics, metric_type
from batchqueue.exceptions import ConfigError
from batchqueue.outputs import IcebergStore, StoreError
from batchqueue.outputs.iceberg.store import check_iceberg
from outputs_support.epochs import COUNT, DAY, add, state
from outputs_support.other_writer import rewrite
from outputs_support.stores import iceberg_catalog

MEAN_LIKE = metric_type("test.sum", SumMetrics)
CENTS = metric_type("test.cents", SumMetrics, columns={"total": int})
BY_CITY = metric_type("test.cities", CountMetrics, keys={"total": str, "rank_": int})


@pytest.fixture
def store(open_iceberg):
    return open_iceberg()


def test_other_engines_read_one_table_for_each_sink(store, lake):
    add(store, 0)
    add(store, 0, "ü, an odd name/")
    with store.transaction() as transaction:
        transaction.merge([CENTS("a", 0, 7)])
    assert store.table() == "metrics.sink_default"
    assert store.table("ü, an odd name/") == "metrics.sink____an_odd_name__f8ee48db"
    rows = lake.load_table(store.table()).scan(row_filter="metric = 'test.count'").to_arrow()
    wanted = store.read_table(COUNT).to_pylist()
    columns = ["entity", "time_bucket", "count"]
    assert sorted(rows.select(columns).to_pylist(), key=lambda row: row["entity"]) == wanted
    assert set(rows["batchqueue_table"].to_pylist()) == {"count_metrics"}


def test_an_epoch_is_one_snapshot_that_names_it(store, lake):
    for batch_id in range(3):
        add(store, batch_id)
    snapshots = lake.load_table(store.table()).snapshots()
    named = [
        (s.summary["batchqueue.query-id"], s.summary["batchqueue.batch-id"]) for s in snapshots
    ]
    assert named == [("query", str(number)) for number in range(3)]


def test_only_changed_partitions_are_written(store, lake):
    add(store, 0)
    with store.transaction() as transaction:
        transaction.merge([COUNT("a", 0)])
    newest = lake.load_table(store.table()).current_snapshot().summary
    assert (newest["added-data-files"], newest["deleted-data-files"]) == ("1", "1")


def test_manifests_of_what_was_replaced_are_left_behind(store, lake):
    for batch_id in range(8):
        add(store, batch_id)
    table = lake.load_table(store.table())
    assert len(table.current_snapshot().manifests(table.io)) == 2  # of added and of replaced files


def test_columns_of_one_name_and_of_several_types_have_several_columns(store, lake):
    with store.transaction() as transaction:
        transaction.merge([MEAN_LIKE("a", 0, 0.5), COUNT("a", 0, 9)])
    with store.transaction() as transaction:
        transaction.merge([CENTS("a", 0, 2**60), BY_CITY(("rome", 1), 0, 3)])
    names = [field.name for field in lake.load_table(store.table()).schema().fields]
    assert names == [
        *("batchqueue_table", "metric", "entity", "time_bucket", "rank", "total", "compensation"),
        *("count", "total_int", "total_str", "rank_"),
    ]
    for item in (MEAN_LIKE("a", 0, 0.5), COUNT("a", 0, 9), CENTS("a", 0, 2**60)):
        assert store.read(type(item)) == [item]
    assert store.read(BY_CITY, keys={"total": "rome", "rank_": [1, 2]}) == [
        BY_CITY(("rome", 1), 0, 3)
    ]
    assert store.read(BY_CITY, keys={"total": "oslo"}) == []


def test_any_names_of_columns_are_stored(store, lake):
    class Odd(CountMetrics):
        table = "odd"
        columns = {"time_bucket_start": int}  # noqa: RUF012

    class Case(CountMetrics):
        table = "case_kind"
        columns = {"COUNT": int}  # noqa: RUF012

    with store.transaction() as transaction:
        transaction.merge([COUNT("a", 0, 1), Odd("a", 0, 2), Case("a", 0, 3)])
    for kind, count in ((COUNT, 1), (Odd, 2), (Case, 3)):
        assert [item.count for item in store.read(kind)] == [count]
    names = [field.name for field in lake.load_table(store.table()).schema().fields]
    assert names[5:] == ["count", "time_bucket_start_int", "COUNT_int"]


def test_many_partitions_are_looked_up_together(store, monkeypatch):
    days = [COUNT("a", day * DAY) for day in range(40)]
    for _ in range(2):
        with store.transaction() as transaction:
            transaction.merge(days)
    plans = []
    plan_files = DataScan.plan_files
    monkeypatch.setattr(DataScan, "plan_files", lambda scan: plans.append(scan) or plan_files(scan))
    with store.transaction() as transaction:
        transaction.merge(days)
    assert len(plans) < 6
    assert [item.count for item in store.read(COUNT)] == [3] * 40


def test_other_columns_are_possible_after_everything_was_cleared(store):
    first, second = (
        type("Kind", (CountMetrics,), {"table": "kind", "columns": {column: int}})
        for column in ("before", "after")
    )
    with store.transaction() as transaction:
        transaction.merge([first("a", 0, 1)])
    with pytest.raises(StoreError, match=r"with the columns before int, and not after int"):
        store.read(second)
    with store.transaction() as transaction:
        transaction.clear()
        transaction.merge([second("a", 0, 2)])
    assert [item.count for item in store.read(second)] == [2]


class TestOtherWriters:
    def test_rolled_back_table_has_the_ledger_of_then(self, store, lake):
        for batch_id in range(3):
            add(store, batch_id)
        table = lake.load_table(store.table())
        table.manage_snapshots().rollback_to_snapshot(table.snapshots()[1].snapshot_id).commit()
        assert state(store) == ({"a": 2, "b": 2}, 1, [0, 1])
        add(store, 2, count=5)
        assert state(store) == ({"a": 7, "b": 7}, 2, [0, 1, 2])

    def test_table_without_any_epoch_after_a_rollback_is_refused(self, store, lake):
        add(store, 0)
        table = lake.load_table(store.table())
        rewrite(table)
        table.refresh()
        first, second = [snapshot.snapshot_id for snapshot in table.snapshots()]
        add(store, 1)
        table.refresh()
        table.maintenance.expire_snapshots().by_id(first).commit()
        table.refresh()
        table.manage_snapshots().rollback_to_snapshot(second).commit()
        with pytest.raises(
            StoreError, match=r"was rolled back to a snapshot whose ledger has expired.*roll"
        ):
            state(store)

    def test_rewritten_files_have_the_same_results_and_ledger(self, store, lake):
        add(store, 0)
        rewrite(lake.load_table(store.table()))
        assert state(store) == ({"a": 1, "b": 1}, 0, [0])
        add(store, 1)
        assert state(store) == ({"a": 2, "b": 2}, 1, [0, 1])

    def test_changed_rows_count_and_the_ledger_stays(self, store, lake):
        add(store, 0)

        def change(rows):
            """DELETE WHERE entity = 'a'; UPDATE SET count = 9."""
            kept = rows.filter(pc.field("entity") != "a")
            column = kept.schema.get_field_index("count")
            return kept.set_column(column, "count", pa.array([9] * len(kept), pa.int64()))

        rewrite(lake.load_table(store.table()), change)
        assert state(store) == ({"b": 9}, 0, [0])
        add(store, 1)
        assert state(store) == ({"a": 1, "b": 10}, 1, [0, 1])

    @pytest.mark.parametrize("is_rewritten", [False, True])
    def test_expired_snapshots_take_their_summaries_but_no_mark(self, store, lake, is_rewritten):
        for batch_id in range(3):
            add(store, batch_id)
        table = lake.load_table(store.table())
        if is_rewritten:
            rewrite(table)
            table.refresh()
        old = [snapshot.snapshot_id for snapshot in table.snapshots()[:-1]]
        table.maintenance.expire_snapshots().by_ids(old).commit()
        assert state(store) == ({"a": 3, "b": 3}, 2, [2])
        add(store, 2)
        add(store, 3)
        assert state(store) == ({"a": 4, "b": 4}, 3, [3] if is_rewritten else [2, 3])

    def test_rows_with_one_key_are_named_by_a_check(self, store, lake):
        add(store, 0)
        assert check_iceberg(store).problems == []
        rewrite(lake.load_table(store.table()), lambda rows: pa.concat_tables([rows, rows]))
        (problem,) = check_iceberg(store).problems
        assert "sink 'default' has 2 rows of metric test.count whose key another row" in problem

    @pytest.mark.parametrize("is_rewritten", [False, True])
    def test_newest_summary_survives_though_only_a_delete_is_left(self, store, lake, is_rewritten):
        """A script for retention deletes rows, and then expires snapshots."""
        for batch_id in range(2):
            add(store, batch_id)
        store.delete(before=1)
        table = lake.load_table(store.table())
        if is_rewritten:
            rewrite(table)
            table.refresh()
        old = [snapshot.snapshot_id for snapshot in table.snapshots()[:-1]]
        table.maintenance.expire_snapshots().by_ids(old).commit()
        assert state(store) == ({"b": 2}, 1, [1])
        store.delete(before=2)
        assert state(store) == ({"b": 2}, 1, [1])
        add(store, 2)
        assert state(store) == ({"a": 1, "b": 3}, 2, [2])

    def test_history_that_is_cut_between_rewritten_files_is_not_taken_for_a_rollback(
        self, store, lake
    ):
        add(store, 0)
        table = lake.load_table(store.table())
        table.manage_snapshots().create_tag(table.current_snapshot().snapshot_id, "audit").commit()
        for _ in range(2):
            table.refresh()
            rewrite(table)
        table.refresh()
        table.maintenance.expire_snapshots().by_id(table.snapshots()[1].snapshot_id).commit()
        assert state(store) == ({"a": 1, "b": 1}, 0, [0])
        add(store, 1)
        assert state(store) == ({"a": 2, "b": 2}, 1, [1])

    def test_rollback_is_noticed_even_when_what_it_left_has_expired(self, store, lake):
        add(store, 0)
        rewrite(lake.load_table(store.table()))
        for batch_id in (1, 2):
            add(store, batch_id)
        table = lake.load_table(store.table())
        first, rewritten, *later = [snapshot.snapshot_id for snapshot in table.snapshots()]
        table.maintenance.expire_snapshots().by_id(first).commit()
        table.refresh()
        table.manage_snapshots().rollback_to_snapshot(rewritten).commit()
        table.refresh()
        table.maintenance.expire_snapshots().by_ids(later).commit()
        with pytest.raises(StoreError, match=r"rolled back to a snapshot whose ledger has expired"):
            add(store, 1)

    def test_other_partitions_are_refused(self, store, lake):
        add(store, 0)
        with lake.load_table(store.table()).update_spec() as update:
            update.add_field("entity", IdentityTransform(), "by_entity")
        with pytest.raises(
            StoreError, match=r"has partitions by .*identity\(entity\), and not .*undo"
        ):
            store.read(COUNT)

    def test_table_of_another_program_is_refused(self, store, lake):
        store.prepare()
        add(store, 0, "other")
        schema = lake.load_table(store.table("other")).schema()
        lake.create_table(store.table(), schema)
        with pytest.raises(StoreError, match="is not that of sink 'default': use another names"):
            add(store, 0)

    def test_renamed_column_is_named(self, store, lake):
        add(store, 0)
        with lake.load_table(store.table()).update_schema() as update:
            update.rename_column("count", "orders")
        for use in (lambda: store.read(COUNT), lambda: add(store, 1)):
            with pytest.raises(StoreError, match=r"has no column 'count' any more.*rename it back"):
                use()
        with lake.load_table(store.table()).update_schema() as update:
            update.rename_column("orders", "count")
        add(store, 1)
        assert state(store) == ({"a": 2, "b": 2}, 1, [0, 1])

    def test_new_columns_of_others_are_left_alone(self, store, lake):
        add(store, 0)
        with lake.load_table(store.table()).update_schema() as update:
            update.add_column("note", lake.load_table(store.table()).schema().find_type("entity"))
        add(store, 1)
        assert state(store) == ({"a": 2, "b": 2}, 1, [0, 1])


def test_other_partition_s_is_refused(store, open_iceberg):
    add(store, 0)
    with pytest.raises(StoreError, match="has partition_s=86400, and cannot be written with 3600"):
        add(open_iceberg(partition_s=3_600), 1)
    add(open_iceberg(partition_s=None), 1)
    other = open_iceberg(partition_s=3_600)
    assert other.read(COUNT) == store.read(COUNT)
    assert other.sinks() == ["default"]
    with other.ledger() as ledger:
        assert ledger.last_batch("query") == 1


def test_missing_namespace_cannot_be_read(store):
    for read in (store.read, store.read_table, lambda _: store.metrics(), lambda _: store.sinks()):
        with pytest.raises(StoreError, match=r"cannot read .*no such namespace; write to it first"):
            read(COUNT)


def test_catalog_that_cannot_be_reached_is_named(tmp_path):
    lost = {**iceberg_catalog(tmp_path / "missing"), "init_catalog_tables": "false"}
    store = IcebergStore("metrics", catalog=lost)
    for use in (store.prepare, lambda: add(store, 0), lambda: store.read(COUNT)):
        with pytest.raises(
            StoreError, match=r"IcebergStore\('metrics', catalog='lake'\): (?s:.*); the c"
        ):
            use()


def test_catalog_in_memory_works_in_its_process_only(tmp_path):
    store = IcebergStore("metrics", catalog=InMemoryCatalog("memory", warehouse=str(tmp_path)))
    add(store, 0)
    add(store, 1)
    assert state(store) == ({"a": 2, "b": 2}, 1, [0, 1])
    with pytest.raises(StoreError, match="in the memory of this one; use a catalog that other"):
        pickle.dumps(store)


def test_open_catalog_is_opened_again_elsewhere(lake):
    store = IcebergStore("metrics", catalog=lake)
    add(store, 0)
    assert state(pickle.loads(pickle.dumps(store)))[0] == {"a": 1, "b": 1}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"namespace": ""}, "the namespace of IcebergStore is ''"),
        ({"namespace": 7}, "the namespace of IcebergStore is 7, an int"),
        ({"namespace": "m", "partition_s": 0}, "give at least 1 second for a partition"),
        ({"namespace": "m", "partition_s": 0.5}, "give at least 1 second for a partition"),
        ({"namespace": "m", "lock_timeout_s": -1}, "no negative time"),
    ],
)
def test_wrong_arguments_are_refused(arguments, words):
    with pytest.raises(ConfigError, match=words):
        IcebergStore(**arguments)
