"""Which sinks a store has: those that wrote anything, and were not cleared since."""

import pytest

from batchqueue.aggregation import CountMetrics, metric_type
from batchqueue.outputs import ParquetStore, SqliteStore, StoreError

COUNT = metric_type("test.count", CountMetrics)


def test_sinks_are_those_that_wrote_anything(store):
    store.prepare()
    assert store.sinks() == []
    with store.transaction("metrics") as transaction:
        transaction.merge([COUNT("a", 0)])
    with store.transaction("epochs") as transaction:
        transaction.record("query", 0, {})
    with store.transaction("job") as transaction:
        transaction.describe({"metrics": []})
    with store.transaction("ü, an odd name/") as transaction:
        transaction.record("query", 0, {})
    with store.transaction("nothing"):
        pass
    assert store.sinks() == ["epochs", "job", "metrics", "ü, an odd name/"]


def test_cleared_sink_is_not_listed(store):
    for sink_id in ("stays", "goes"):
        with store.transaction(sink_id) as transaction:
            transaction.merge([COUNT("a", 0)])
            transaction.record("query", 0, {})
    with store.transaction("goes") as transaction:
        transaction.clear()
    assert store.sinks() == ["stays"]


@pytest.mark.parametrize("kind", [SqliteStore, ParquetStore])
def test_store_that_is_missing_has_no_list_of_sinks(kind, tmp_path):
    with pytest.raises(StoreError, match="cannot read"):
        kind(tmp_path / "missing").sinks()
    assert not (tmp_path / "missing").exists()
