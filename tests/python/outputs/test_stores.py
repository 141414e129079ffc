"""Promises of every store: values come back, transactions are whole or nothing, sinks are apart."""

import math
import os
import pickle
import threading
import traceback

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
from batchqueue.outputs import CommittingStoreWriter, StoreError, StoreUnavailableError, StoreWriter

COUNT = metric_type("test.count", CountMetrics)
OTHER_COUNT = metric_type("test.other_count", CountMetrics)
TOTAL = metric_type("test.total", SumMetrics, columns={"total": int})
TEXT = metric_type("test.text", MaxMetrics, columns={"value": str})
WORST = metric_type("test.worst", Ranking, limit=3)


def merge(store, metrics, sink_id="default"):
    with store.transaction(sink_id) as transaction:
        transaction.merge(metrics)


def test_values_come_back_as_they_were(store):
    floats = [0.1, 5.0, -0.0, 5e-324, 1.7976931348623157e308, math.inf, -math.inf, None]
    items = [MaxMetrics(str(number), 0, value) for number, value in enumerate(floats)]
    texts = ["", "NaN", "ä 𝄞 \u202e", "a'\"\\\n\t\r,", "\\N", "x" * 100_000, None]
    ints = [2**63 - 1, -(2**63), 2**53 + 1, 0, None]
    items += [TEXT(str(number), 0, value) for number, value in enumerate(texts)]
    items += [TOTAL(str(number), 0, value) for number, value in enumerate(ints)]
    merge(store, [*items, MeanMetrics("null", 0, None), MaxMetrics("nan", -(2**63), math.nan)])

    found = {item.entity: item.value for item in store.read(MaxMetrics)}
    assert math.isnan(found.pop("nan"))
    assert list(found.values()) == floats
    assert math.copysign(1, found["2"]) == -1
    assert {type(value) for value in found.values()} == {float, type(None)}
    assert [item.value for item in store.read(TEXT)] == texts
    assert [item.total for item in store.read(TOTAL)] == ints
    assert {type(item.total) for item in store.read(TOTAL)} == {int, type(None)}
    mean = store.read(MeanMetrics)[0]
    assert (mean.value, mean.count) == (None, 0)


def test_keys_come_back_as_they_were_in_their_order(store):
    entities = [
        "",
        " ",
        "A",
        "B",
        "a",
        "a'; DROP TABLE x; --",
        "\u00e4",
        "a\u0308",
        "\uffff",
        "𝄞",
        "k" * 2_000,
    ]
    buckets = [-(2**63), -1, 0, 86_399, 86_400, 2**63 - 1]
    keys = [(entity, bucket) for entity in entities for bucket in buckets]
    merge(store, [COUNT(*key, number) for number, key in enumerate(keys)])
    assert [(item.key, item.count) for item in store.read(COUNT)] == sorted(
        zip(keys, range(len(keys)), strict=True)
    )
    with store.transaction() as transaction:
        found = transaction.load(COUNT, keys)
    assert {item.key for item in found} == set(keys)


def test_metric_with_another_column_type_shares_its_kind_with_others(store):
    plain = metric_type("test.plain", SumMetrics)
    for _ in range(2):
        merge(store, [TOTAL("a", 0, 2**60 + 1), plain("a", 0, 0.5)])
    assert (store.read(TOTAL)[0].total, store.read(plain)[0].total) == (2**61 + 2, 1.0)
    with store.transaction() as transaction:
        transaction.clear()
    assert (store.read(TOTAL), store.read(plain)) == ([], [])


def test_rounding_errors_are_kept_from_one_transaction_to_the_next(store):
    for value in (1e16, 1.0, -1e16):
        merge(store, [SumMetrics("a", 0, value)])
    assert store.read(SumMetrics)[0].total == 1.0


def test_save_replaces_and_the_last_of_equal_keys_counts(store):
    ranking = WORST.from_rows("a", 0, [(3, "x", ""), (2, "y", ""), (1, "z", "")])
    merge(store, [ranking, COUNT("a", 0, 5), COUNT("b", 0, 7)])
    with store.transaction() as transaction:
        transaction.save([COUNT("a", 0, 1), WORST("a", 0, 9, "q"), COUNT("a", 0, 2)])
        assert transaction.load(WORST, [("a", 0)]) == [WORST("a", 0, 9, "q")]
        transaction.save([ranking, WORST("a", 0, 9, "q")])
    assert store.read(COUNT) == [COUNT("a", 0, 2), COUNT("b", 0, 7)]
    assert store.read(WORST) == [WORST("a", 0, 9, "q")]
    with store.transaction() as transaction:
        transaction.save([WORST("a", 0, None, "nothing ranked")])
        assert transaction.load(WORST, [("a", 0)]) == []
    assert store.read(WORST) == []


def test_error_in_rows_ends_the_transaction(store):
    def write():
        with store.transaction() as transaction:
            transaction.save([COUNT("a", 0, 1)])
            with pytest.raises(TypeError):
                transaction.merge_rows(COUNT, [(["not", "a", "text"], 0, 1)])

    with pytest.raises(StoreError, match="rolled back after an earlier error"):
        write()
    assert store.read(COUNT) == []


def test_load_finds_what_was_saved_before_and_in_this_transaction(store):
    merge(store, [COUNT(str(number), number % 7 * 86_400, number) for number in range(40_000)])
    with store.transaction() as transaction:
        transaction.save([COUNT("0", 0, -1), COUNT("new", 0, -2)])
        keys = [(str(number), number % 7 * 86_400) for number in range(40_000)]
        found = transaction.load(COUNT, [*keys, *keys[:10], ("new", 0), ("absent", 0), ("1", 0)])
        assert transaction.load(OTHER_COUNT, keys[:10]) == []
        assert transaction.load(COUNT, []) == []
        transaction.save([WORST("a", 0, 1, "x")])
        assert transaction.load(WORST, [("a", 0), ("a", 0)]) == [WORST("a", 0, 1, "x")]
    with store.transaction() as transaction:
        assert transaction.load(WORST, [("a", 0), ("a", 0)]) == [WORST("a", 0, 1, "x")]
    expected = {str(number): number for number in range(40_000)} | {"0": -1, "new": -2}
    assert len(found) == len(expected)
    assert {item.entity: item.count for item in found} == expected


def test_sinks_share_a_store_and_see_only_their_own_data(store):
    sinks = ["first", "second", "SECOND", "a/../b", "a_.._b", "..", "ä ' \"", "s" * 300, ""]
    for number, sink in enumerate(sinks):
        for _ in range(2):
            merge(store, [COUNT("a", 0, number), WORST("a", 0, number, sink)], sink)
    for number, sink in enumerate(sinks):
        assert store.read(COUNT, sink) == [COUNT("a", 0, 2 * number)]
        assert {entry.id for entry in store.read(WORST, sink)[0].entries} == {sink}
    assert store.read(COUNT) == []


def test_clear_deletes_the_metrics_of_the_sink_and_nothing_else(store):
    merge(store, [COUNT("a", 0), WORST("a", 0, 1, "x")], "first")
    merge(store, [COUNT("a", 0)], "second")
    with store.transaction("first") as transaction:
        transaction.merge([COUNT("b", 0), OTHER_COUNT("b", 0)])
        transaction.clear()
        assert transaction.load(COUNT, [("a", 0), ("b", 0)]) == []
        transaction.merge([COUNT("c", 0, 3)])
    assert (store.read(COUNT, "first"), store.read(WORST, "first")) == ([COUNT("c", 0, 3)], [])
    assert store.read(OTHER_COUNT, "first") == []
    assert store.read(COUNT, "second") == [COUNT("a", 0)]


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_exception_rolls_back_everything(store, error):
    merge(store, [COUNT("a", 0)])

    def attempt(change):
        with store.transaction() as transaction:
            change(transaction)
            raise error

    def write(transaction):
        transaction.merge([COUNT("a", 0), WORST("a", 0, 1, "x")])
        transaction.record("query", 0, {})

    for change in (write, lambda transaction: transaction.clear()):
        with pytest.raises(error):
            attempt(change)
    assert store.read(COUNT) == [COUNT("a", 0)]
    assert store.read(WORST) == []
    assert store.summaries() == []


def test_transaction_sees_its_own_changes_and_others_do_not(store):
    with store.transaction() as transaction:
        transaction.merge([COUNT("a", 0)])
        transaction.record("query", 0, {})
        assert transaction.load(COUNT, [("a", 0)]) == [COUNT("a", 0)]
        assert transaction.applied("query", 0)
        assert store.read(COUNT) == []  # and does not wait
        assert store.summaries() == []
    assert store.read(COUNT) == [COUNT("a", 0)]


def test_store_pickles_and_opens_again(store):
    merge(store, [COUNT("a", 0)])
    again = pickle.loads(pickle.dumps(store))
    merge(again, [COUNT("a", 0)])
    assert again.read(COUNT) == store.read(COUNT) == [COUNT("a", 0, 2)]
    assert repr(again) == repr(store)


def test_committing_writer_commits_each_batch_and_another_does_not(store):
    CommittingStoreWriter(store).consume([COUNT("a", 0)])

    def attempt():
        with store.transaction() as transaction:
            StoreWriter(transaction).consume([COUNT("a", 0)])
            raise RuntimeError

    with pytest.raises(RuntimeError):
        attempt()
    assert store.read(COUNT) == [COUNT("a", 0)]


def test_prepared_store_is_empty(store):
    store.prepare()
    store.prepare()
    assert (store.read(COUNT), store.read(WORST), store.summaries()) == ([], [], [])


def test_transaction_may_be_used_from_another_thread(store):
    with store.transaction() as transaction:
        thread = threading.Thread(target=transaction.merge, args=([COUNT("a", 0)],))
        thread.start()
        thread.join()
    assert store.read(COUNT) == [COUNT("a", 0)]


def test_store_works_after_a_fork_even_in_mid_transaction(store):
    merge(store, [COUNT("a", 0)], "child")
    with store.transaction("parent") as transaction:
        transaction.merge([COUNT("a", 0)])
        child = os.fork()
        if child == 0:
            try:
                if store.read(COUNT, "child") != [COUNT("a", 0)]:
                    os._exit(2)
                os._exit(0)
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(1)
        assert os.waitpid(child, 0)[1] == 0
        transaction.merge([COUNT("a", 0)])
    child = os.fork()
    if child == 0:
        try:
            merge(store, [COUNT("a", 0)], "child")
            os._exit(0)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    assert store.read(COUNT, "parent") == store.read(COUNT, "child") == [COUNT("a", 0, 2)]


@pytest.mark.parametrize(
    ("item", "message"),
    [
        (TOTAL("a", 0, 2**63), "64 bits"),
        (MaxMetrics("a", 0, [1]), "check the metrics"),
        (COUNT(None, 0), "has the key.*; check the metrics"),
        (COUNT("a", "0"), "has the key.*; check the metrics"),
        (COUNT("a", 2**63), "64 bits"),
        (COUNT("\ud800", 0), "surrogates.*; check the metrics"),
        (TEXT("a", 0, "\ud800"), "surrogates.*; check the metrics"),
    ],
)
def test_value_that_cannot_be_stored_is_an_error_and_nothing_is_written(store, item, message):
    store.prepare()
    with pytest.raises(StoreError, match=message) as raised:
        merge(store, [COUNT("fine", 0), item])
    assert not isinstance(raised.value, StoreUnavailableError)
    assert store.read(COUNT) == []


def test_rows_of_a_kind_may_come_from_a_generator(store):
    class Lazy(CountMetrics):
        def to_rows(self):
            yield [self.count]

    merge(store, [Lazy("a", 0, 2)])
    merge(store, [Lazy("a", 0, 3), Lazy("b", 0, 1)])
    assert [(item.entity, item.count) for item in store.read(Lazy)] == [("a", 5), ("b", 1)]


@pytest.mark.parametrize("rows", [0, 2])
def test_kind_whose_partials_do_not_have_one_row_is_refused(store, rows):
    class Odd(CountMetrics):
        def to_rows(self):
            return super().to_rows() * rows

    merge(store, [COUNT("fine", 0)])
    with pytest.raises(StoreError, match=rf"Odd has {rows} rows under .*sets multi_row = True"):
        merge(store, [Odd("a", 0)])
    assert [item.entity for item in store.read(COUNT)] == ["fine"]


@pytest.mark.parametrize(
    ("table", "column", "message"),
    [
        ('x"; DROP TABLE y; --', "value", "cannot be the name of a table or column"),
        ("fine", "a b", "cannot be the name"),
        ("fine", "", "cannot be the name"),
        ("fine", "Sink", "reserved"),
        ("batchqueue_tables", "value", "reserved"),
        ("sqlite_master", "value", "reserved"),
    ],
)
def test_invalid_identifiers_are_rejected(store, table, column, message):
    kind = type("Kind", (CountMetrics,), {"table": table, "columns": {column: int}})
    with pytest.raises(ConfigError, match=message):
        merge(store, [kind("a", 0)])


def test_any_sql_keyword_works_as_a_name(store):
    class Select(CountMetrics):
        table = "select"
        columns = {"group": int}  # noqa: RUF012

    merge(store, [Select("a", 0, 3)])
    merge(store, [Select("a", 0, 3)])
    assert store.read(Select) == [Select("a", 0, 6)]
