"""A job rejects what is wrong with it before it runs."""

import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from pyspark import cloudpickle
from pyspark.sql import SparkSession

from batchqueue import BufferStrategy, ConfigError
from batchqueue.aggregation import Aggregation, Aggregator, Count, CountMetrics, Metrics
from batchqueue.outputs import SqliteStore
from batchqueue.presets import l1_aggregation
from batchqueue.spark import AggregationJob, ArrowAggregation, SinkError, register
from batchqueue.spark.options import DEFAULT_MAX_COMMIT_BYTES, SinkOptions
from batchqueue.spark.task.attempt import run_attempt
from batchqueue.spark.task.message import decode
from spark_support.flight_job import ARROW, DEPARTURES, WORST, flight_job
from spark_support.pyspark_version import needs_batch_sink

IF_POSSIBLE = l1_aggregation(strategy=BufferStrategy.IF_POSSIBLE)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": "all flights"}, "job name 'all flights' cannot be used: take letters, digits"),
        ({"metrics": []}, "job 'flights' has no metrics"),
        ({"items": None}, "job 'flights' does nothing with its rows: give items, arrow, or both"),
        (
            {"arrow": [ARROW, ARROW]},
            "job 'flights' has tag 'A' twice in arrow, and a tag has one handler",
        ),
        ({"metrics": [DEPARTURES, DEPARTURES]}, "job 'flights' has two metrics named 'departures'"),
        (
            {"metrics": DEPARTURES},
            r"metrics of job 'flights' is <.*give a list of metric types: metrics=\[departures\]",
        ),
        (
            {"metrics": "departures"},
            r"metrics of job 'flights' is 'departures'; give a list of metric types: "
            r"metrics=\[HITS\]",
        ),
        (
            {"metrics": [CountMetrics("a", 0, 1)]},
            "metrics of job 'flights' has <CountMetrics a .*>, which is not a metric type; make "
            "one with metric_type",
        ),
        ({"name": 3}, "the job's name is 3; give a str"),
        (
            {"store": "w.db"},
            r"store of job 'flights' is 'w.db', a str; give a store, for instance SqliteStore\(",
        ),
        ({"items": 3}, "items of job 'flights' is 3; give a function that takes a record batch"),
        ({"prepare": 3}, "prepare of job 'flights' is 3; give a function that takes an iterator"),
        (
            {"l1": IF_POSSIBLE},
            "l1 queue of job 'flights' has strategy IF_POSSIBLE.*use Buffer.*BLOCKING",
        ),
        (
            {"l2": IF_POSSIBLE},
            "l2 queue of job 'flights' has strategy IF_POSSIBLE.*use Buffer.*BLOCKING",
        ),
    ],
)
def test_invalid_setting_is_rejected(
    store: SqliteStore, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        flight_job(**{"store": store, **changes})


def test_two_aggregations_by_one_column_see_each_row_once(store: SqliteStore) -> None:
    steps = [replace(ARROW, tags=tags) for tags in (["A"], ["B", "C"])]
    job = flight_job(store, items=None, arrow=steps)
    row = {"id": "1", "carrier": "A", "hour": 0, "delay": 1.0, "distance": 7}
    batch = pa.RecordBatch.from_pylist([row, {**row, "carrier": "B"}])
    message = run_attempt(job, SinkOptions.parse({}, job, stream=True), [batch])
    partials = decode(message.partials, job.metrics)
    assert {item.entity: item.count for item in partials if isinstance(item, DEPARTURES)} == {
        "A": 1,
        "B": 1,
    }


def test_tag_of_one_column_is_not_a_tag_of_another(store: SqliteStore) -> None:
    by_id = replace(ARROW, type_column="id", tags=["1", "X"])
    job = flight_job(store, items=None, arrow=[ARROW, by_id])
    options = SinkOptions.parse({}, job, stream=True)
    row = {"id": "1", "carrier": "A", "hour": 0, "delay": 1.0, "distance": 7}
    message = run_attempt(job, options, [pa.RecordBatch.from_pylist([row])])
    assert (
        sum(
            item.count
            for item in decode(message.partials, job.metrics)
            if isinstance(item, DEPARTURES)
        )
        == 2
    )
    for carrier in ("X", None):
        unknown = pa.RecordBatch.from_pylist([row, {**row, "carrier": carrier}])
        with pytest.raises(
            SinkError,
            match=f"column 'carrier' has a row with {carrier!r}, and the steps by it have A",
        ):
            run_attempt(job, options, [unknown])


def test_aggregator_whose_next_worker_raises_fails_the_attempt(store: SqliteStore) -> None:
    def fail(_: pa.RecordBatch) -> None:
        raise ZeroDivisionError("no")

    class Converting(Aggregator):
        def consume(self, batch: list[Metrics]) -> None:
            super().consume([pa.table({"carrier": [item.entity for item in batch]})])

    counts = Aggregation(keys=["carrier"], measures={"n": Count()})
    job = flight_job(
        store, handlers={WORST: lambda emit: Converting(counts, fail, flush_period_ms=60_000)}
    )
    batch = pa.RecordBatch.from_pylist(
        [{"id": "1", "carrier": "A", "hour": 0, "delay": 1.0, "distance": 7}]
    )
    with pytest.raises(SinkError, match="ZeroDivisionError: no"):
        run_attempt(job, SinkOptions.parse({}, job, stream=True), [batch])


@pytest.mark.parametrize("returned", [None, 3])
def test_items_that_returns_no_items_is_rejected(store: SqliteStore, returned: object) -> None:
    """A forgotten `return` must not store a job's rows as nothing."""
    job = flight_job(store, items=lambda batch: returned)
    row = {"id": "1", "carrier": "A", "hour": 0, "delay": 1.0, "distance": 7}
    batch = pa.RecordBatch.from_pylist([row])
    kind = "a NoneType" if returned is None else "an int"
    with pytest.raises(ConfigError, match=f"^items returned {returned}, {kind}; it must return"):
        run_attempt(job, SinkOptions.parse({}, job, stream=True), [batch])


def test_queues_that_live_for_one_attempt_or_commit_have_no_balancer(store: SqliteStore) -> None:
    job = flight_job(store)
    assert (job.l1.balancer, job.l2.balancer) == (None, None)


@pytest.mark.parametrize("stage", ["l1", "l2"])
def test_queue_with_an_error_handler_is_rejected(store: SqliteStore, stage: str) -> None:
    job = flight_job(store)
    with pytest.raises(
        ConfigError, match=f"the {stage} queue of job 'flights' has an error_handler"
    ):
        replace(job, **{stage: replace(getattr(job, stage), error_handler=print)})


@pytest.mark.parametrize("stage", ["l1", "l2"])
def test_queue_with_a_consumer_is_rejected(store: SqliteStore, stage: str) -> None:
    job = flight_job(store)
    with pytest.raises(ConfigError, match=f"the {stage} queue of job 'flights' has a consumer"):
        replace(job, **{stage: replace(getattr(job, stage), consumer=lambda batch: None)})


@needs_batch_sink
def test_job_that_does_not_pickle_is_rejected_and_the_attribute_named(
    spark: SparkSession, store: SqliteStore
) -> None:
    lock = threading.Lock()

    def items(batch: pa.RecordBatch) -> Iterator[Metrics]:
        with lock:
            yield DEPARTURES("A", 0)

    message = (
        "items of job 'flights' cannot be pickled .*lock.*:"
        " make what it holds.* inside the function"
    )
    with pytest.raises(ConfigError, match=message):
        register(spark, flight_job(store, items=items))


def test_job_survives_the_way_to_a_worker(store: SqliteStore) -> None:
    job = flight_job(store)
    copy = cloudpickle.loads(cloudpickle.dumps(job))
    assert copy.metrics == job.metrics
    assert copy.store.path == store.path
    assert copy.l1.buffer_size == job.l1.buffer_size


def test_options_have_defaults_and_are_checked(store: SqliteStore) -> None:
    job = flight_job(store)
    assert SinkOptions.parse({}, job, stream=True) == SinkOptions(
        "flights", None, None, DEFAULT_MAX_COMMIT_BYTES
    )
    given = {
        "sinkid": "other",
        "onnewquery": "append",
        "maxcommitbytes": "100",
        "checkpointlocation": "ignored",
    }
    assert SinkOptions.parse(given, job, stream=True) == SinkOptions("other", "append", None, 100)
    given = {"sinkid": "other", "txnid": "7", "path": "ignored"}
    assert SinkOptions.parse(given, job, stream=False).txn_id == "7"
    for wrong in ({"onnewquery": "Append"}, {"maxcommitbytes": "64m"}, {"maxcommitbytes": "0"}):
        with pytest.raises(ConfigError, match=f"'{next(iter(wrong.values()))}'"):
            SinkOptions.parse(wrong, job, stream=True)


@pytest.mark.parametrize(
    ("options", "stream", "message"),
    [
        ({"txnid": ""}, False, "txnId is blank"),
        ({"sinkid": " "}, True, "sinkId is blank"),
        ({"txnid": "7"}, True, "txnId='7' is for df.write"),
        ({"onnewquery": "append"}, False, "onNewQuery='append' is for streams"),
        ({"onmissingepochs": "accept"}, False, "onMissingEpochs='accept' is for streams"),
        ({"onmissingepochs": "append"}, True, "onMissingEpochs='append': use 'accept'"),
        ({"onchangedepoch": "skip"}, False, "onChangedEpoch='skip' is for streams"),
        ({"onchangedepoch": "accept"}, True, "onChangedEpoch='accept': use 'skip'"),
        ({"on_changed_epoch": "skip"}, True, "did you mean onChangedEpoch"),
        ({"onnewquery": "append:"}, True, "onNewQuery='append:': use .* the id of the query"),
        ({"onnewquery": "replace:q1"}, True, "onNewQuery='replace:q1': use 'append' or"),
        (
            {"shards": "8"},
            True,
            r"shards='8' is for MetricsWriter\(shards=...\), not for the format",
        ),
        ({"l1": "spark"}, False, "l1='spark' is for MetricsWriter"),
        ({"txn_id": "7"}, False, "did you mean txnId"),
        ({"onnewquerry": "append"}, True, "did you mean onNewQuery"),
    ],
)
def test_option_without_an_effect_is_rejected(
    store: SqliteStore, options: dict[str, str], stream: bool, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        SinkOptions.parse(options, flight_job(store), stream=stream)


@needs_batch_sink
def test_session_and_job_of_another_class_are_rejected(
    spark: SparkSession, store: SqliteStore
) -> None:
    given: Any = None
    with pytest.raises(ConfigError, match="register got a NoneType; give a SparkSession"):
        register(given, flight_job(store))
    with pytest.raises(ConfigError, match="register got a NoneType; give an AggregationJob"):
        register(spark, given)


def test_missing_columns_are_named(store: SqliteStore) -> None:
    job = replace(flight_job(store), columns=["carrier", "wind", "Hour"])
    job.check_columns(["wind", "Hour", "carrier", "more"])
    with pytest.raises(
        ConfigError, match="needs column wind, Hour, but the rows have carrier, hour: select"
    ):
        job.check_columns(["carrier", "hour"])


def test_case_of_columns_matters(store: SqliteStore) -> None:
    declared = ArrowAggregation(keys=["Carrier"], metrics={"flights": Count()})
    job = AggregationJob(name="case", store=store, arrow=[declared])
    with pytest.raises(ConfigError, match=r"needs column Carrier, but the rows have carrier: sel"):
        job.check_columns(["carrier"])
