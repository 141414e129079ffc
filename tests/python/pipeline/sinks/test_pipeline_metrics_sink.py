"""`MetricsSink`: each row counts once in the store, and the sink belongs to one pipeline."""

import pickle
from collections import Counter

import pyarrow as pa
import pytest

from batchqueue.aggregation import CountMetrics, MaxMetrics, metric_type
from batchqueue.exceptions import ConfigError
from batchqueue.groups import MetricsSink as GroupSink
from batchqueue.outputs import SqliteStore
from batchqueue.pipeline import CutError, IterableSource, MetricsSink, Pipeline, StageFailedError
from batchqueue.spark.commit.commit import check_owner
from batchqueue.spark.options import SinkOptions
from batchqueue.spark.requirements import SinkError
from groups_support.databases import batch
from groups_support.metrics import tally
from pipeline_support.numbers import Numbers

COUNTS = metric_type("counts", CountMetrics)


def to_metrics(chunk):
    for partition in chunk["partition"].to_pylist():
        yield COUNTS(partition, 0)


@pytest.fixture
def store(tmp_path):
    return SqliteStore(tmp_path / "metrics.db")


def counts(store, sink_id="default"):
    return {each.entity: each.count for each in store.read(COUNTS, sink_id)}


def pipeline(store, rows=1_000, name="p", sink=None, **settings):
    flow = Pipeline(name, **settings)
    source = Numbers(rows, partitions=3)
    flow.source(source).to(sink or MetricsSink(store, to_metrics))
    return flow


def expected(rows):
    return Counter(str(n // 100 % 3) for n in range(rows))


def test_each_row_counts_once_over_all_runs(store):
    for rows in (1_000, 1_000, 2_750):
        pipeline(store, rows, cut_interval_s=0.1).run()
    assert counts(store) == expected(2_750)


def test_what_was_not_committed_is_forgotten_by_the_next_run(store):
    sink = MetricsSink(store, to_metrics)
    sink.write([pa.record_batch({"partition": ["left over"]})])
    pipeline(store, sink=sink).run()
    assert counts(store) == expected(1_000)


def test_the_buffer_holds_a_partial_per_key():
    sink = MetricsSink(SqliteStore("unused.db"), to_metrics)
    sink.write([pa.record_batch({"partition": ["a", "b"] * 5_000})] * 10)
    assert len(sink._buffer) == 2


def test_a_store_without_rows_has_the_cut(store):
    sink = MetricsSink(store, lambda chunk: [])
    pipeline(store, sink=sink).run()
    sink.open("p")
    assert sink.last_cut() == (1, {"numbers": {"split": 10}})


def test_sinks_of_one_store_are_independent(store):
    flow = Pipeline("p")
    numbers = flow.source(Numbers(900, partitions=3))
    numbers.to(MetricsSink(store, to_metrics, sink_id="a"))
    numbers.to(MetricsSink(store, to_metrics, sink_id="b"))
    flow.run()
    assert counts(store, "a") == counts(store, "b") == expected(900)


def test_another_pipeline_is_refused_before_it_reads(store):
    pipeline(store).run()
    other = pipeline(store, name="other")
    with pytest.raises(
        ConfigError, match=r'was written by pipeline "p", and pipeline "other" would count its'
    ):
        other.run()
    assert counts(store) == expected(1_000)


def test_a_sink_of_a_group_is_refused(store):
    GroupSink(store, tally).consume(batch(0, 9))
    with pytest.raises(ConfigError, match='was written by group "billing" on stream "orders"'):
        pipeline(store).run()


def test_a_sink_of_a_pipeline_is_refused_by_a_group(store):
    pipeline(store).run()
    with pytest.raises(ConfigError, match='was written by pipeline "p", and group "billing"'):
        GroupSink(store, tally).consume(batch(0, 9))
    assert counts(store) == expected(1_000)


def test_a_sink_of_a_pipeline_is_refused_by_a_spark_job(store):
    pipeline(store).run()
    with store.transaction() as transaction:
        description = transaction.description()
    with pytest.raises(SinkError, match="sink 'default' was written by pipeline \"p\": a Spark"):
        check_owner(SinkOptions("default", None, None, 1), description)


def test_a_sink_of_a_spark_job_is_refused(store):
    with store.transaction() as transaction:
        transaction.record("query", 0, {})
    with pytest.raises(ConfigError, match="another kind of job, such as a Spark query"):
        pipeline(store).run()


def test_a_metric_whose_columns_have_changed_is_refused(store):
    pipeline(store).run()
    changed = metric_type("counts", MaxMetrics)
    sink = MetricsSink(store, lambda chunk: [changed("a", 0, 1)])
    with pytest.raises(StageFailedError, match="give the metric another name, or this pipeline"):
        pipeline(store, 2_000, sink=sink).run()
    assert counts(store) == expected(1_000)


def test_a_cut_that_is_not_the_next_one_stores_nothing(store):
    pipeline(store).run()
    sink = MetricsSink(store, to_metrics)
    sink.open("p")
    for cut in (1, 3):
        sink.write([pa.record_batch({"partition": ["x"]})])
        with pytest.raises(CutError, match=f"has cut 1 and is to store cut {cut}"):
            sink.commit(cut, {})
    assert counts(store) == expected(1_000)


@pytest.mark.parametrize(
    ("made", "message"),
    [(3, "to_metrics returned an int"), ([3], "to_metrics gave an int; give metrics")],
)
def test_what_are_not_metrics_is_refused(made, message, store):
    with pytest.raises(StageFailedError, match=message) as raised:
        pipeline(store, sink=MetricsSink(store, lambda chunk: made)).run()
    assert isinstance(raised.value.__cause__, TypeError)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [((3, to_metrics), "store is 3"), ((SqliteStore("a.db"), 3), "to_metrics is 3")],
)
def test_invalid_arguments(arguments, message):
    with pytest.raises(ConfigError, match=message):
        MetricsSink(*arguments)


def test_it_pickles_without_what_it_holds(store):
    sink = MetricsSink(store, to_metrics)
    sink.write([pa.record_batch({"partition": ["left over"]})])
    pipeline(store, sink=pickle.loads(pickle.dumps(sink))).run()
    assert counts(store) == expected(1_000)


def test_an_unusable_store_fails_at_the_start(tmp_path):
    source = IterableSource(lambda: [{"partition": "a"}])
    flow = Pipeline("p")
    flow.source(source).to(MetricsSink(SqliteStore(tmp_path / "no" / "m.db"), to_metrics))
    with pytest.raises(Exception, match="its directory must exist"):
        flow.run()
