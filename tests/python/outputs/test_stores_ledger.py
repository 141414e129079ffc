"""The ledger of every store: marks that only rise, the newest summaries, the last description."""

import math

import pytest

from batchqueue import ConfigError
from batchqueue.aggregation import CountMetrics, metric_type
from batchqueue.outputs import Epoch, StoreError
from batchqueue.outputs.ledger import OwnedSink, write_once
from batchqueue.outputs.store import UNMARKED

COUNT = metric_type("test.count", CountMetrics)


def test_mark_of_a_query_is_its_last_applied_epoch(store):
    with store.transaction("sink") as transaction:
        assert transaction.last_batch("query") is None
        assert not transaction.applied("query", 0)
        assert transaction.known_queries() == set()
        transaction.record("query", 0, {"rows": 7})
        transaction.record("other", 0, {})
        transaction.record("query", 2, {"rows": 9})
    with store.transaction("sink") as transaction:
        assert transaction.last_batch("query") == 2
        assert [transaction.applied("query", batch_id) for batch_id in range(4)] == [
            True,
            True,
            True,
            False,
        ]
        assert not transaction.applied("other", 1)
        assert transaction.known_queries() == {"query", "other"}
        assert transaction.summaries() == store.summaries("sink")
    assert store.summaries("sink") == [
        Epoch("query", 0, {"rows": 7}),
        Epoch("other", 0, {}),
        Epoch("query", 2, {"rows": 9}),
    ]
    assert store.summaries("another") == []


@pytest.mark.parametrize("batch_id", [0, 4, 5])
def test_no_duplication_epoch_at_or_below_the_mark_cannot_be_recorded(store, batch_id):
    with store.transaction() as transaction:
        transaction.record("query", 5, {})

    def attempt():
        with store.transaction() as transaction:
            transaction.merge([COUNT("a", 0)])
            transaction.record("query", batch_id, {})

    with pytest.raises(
        StoreError, match=f"epoch {batch_id} of query query: the epochs up to 5 are applied"
    ):
        attempt()
    assert store.read(COUNT) == []
    assert len(store.summaries()) == 1


def test_epoch_without_a_mark_leaves_its_summary_and_shows_that_the_sink_has_data(store):
    with store.transaction() as transaction:
        transaction.record("once", 0, {"rows": 1}, marked=False)
        transaction.record("once", 0, {"rows": 2}, marked=False)
        assert transaction.last_batch("once") is None
        assert transaction.known_queries() == {UNMARKED}
    assert store.summaries() == [Epoch("once", 0, {"rows": 1}), Epoch("once", 0, {"rows": 2})]


def test_newest_summaries_are_read_alone_and_in_order(store):
    for batch_id in range(4):
        with store.transaction("sink") as transaction:
            transaction.record("query", batch_id, {"rows": batch_id})
    newest = [Epoch("query", 2, {"rows": 2}), Epoch("query", 3, {"rows": 3})]
    assert store.summaries("sink", 2) == newest
    assert store.summaries("sink", 0) == store.summaries("another", 1) == []
    assert store.summaries("sink", 5) == store.summaries("sink")
    with store.transaction("sink") as transaction:
        transaction.record("other", 7, {})
        assert transaction.summaries(2) == [newest[1], Epoch("other", 7, {})]
        assert transaction.summaries(0) == []


def test_ledger_is_read_as_of_one_commit_and_without_waiting(store):
    store.prepare()
    with store.ledger("sink") as ledger:
        assert ledger is None or ledger.known_queries() == set()
    with store.transaction("sink") as transaction:
        transaction.record("query", 0, {"rows": 7})
        transaction.describe({"job": "shop"})
    with store.ledger("sink") as ledger:
        assert ledger.last_batch("query") == 0
        with store.transaction("sink") as transaction:
            transaction.record("query", 1, {"rows": 9})
            transaction.describe({"job": "other"})
            with store.ledger("sink") as beside:
                assert beside.last_batch("query") == 0
        assert ledger.known_queries() == {"query"}
        assert not ledger.applied("query", 1)
        assert ledger.description() == {"job": "shop"}
        assert ledger.summaries() == [Epoch("query", 0, {"rows": 7})]
    with store.ledger("sink") as ledger:
        assert ledger.last_batch("query") == 1
    with store.ledger("another") as ledger:
        assert ledger is None or ledger.description() is None


def test_only_the_newest_summaries_of_a_sink_are_kept_but_all_marks(open_store):
    store = open_store(kept_summaries=3)
    for sink, epochs in (("one", 2), ("two", 5)):
        for batch_id in range(epochs):
            with store.transaction(sink) as transaction:
                transaction.record(f"query {batch_id % 2}", batch_id, {"rows": batch_id})
    assert [epoch.batch_id for epoch in store.summaries("one")] == [0, 1]
    assert store.summaries("two") == [
        Epoch("query 0", 2, {"rows": 2}),
        Epoch("query 1", 3, {"rows": 3}),
        Epoch("query 0", 4, {"rows": 4}),
    ]
    with open_store(kept_summaries=1).transaction("two") as transaction:
        transaction.record("query 1", 5, {})
        assert [epoch.batch_id for epoch in transaction.summaries()] == [5]
        assert transaction.applied("query 0", 4)
        assert transaction.known_queries() == {"query 0", "query 1"}


def test_thousand_summaries_are_kept_by_default(open_store):
    assert open_store().kept_summaries == 1_000
    with pytest.raises(ConfigError, match="kept_summaries=0: keep at least 1"):
        open_store(kept_summaries=0)


def test_description_is_that_of_the_last_writer_that_committed(store):
    with store.transaction("sink") as transaction:
        assert transaction.description() is None
        transaction.describe({"job": "shop", "metrics": ["a", "b"]})
        assert transaction.description() == {"job": "shop", "metrics": ["a", "b"]}

    def attempt():
        with store.transaction("sink") as transaction:
            transaction.describe({"job": "never committed"})
            raise RuntimeError

    with pytest.raises(RuntimeError):
        attempt()
    with store.transaction("another") as transaction:
        assert transaction.description() is None
        transaction.describe({})
    with store.transaction("sink") as transaction:
        assert transaction.description() == {"job": "shop", "metrics": ["a", "b"]}
        transaction.describe({"größe": 1.5})
        assert transaction.description() == {"größe": 1.5}
        transaction.description()["changed"] = "outside"
        assert transaction.description() == {"größe": 1.5}


@pytest.mark.parametrize("value", [{"a", "set"}, math.nan, b"bytes"])
def test_values_that_json_cannot_hold_are_rejected(store, value):
    def record():
        with store.transaction() as transaction:
            transaction.record("query", 0, {"value": value})

    def describe():
        with store.transaction() as transaction:
            transaction.describe({"value": value})

    for attempt in (record, describe):
        with pytest.raises(StoreError, match="JSON has"):
            attempt()
    assert store.summaries() == []


def test_clear_deletes_the_ledger_of_the_sink_and_nothing_else(store):
    for sink in ("first", "second"):
        with store.transaction(sink) as transaction:
            transaction.merge([COUNT("a", 0)])
            transaction.record("query", 3, {})
            transaction.record("once", 0, {}, marked=False)
            transaction.describe({"sink": sink})
    with store.transaction("first") as transaction:
        transaction.clear()
        assert transaction.known_queries() == set()
        assert transaction.description() is None
        assert transaction.summaries() == []
        transaction.record("query", 0, {"rows": 1})
    with store.transaction("first") as transaction:
        assert transaction.last_batch("query") == 0
        assert transaction.description() is None
    assert store.summaries("first") == [Epoch("query", 0, {"rows": 1})]
    with store.transaction("second") as transaction:
        assert transaction.known_queries() == {"query", UNMARKED}
        assert transaction.description() == {"sink": "second"}
    assert len(store.summaries("second")) == 2


def test_error_caught_inside_the_block_still_rolls_back(store):
    """Half of the failed call may be written; committing that would be a silent loss."""

    def attempt():
        with store.transaction() as transaction:
            transaction.merge([COUNT("a", 0)])
            with pytest.raises(StoreError, match="check the metrics"):
                transaction.merge([COUNT("b", 0), COUNT(None, 0)])

    with pytest.raises(
        StoreError, match=r"rolled back after an earlier error \(.*check the metrics"
    ):
        attempt()
    assert store.read(COUNT) == []


def test_failed_transaction_without_writes_is_reported_too(store):
    with store.transaction() as transaction:
        transaction.record("query", 0, {})

    def attempt():
        with store.transaction() as transaction, pytest.raises(StoreError, match="applied already"):
            transaction.record("query", 0, {})

    with pytest.raises(StoreError, match="rolled back after an earlier error"):
        attempt()


def counted(store):
    return [(item.entity, item.count) for item in store.read(COUNT, "sink")]


def new_offsets(last):
    """What a sink that has offsets up to `last` lacks of 0 to 3."""
    offsets = range(0 if last is None else last + 1, 4)
    return [COUNT(str(offset), 0) for offset in offsets] or None


@pytest.mark.parametrize("summary", [None, {"rows": 3}])
def test_write_is_there_once_with_its_mark_and_summary(store, summary):
    with store.transaction("sink") as transaction:
        transaction.raise_mark("offset", 1)

    def merge(transaction, partials):
        transaction.merge(partials)
        return summary

    for expected in (summary, None):
        found = write_once(
            *(store, "sink", "offset", 3),
            unstored=lambda _, last: new_offsets(last),
            merge=merge,
        )
        assert found == expected
    assert counted(store) == [("2", 1), ("3", 1)]
    assert store.summaries("sink") == ([] if summary is None else [Epoch("offset", 3, summary)])
    with store.transaction("sink") as transaction:
        assert transaction.last_batch("offset") == 3


def test_write_that_is_refused_or_fails_changes_nothing(store):
    def refuse(transaction, _):
        transaction.describe({"kind": "changed"})
        raise ConfigError("another owner")

    def fail(transaction, partials):
        transaction.merge(partials)
        raise ConfigError("half of it")

    for unstored, merge in ((refuse, fail), (lambda _, last: new_offsets(last), fail)):
        with pytest.raises(ConfigError, match=r"another owner|half of it"):
            write_once(store, "sink", "offset", 3, unstored=unstored, merge=merge)
    assert counted(store) == []
    with store.transaction("sink") as transaction:
        assert transaction.last_batch("offset") is None
        assert transaction.description() is None


def test_sink_of_one_owner_refuses_others_and_remembers_its_metrics(store):
    pipelines = [OwnedSink(store, "sink", {"kind": "pipeline", "pipeline": name}) for name in "ab"]
    for _ in range(2):
        pipelines[0].write_once("cut", 3, lambda _, last: new_offsets(last), positions={"a": 1})
    assert len(counted(store)) == 4
    with pytest.raises(ConfigError, match='written by pipeline "a", and pipeline "b" would count'):
        pipelines[1].write_once("cut", 4, lambda *_: [COUNT("b", 0)])
    with store.transaction("sink") as transaction:
        found = transaction.description()
    assert found["metrics"].keys() == {COUNT.name}
    assert found["positions"] == {"a": 1}
