"""The sink of metrics: each record counts once, and a former owner stores nothing."""

import pickle
import random
import subprocess
import sys
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest

from batchqueue import ConfigError
from batchqueue.aggregation import CountMetrics, Ranking, SumMetrics, metric_type
from batchqueue.groups import MetricsSink, Record, StaleTokenError
from batchqueue.outputs import StoreError, StoreUnavailableError
from core_support.waits import WAIT_S
from groups_support.databases import FakeBatch, batch
from groups_support.metrics import LENGTHS, HookedStore, marks, tallied, tally, tally_and_length
from groups_support.workers import Blocker


def values(first, last):
    """Returns what is stored of the records from `first` to `last`, each once."""
    return Counter(f"value {offset}" for offset in range(first, last + 1))


@pytest.fixture
def sink(store):
    return MetricsSink(store, tally)


def test_records_of_a_batch_are_merged_and_stored(store):
    MetricsSink(store, tally_and_length).consume(batch(0, 9))
    assert tallied(store) == values(0, 9)
    assert [(each.entity, each.total) for each in store.read(LENGTHS)] == [("all", 70)]


def test_batch_that_comes_again_counts_once(store, sink):
    sink.consume(batch(0, 9))
    sink.consume(batch(0, 9))
    MetricsSink(store, tally).consume(batch(0, 9, token=2))
    assert tallied(store) == values(0, 9)


@pytest.mark.parametrize("base", [0, 2**61, 2**63 - 15], ids=["memory", "redis", "largest"])
def test_batch_that_overlaps_adds_the_rest_and_offsets_are_exact(store, sink, base):
    sink.consume(batch(base, base + 9, token=2**52 + 1))
    sink.consume(batch(base + 5, base + 14, token=2**52 + 1))
    assert tallied(store) == values(base, base + 14)
    assert sorted(marks(store).values()) == sorted([2**52 + 1, base + 14])


def test_token_older_than_the_stored_one_is_refused_and_nothing_is_changed(store, sink):
    sink.consume(batch(0, 9, token=2**52))
    before = marks(store)
    with pytest.raises(StaleTokenError) as raised:
        sink.consume(batch(10, 19, token=2**52 - 1))
    assert raised.value.args == ("orders", 7, 2**52 - 1, 2**52, None)
    assert tallied(store) == values(0, 9)
    assert marks(store) == before


def test_batch_without_anything_new_has_older_tokens_refused_from_then_on(store, sink):
    sink.consume(batch(0, 9, token=1))
    sink.consume(batch(0, 9, token=2))
    with pytest.raises(StaleTokenError, match="token 1 is older than 2: "):
        sink.consume(batch(10, 19, token=1))
    assert tallied(store) == values(0, 9)


def test_token_that_one_handler_has_seen_holds_for_all_of_the_partition(store, sink):
    sink.consume(batch(0, 9, token=2, kind="tag refund"))
    with pytest.raises(StaleTokenError):
        sink.consume(batch(0, 9, token=1, kind="tag sale"))


def test_position_never_moves_back(store, sink):
    sink.consume(batch(0, 9, token=1))
    sink.consume(batch(0, 4, token=2))
    sink.consume(batch(5, 10, token=2))
    assert tallied(store) == values(0, 10)


def test_partitions_and_kinds_do_not_meet(store, sink):
    kinds = ("", "tag refund", "shop.Refund", "tag a|orders/7", "'; DROP TABLE batchqueue_marks --")
    for kind in kinds:
        for partition in (1, 11):
            sink.consume(batch(0, 2, kind=kind, partition=partition))
    assert set(tallied(store).values()) == {2 * len(kinds)}


def test_sinks_of_a_store_do_not_meet(store):
    for sink_id in ("a", "b"):
        MetricsSink(store, tally, sink_id=sink_id).consume(batch(0, 4))
    assert tallied(store, "a") == tallied(store, "b") == values(0, 4)


def test_records_without_metrics_are_passed_over(store):
    sink = MetricsSink(store, lambda value: [] if value in ("value 0", "value 2") else tally(value))
    for first, last in ((0, 0), (1, 1), (2, 2), (2, 3)):
        sink.consume(batch(first, last))
    assert tallied(store) == values(1, 3) - Counter(["value 2"])


def test_record_that_raises_leaves_nothing_behind(store):
    is_bad = True

    def to_metrics(value):
        if is_bad and value == "value 5":
            raise ValueError("a bad record")
        return tally(value)

    sink = MetricsSink(store, to_metrics)
    sink.consume(batch(0, 2))
    before = marks(store)
    for first in (0, 3):  # with and without records that are stored
        with pytest.raises(ValueError, match="a bad record"):
            sink.consume(batch(first, 9, token=2))
    assert tallied(store) == values(0, 2)
    assert marks(store) == before
    is_bad = False
    sink.consume(batch(0, 9, token=2))
    assert tallied(store) == values(0, 9)


def test_results_and_marks_are_committed_together_or_not(store):
    faults = iter([StoreUnavailableError("down"), None, StoreUnavailableError("down")])

    def fail(transaction):
        if error := next(faults, None):
            raise error

    sink = MetricsSink(HookedStore(store, before=fail), tally)
    with pytest.raises(StoreUnavailableError):
        sink.consume(batch(0, 9))
    assert (tallied(store), marks(store)) == ({}, {})
    sink.consume(batch(0, 9))
    before = marks(store)
    with pytest.raises(StoreUnavailableError):
        sink.consume(batch(5, 14, token=2))
    assert (tallied(store), marks(store)) == (values(0, 9), before)
    sink.consume(batch(5, 14, token=2))
    assert tallied(store) == values(0, 14)


def test_commit_whose_outcome_is_unknown_is_found_done(store):
    faults = iter([StoreUnavailableError("the connection was lost")])

    def fail():
        if error := next(faults, None):
            raise error

    sink = MetricsSink(HookedStore(store, after=fail), tally)
    with pytest.raises(StoreUnavailableError):
        sink.consume(batch(0, 9))
    sink.consume(batch(0, 9))
    assert tallied(store) == values(0, 9)


def test_value_that_the_store_refuses_leaves_nothing_behind(store, sink):
    sink.consume(batch(0, 9))
    broken = MetricsSink(store, lambda value: [LENGTHS("all", 0, 2**80)])
    with pytest.raises(StoreError):
        broken.consume(batch(10, 19, token=2))
    sink.consume(batch(10, 19, token=1))
    assert tallied(store) == values(0, 19)


def test_former_owner_that_waits_for_the_newer_one_is_refused(store, sink):
    blocker = Blocker()
    newer = MetricsSink(HookedStore(store, before=blocker), tally)
    prepared = threading.Event()

    def to_metrics(value):
        prepared.set()  # the next step is the transaction
        return tally(value)

    with ThreadPoolExecutor() as threads:
        first = threads.submit(newer.consume, batch(0, 9, token=2))
        assert blocker.entered.wait(WAIT_S)
        second = threads.submit(MetricsSink(store, to_metrics).consume, batch(0, 14, token=1))
        assert prepared.wait(WAIT_S)
        assert not second.done()
        blocker.release()
        first.result(WAIT_S)
        with pytest.raises(StaleTokenError, match="token 1 is older than 2: "):
            second.result(WAIT_S)
    assert tallied(store) == values(0, 9)


def test_metrics_are_made_before_the_store_is_locked(store):
    def to_metrics(value):
        with store.transaction() as transaction:  # would wait for the sink's own
            transaction.known_queries()
        return tally(value)

    MetricsSink(store, to_metrics).consume(batch(0, 1))
    assert tallied(store) == values(0, 1)


@pytest.mark.parametrize("seed", range(4))
def test_sink_agrees_with_a_model_of_it(open_sqlite, seed):
    store, chance = open_sqlite(), random.Random(seed)
    expected: Counter[str] = Counter()
    seen, last = {}, {}
    fails = False

    def fail(transaction):
        if fails:
            raise StoreUnavailableError("down")

    sink = MetricsSink(HookedStore(store, before=fail), tally)
    for _ in range(60):
        partition, kind = chance.randrange(2), chance.choice(["", "tag refund"])
        token, first = chance.randrange(1, 6), chance.randrange(40)
        end, fails = first + chance.randrange(6), chance.random() < 0.2
        given = [
            Record(f"{partition} {kind} {each}", None, each, 0) for each in range(first, end + 1)
        ]
        item = FakeBatch(token, given, partition=partition, kind=kind)
        if token < seen.get(partition, 0):
            with pytest.raises(StaleTokenError):
                sink.consume(item)
        elif fails:
            with pytest.raises(StoreUnavailableError):
                sink.consume(item)
        else:
            sink.consume(item)
            seen[partition] = token
            stored = last.get((partition, kind), -1)
            expected.update(each.value for each in given if each.offset > stored)
            last[partition, kind] = max(stored, end)
    assert tallied(store) == expected
    assert set(expected.values()) == {1}


class TestOwner:
    """A sink belongs to one group and stream, and a metric keeps its columns."""

    @pytest.mark.parametrize("other", [{"group": "stock"}, {"stream": "returns"}])
    def test_sink_of_another_group_or_stream_is_refused(self, store, sink, other):
        sink.consume(batch(0, 9))
        message = (
            r"^sink 'default' of \w+Store\(.*\) was written by group \"billing\" on stream"
            r" \"orders\", and group \"\w+\" on stream \"\w+\" would count its records beside"
            r" those: give each group, stream, pipeline and job its own sink_id$"
        )
        with pytest.raises(ConfigError, match=message):
            sink.consume(batch(0, 9, **other))
        assert tallied(store) == values(0, 9)
        MetricsSink(store, tally, sink_id="other").consume(batch(0, 9, **other))

    @pytest.mark.parametrize("is_described", [True, False])
    def test_sink_of_another_kind_of_job_is_refused(self, store, sink, is_described):
        with store.transaction() as transaction:
            transaction.record("query", 0, {})
            if is_described:
                transaction.describe({"metrics": {}, "aggregations": [], "shards": None})
        before = marks(store)
        with pytest.raises(ConfigError, match=r"was written by another kind of job, such as a Spa"):
            sink.consume(batch(0, 9))
        assert (tallied(store), marks(store)) == ({}, before)

    def test_metric_with_other_columns_is_refused(self, store, sink):
        sink.consume(batch(0, 9))
        changed = metric_type("tally", SumMetrics, columns={"total": int})
        message = (
            r"^sink 'default' of \w+Store\(.*\) has metric 'tally' as count_metrics \(count int\), "
            r"and now it is sum_metrics \(total int, compensation float\), which cannot be merged: "
            r"give the metric another name, or this worker another sink_id$"
        )
        with pytest.raises(ConfigError, match=message):
            MetricsSink(store, lambda value: [changed(value, 0, 1)]).consume(batch(10, 19))
        sink.consume(batch(10, 19))
        assert tallied(store) == values(0, 19)

    def test_ranking_with_another_limit_is_refused(self, open_sqlite):
        for limit, first in ((3, 0), (3, 10), (4, 20)):
            worst = metric_type("worst", Ranking, limit=limit)
            sink = MetricsSink(
                open_sqlite(), lambda value, kind=worst: [kind("all", 0, 1.0, value)]
            )
            if limit == 3:
                sink.consume(batch(first, first + 9))
            else:
                with pytest.raises(ConfigError, match=r"limit 3\), and now .*limit 4\), which can"):
                    sink.consume(batch(first, first + 9))

    def test_further_metrics_may_come(self, store, sink):
        sink.consume(batch(0, 9))
        MetricsSink(store, tally_and_length).consume(batch(10, 19))
        sink.consume(batch(20, 29))
        assert tallied(store) == values(0, 29)
        assert store.read(LENGTHS)[0].total == 80

    def test_cleared_sink_begins_anew(self, store, sink):
        sink.consume(batch(0, 9, token=2))
        with store.transaction() as transaction:
            transaction.clear()
        sink.consume(batch(5, 9, token=1, group="stock"))
        assert tallied(store) == values(5, 9)


@pytest.mark.parametrize("made", [None, 7, CountMetrics("a", 0)])
def test_to_metrics_that_returns_no_list_is_named_with_the_record(open_sqlite, made):
    sink = MetricsSink(open_sqlite(), lambda value: made)
    with pytest.raises(
        TypeError, match=r"^to_metrics returned .* for the record at offset 3; return a list of m"
    ):
        sink.consume(batch(3, 4))


def test_to_metrics_that_gives_something_else_is_named_with_the_record(open_sqlite):
    sink = MetricsSink(open_sqlite(), lambda value: value)
    with pytest.raises(
        TypeError, match=r"^to_metrics gave 'v' for the record at offset 3; give metrics, which m"
    ):
        sink.consume(batch(3, 4))


def test_invalid_arguments_are_rejected(open_sqlite):
    with pytest.raises(
        ConfigError, match=r"store is 'metrics.db'; give a store of metrics, for in"
    ):
        MetricsSink("metrics.db", tally)
    with pytest.raises(ConfigError, match="to_metrics is 7; give a function that takes a value an"):
        MetricsSink(open_sqlite(), 7)


def test_pickled_sink_continues(store, sink):
    sink.consume(batch(0, 9))
    pickle.loads(pickle.dumps(sink)).consume(batch(5, 14))
    assert tallied(store) == values(0, 14)


def test_import_of_the_package_loads_no_store():
    program = (
        "import sys, batchqueue.groups\n"
        "print([name for name in sys.modules if 'outputs' in name or 'aggregation' in name])\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert ended.stdout == "[]\n"
