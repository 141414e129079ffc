"""What steps become on Spark, and what is refused before anything runs, with the remedy."""

import re
import sys
import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from batchqueue import ConfigError
from batchqueue.groups import SkewDetectionConfig
from batchqueue.outputs import SqliteStore
from batchqueue.pipeline import (
    BackpressureConfig,
    FileSink,
    FunctionSink,
    GraphError,
    IterableSource,
    MetricsSink,
    NotOnSparkError,
    Pipeline,
    PipelineError,
    SourcePickleError,
    SparkSource,
)
from spark_support.numbered_rows import BY_CITY, ORDERS, REVENUE, NumberedRows, revenue

NO_SESSION: Any = None
"""Compiling needs no session."""


def with_country(rows: pa.RecordBatch) -> pa.RecordBatch:
    return rows.append_column("country", pa.array(["it"] * rows.num_rows, pa.string()))


def needs_rows(rows: pa.RecordBatch) -> pa.RecordBatch:
    assert rows["id"][0].as_py() >= 0
    return rows


def nothing(rows: pa.RecordBatch) -> None:
    return None


def ignore(chunks) -> None:
    pass


@pytest.fixture
def flow() -> Pipeline:
    return Pipeline("revenue", checkpoint="state")


@pytest.fixture
def metrics(tmp_path: Path) -> MetricsSink:
    store = SqliteStore(tmp_path / "m.db")
    return MetricsSink(store, revenue, sink_id="shop", metrics=[ORDERS, REVENUE])


def refused(flow: Pipeline, error: type[Exception] = NotOnSparkError, **options) -> str:
    with pytest.raises(error) as caught:
        flow.on_spark(NO_SESSION, **options)
    return str(caught.value)


def test_explain_shows_each_step_beside_what_it_becomes(flow, metrics):
    (
        flow.source(NumberedRows(10))
        .filter(pc.field("cents") > 0)
        .map(with_country, workers=4)
        .stage("totals")
        .key_by("city", partitions=4)
        .aggregate(BY_CITY)
        .to(metrics)
    )
    text = flow.on_spark(NO_SESSION, trigger_ms=5000).explain()
    lines = [re.split(r"\s{2,}", line.strip()) for line in text.splitlines()[2:]]
    assert lines[0] == [
        "source 'numbers'",
        "data source in Python; a task reads one or more splits",
    ]
    assert lines[1] == [
        "epochs of about 2,000 ms, from 10,000 to 10,000,000 rows, one each 5,000 ms"
    ]
    assert lines[2] == ["filter((cents > 0))", "mapInArrow, in the tasks"]
    assert lines[3] == ["map(with_country)", "the same mapInArrow"]
    assert lines[4] == ["key_by(city)", "repartition(4, city)"]
    assert lines[5] == ["aggregate(orders, cents)", "in the tasks of the sink"]
    assert lines[6][0] == "sink 'MetricsSink'"
    assert lines[6][1].startswith("exactly once: MetricsWriter in foreachBatch, sinkId 'shop'")
    assert lines[7] == [f"checkpoint {Path('state/spark/MetricsSink').absolute()}"]


def test_neighbouring_maps_and_filters_share_one_map_in_arrow(flow, tmp_path):
    rows = flow.source(NumberedRows(10))
    for _ in range(5):
        rows = (
            rows.map(with_country).filter(pc.field("cents") > 0).map(lambda b: b.select(["cents"]))
        )
        rows = rows.map(lambda b: b.append_column("id", b["cents"]))
    rows.to(FileSink(tmp_path))
    assert flow.on_spark(NO_SESSION).explain().count("mapInArrow, in") == 1


def test_maps_and_filters_before_a_sink_run_in_its_tasks(flow, metrics):
    rows = flow.source(NumberedRows(10)).key_by("city").map(with_country)
    rows.filter(pc.field("cents") > 0).aggregate(BY_CITY).to(metrics)
    rows.to(FunctionSink(ignore))
    lines = flow.on_spark(NO_SESSION).explain().splitlines()
    assert [line.split()[0] for line in lines if line.endswith("in the tasks of the sink")] == [
        "map(with_country)",
        "filter((cents",
        "aggregate(orders,",
        "map(with_country)",
    ]
    assert not any("mapInArrow" in line for line in lines)


def test_maps_stay_in_front_of_a_sink_whose_groups_spark_makes(flow, metrics):
    flow.source(NumberedRows(10)).map(with_country).aggregate(BY_CITY).to(metrics)
    assert "mapInArrow, in the tasks" in flow.on_spark(NO_SESSION, l1="spark").explain()


def test_aggregate_before_another_sink_brings_the_rows_of_a_group_together(flow):
    flow.source(NumberedRows(10)).aggregate(BY_CITY).to(FunctionSink(ignore))
    text = flow.on_spark(NO_SESSION).explain()
    assert "repartition(city)" in text


def test_key_by_the_same_columns_is_not_repeated_for_the_aggregate(flow):
    flow.source(NumberedRows(10)).key_by("city").aggregate(BY_CITY).to(FunctionSink(ignore))
    assert flow.on_spark(NO_SESSION).explain().count("repartition") == 1


def test_each_sink_is_a_query_with_its_own_checkpoint(flow, metrics):
    rows = flow.source(NumberedRows(10))
    rows.to(metrics, name="a/b")
    rows.to(FunctionSink(ignore), name="c")
    text = flow.on_spark(NO_SESSION, checkpoint="s3a://bucket/state/").explain()
    assert "2 queries, each reads its source for itself" in text
    assert "checkpoint s3a://bucket/state/a%2Fb" in text
    assert "checkpoint s3a://bucket/state/c" in text


def test_map_that_cannot_take_an_empty_batch_needs_a_schema(flow):
    rows = flow.source(NumberedRows(10))
    rows.map(needs_rows).to(FunctionSink(ignore))
    message = refused(flow)
    assert "schema of map(needs_rows), which fails on an empty batch (IndexError" in message
    assert ".map(..., schema=" in message
    other = Pipeline("declared", checkpoint="state")
    schema = NumberedRows(1).schema()
    other.source(NumberedRows(10)).map(needs_rows, schema=schema).to(FunctionSink(ignore))
    assert "map(needs_rows)" in other.on_spark(NO_SESSION).explain()


def test_map_that_returns_nothing_for_an_empty_batch_needs_a_schema(flow):
    flow.source(NumberedRows(10)).map(nothing).to(FunctionSink(ignore))
    assert "map(nothing), which returns nothing for an empty batch" in refused(flow)


def test_map_is_asked_for_its_schema_with_a_copy(flow):
    class Counting:
        calls = 0

        def process(self, chunk):
            self.calls += 1
            return chunk

    operation = Counting()
    flow.source(NumberedRows(10)).map(operation).to(FunctionSink(ignore))
    flow.on_spark(NO_SESSION)
    assert operation.calls == 0


def test_filter_of_a_missing_column_is_refused(flow):
    flow.source(NumberedRows(10)).filter(pc.field("price") > 0).to(FunctionSink(ignore))
    assert "does not fit the columns id, city, cents" in refused(flow)


def test_operator_with_state_is_refused_by_name(flow):
    class Counting:
        def process(self, chunk):
            return chunk

        def snapshot(self):
            return b""

        def restore(self, state):
            pass

    flow.source(NumberedRows(10)).map(Counting()).to(FunctionSink(ignore))
    message = refused(flow)
    assert "map(Counting) keeps state" in message
    assert "stateful(make, spark=processor)" in message


def test_stateful_without_a_processor_is_refused_by_name(flow):
    class Totals:
        def process(self, chunk):
            return chunk

    flow.source(NumberedRows(10)).key_by("city").stateful(Totals).to(FunctionSink(ignore))
    message = refused(flow)
    assert "stateful(Totals) keeps its state in this process" in message
    assert "StatefulProcessor" in message


def test_stateful_needs_an_output_schema_and_a_key(flow):
    from pyspark.sql.streaming.stateful_processor import StatefulProcessor

    class Totals(StatefulProcessor):
        def init(self, handle):
            pass

        def handleInputRows(self, key, rows, timerValues):
            yield from ()

    rows = flow.source(NumberedRows(10))
    rows.key_by("city").stateful(Totals, spark=Totals()).to(FunctionSink(ignore))
    assert "output_schema" in refused(flow)
    Totals.output_schema = "city string, total long"
    other = Pipeline("other")
    other.source(NumberedRows(10)).stateful(Totals, spark=Totals()).to(FunctionSink(ignore))
    assert "needs a key directly before it" in refused(other)


def test_key_that_is_a_function_or_missing_is_refused(flow):
    rows = flow.source(NumberedRows(10))
    rows.key_by(partition=lambda batch: batch["id"], partitions=4).to(FunctionSink(ignore))
    assert "Spark's shuffle goes by columns" in refused(flow)
    other = Pipeline("other")
    other.source(NumberedRows(10)).key_by("town").to(FunctionSink(ignore))
    assert "no column 'town' among id, city, cents" in refused(other)


def test_aggregation_that_does_not_fit_is_refused_before_a_metrics_sink_as_well(flow, metrics):
    rows = flow.source(NumberedRows(10)).map(lambda batch: batch.select(["id"]))
    rows.aggregate(BY_CITY).to(metrics)
    assert "aggregate(orders, cents) does not fit the columns id" in refused(flow)


def test_metrics_sink_has_to_name_its_metrics(flow, tmp_path):
    sink = MetricsSink(SqliteStore(tmp_path / "m.db"), revenue)
    flow.source(NumberedRows(10)).aggregate(BY_CITY).to(sink)
    assert "MetricsSink(store, to_metrics, metrics=[...])" in refused(flow)


def test_sink_that_commits_cuts_of_this_process_is_refused(flow):
    class Cuts:
        batch_rows = 1

        def write(self, chunks):
            pass

        def commit(self, cut, positions):
            pass

        def last_cut(self):
            return None

    flow.source(NumberedRows(10)).to(Cuts())
    message = refused(flow)
    assert "sink 'Cuts' commits cuts of this process" in message
    assert "FunctionSink" in message


def test_file_format_that_spark_does_not_write_is_refused(flow, tmp_path):
    flow.source(NumberedRows(10)).to(FileSink(tmp_path / "out", format="arrow"))
    assert "writes 'arrow', and Spark writes parquet and csv" in refused(flow)


def test_column_that_csv_has_no_type_for_is_refused(flow, tmp_path):
    nested = pa.schema({"cities": pa.list_(pa.string())})
    source = IterableSource(lambda: [{"cities": ["Oslo"]}], schema=nested)
    flow.source(source).to(FileSink(tmp_path, format="csv"))
    assert "column 'cities' is list<item: string>, and CSV has no such type" in refused(flow)


def test_open_handle_in_a_source_is_named_by_its_attribute(flow, tmp_path):
    class Open(NumberedRows):
        pass

    source = Open(10)
    source.settings = {"log": [threading.Lock()]}
    flow.source(source, name="orders").to(FunctionSink(ignore))
    message = refused(flow, SourcePickleError)
    assert "source 'orders'" in message
    assert "Open.settings['log'][0] is a _thread.lock" in message
    assert "__getstate__" in message


@pytest.mark.parametrize("place", ["map", "filter", "sink"])
def test_open_handle_in_a_function_is_refused_by_the_name_of_its_step(flow, place):
    lock = threading.Lock()

    def locked(value):
        with lock:
            return value

    rows = flow.source(NumberedRows(10))
    if place == "map":
        rows.map(locked).to(FunctionSink(ignore))
    elif place == "filter":
        rows.filter(locked).to(FunctionSink(ignore))
    else:
        rows.to(FunctionSink(locked), name="locked")
    assert re.search(r"(map|filter|sink).*locked.* does not pickle", refused(flow))


def test_column_of_a_type_that_spark_does_not_have_is_named(flow):
    schema = pa.schema([("when", pa.month_day_nano_interval())])
    flow.source(IterableSource(lambda: [], schema=schema)).to(FunctionSink(ignore))
    assert "no type for column 'when', month_day_nano_interval" in refused(flow)


def test_incomplete_graph_is_refused(flow):
    flow.source(NumberedRows(10))
    refused(flow, GraphError)


def test_older_pyspark_takes_dataframes_only(flow, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyspark.sql.streaming.datasource", None)
    flow.source(NumberedRows(10)).to(FunctionSink(ignore))
    message = refused(flow)
    assert "source 'numbers' needs pyspark 4.2 or later" in message
    assert "SparkSource(spark.readStream...)" in message


def test_spark_source_is_refused_by_other_runners_and_takes_dataframes_only(flow):
    class Frame:
        isStreaming = False

        def mapInArrow(self):
            pass

    source = SparkSource(Frame())  # type: ignore[arg-type]
    assert source.bounded
    with pytest.raises(PipelineError, match=r"on_spark\(spark\)"):
        source.initial()
    with pytest.raises(ConfigError, match="DataFrame"):
        SparkSource("orders")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"target_epoch": 5}, "did you mean target_epoch_ms"),
        ({"target_epoch_ms": 0}, "target_epoch_ms is 0"),
        ({"trigger_ms": -1}, "trigger_ms is -1"),
        ({"first_epoch_rows": 0}, "first_epoch_rows is 0"),
        ({"max_tasks": True}, "max_tasks is True"),
        ({"checkpoint": ""}, "checkpoint is ''"),
        ({"control": "/missing/directory"}, "not a directory"),
        ({"onNewQuery": "maybe"}, "use 'append' or 'replace'"),
        ({"onChangedEpoch": "maybe"}, "use 'skip'"),
    ],
)
def test_invalid_option_is_refused(flow, metrics, options, words):
    flow.source(NumberedRows(10)).aggregate(BY_CITY).to(metrics)
    assert words in refused(flow, ConfigError, **options)


def test_start_needs_a_checkpoint_and_one_way_to_end(metrics):
    flow = Pipeline("revenue")
    flow.source(NumberedRows(10)).aggregate(BY_CITY).to(metrics)
    with pytest.raises(ConfigError, match=r"Pipeline\(checkpoint=...\)"):
        flow.on_spark(NO_SESSION).start()
    with pytest.raises(ConfigError, match="give one of them"):
        flow.on_spark(NO_SESSION).start(available_now=True, once=True)


def test_running_needs_a_session(metrics, tmp_path):
    flow = Pipeline("revenue", checkpoint=str(tmp_path))
    flow.source(NumberedRows(10)).aggregate(BY_CITY).to(metrics)
    for run in (flow.on_spark(NO_SESSION).run, flow.on_spark("local[2]").run_batch):
        with pytest.raises(ConfigError, match=r"on_spark got a\w* \w+; give a SparkSession"):
            run()


def test_pause_is_refused_where_spark_reads_and_remembered_elsewhere(flow, metrics):
    flow.source(NumberedRows(10)).aggregate(BY_CITY).to(metrics)
    on_spark = flow.on_spark(NO_SESSION)
    assert on_spark.paused is None
    on_spark.pause("night")
    assert on_spark.paused == "night"
    on_spark.resume()
    assert on_spark.paused is None


@pytest.mark.parametrize(
    ("settings", "remedy"),
    [
        ({"backpressure": BackpressureConfig()}, "bound its epochs with target_epoch_ms"),
        ({"skew": SkewDetectionConfig()}, "spark.sql.adaptive.enabled"),
    ],
    ids=["backpressure", "skew"],
)
def test_settings_that_nothing_on_spark_obeys_are_refused(settings: Any, remedy: str):
    [name] = settings
    flow = Pipeline("numbers", **settings)
    flow.source(NumberedRows(10)).to(FunctionSink(print))
    with pytest.raises(NotOnSparkError, match=f"made with {name}=.*{re.escape(remedy)}"):
        flow.on_spark(NO_SESSION)


def test_options_of_exactly_once_sinks_are_refused_without_such_a_sink():
    flow = Pipeline("numbers")
    flow.source(NumberedRows(10)).to(FunctionSink(print))
    with pytest.raises(ConfigError, match=r"onNewQuery='append'.*no sink.*FunctionSink.*leave"):
        flow.on_spark(NO_SESSION, onNewQuery="append")
