"""What a graph refuses: each message has the value, the limit and the remedy."""

import re

import pyarrow.compute as pc
import pytest

from batchqueue import ConfigError
from batchqueue.aggregation import Aggregation, Count
from batchqueue.base.words import a_type
from batchqueue.pipeline import GraphError, Pipeline, StageConfig
from pipeline_support.graph_parts import Kept, Nothing

SALES = Aggregation(keys=["city"], measures={"orders": Count()})
OUT_OF_RANGE = [0, -1, 1_025, 1.0, "2", True]


class Same:
    """An operator object."""

    def process(self, chunk):
        return chunk

    def __repr__(self):
        return "Same()"


class Named(Nothing):
    """A source whose class has all members of a source."""

    name = "named"


class NoProcess:
    """Neither a function nor an operator."""

    def __repr__(self):
        return "NoProcess()"


def enrich(batch):
    return batch


@pytest.fixture
def pipeline():
    return Pipeline("p")


@pytest.fixture
def flow(pipeline):
    return pipeline.source(Nothing())


def refused(kind, message, call):
    with pytest.raises(kind) as raised:
        call()
    assert str(raised.value) == message


class TestSources:
    @pytest.mark.parametrize("source", [None, "orders.parquet", Kept, Named])
    def test_other_objects_and_classes(self, pipeline, source):
        refused(
            GraphError,
            f"{source!r} is not a source: it needs name, bounded, schema, initial, plan, between, "
            "read, lag and commit; give for instance FileSource or IterableSource",
            lambda: pipeline.source(source),
        )

    @pytest.mark.parametrize(
        "lacking", ["schema", "initial", "plan", "between", "read", "lag", "commit", "bounded"]
    )
    def test_a_source_that_lacks_a_member(self, pipeline, lacking):
        members = {name: member for name, member in vars(Nothing).items() if name != lacking}
        incomplete = type("Incomplete", (), members)()
        with pytest.raises(GraphError, match="is not a source: it needs name, bounded"):
            pipeline.source(incomplete)

    def test_the_same_source_twice(self, pipeline):
        source = Nothing()
        pipeline.source(source)
        refused(
            GraphError,
            f"{source!r} is in the graph already; branch the flow of the first, or give another "
            "instance",
            lambda: pipeline.source(source, name="second"),
        )
        Pipeline("other").source(source)


class TestSinks:
    @pytest.mark.parametrize("sink", [None, print, Nothing(), Kept, []])
    def test_other_objects_and_classes(self, flow, sink):
        refused(
            GraphError,
            f"{sink!r} is not a sink: it needs batch_rows and write(chunks); give for instance "
            "MetricsSink, or FunctionSink(function)",
            lambda: flow.to(sink),
        )

    def test_a_sink_whose_write_is_a_coroutine_function(self, flow):
        class Async(Kept):
            async def write(self, chunks):
                del chunks

        with pytest.raises(GraphError, match=r"write of .* would write nothing; make it a plain"):
            flow.to(Async())

    def test_the_same_sink_for_two_branches(self, flow):
        sink = Kept()
        flow.to(sink)
        refused(
            GraphError,
            f"{sink!r} is in the graph already; give each branch a sink; joins are for Spark",
            lambda: flow.map(enrich).to(sink),
        )


class TestMap:
    @pytest.mark.parametrize("operation", [None, 3, "upper", NoProcess(), Same, dict])
    def test_neither_function_nor_operator(self, flow, operation):
        refused(
            GraphError,
            f"map got {operation!r}; give a function of a record batch, or an object with "
            "`process`",
            lambda: flow.map(operation),
        )

    def test_an_object_for_several_workers(self, flow):
        refused(
            GraphError,
            "map got an object, Same(), for 2 workers, which would call it concurrently; give a "
            "function, or use .stateful(make) after .key_by(...)",
            lambda: flow.map(Same(), workers=2),
        )
        flow.map(Same(), workers=1)
        flow.map(Same())

    def test_the_same_object_twice(self, flow):
        operation = Same()
        flow.map(operation)
        refused(
            GraphError,
            "Same() is in the graph already; give another instance, or use .stateful(make)",
            lambda: flow.map(operation),
        )

    def test_the_same_function_may_occur_again(self, flow):
        flow.map(enrich).map(enrich, workers=3)

    @pytest.mark.parametrize("workers", OUT_OF_RANGE)
    def test_workers(self, flow, workers):
        refused(
            ConfigError,
            f"workers is {workers!r}; give an int from 1 to 1024",
            lambda: flow.map(enrich, workers=workers),
        )


class TestFilter:
    @pytest.mark.parametrize("keep", [None, "n > 0", True, [True]])
    def test_neither_expression_nor_function(self, flow, keep):
        refused(
            GraphError,
            f"filter got {keep!r}; give a pyarrow expression, or a function of a record batch",
            lambda: flow.filter(keep),
        )

    def test_a_comparison_of_a_name_is_not_an_expression(self, flow):
        with pytest.raises(GraphError, match=r"^filter got False; give a pyarrow expression"):
            flow.filter("n" == 0)
        flow.filter(pc.field("n") == 0)


class TestKeyBy:
    def test_neither_columns_nor_function(self, flow):
        message = "give key_by either columns or partition=, a function"
        refused(GraphError, message, lambda: flow.key_by())
        refused(GraphError, message, lambda: flow.key_by("city", partition=enrich))

    @pytest.mark.parametrize("columns", [("",), (3,), ("city", None), (["city"],)])
    def test_columns_that_are_not_names(self, flow, columns):
        refused(
            GraphError,
            f"key_by got {columns!r}; give names of columns",
            lambda: flow.key_by(*columns),
        )

    @pytest.mark.parametrize("partition", [3, "city"])
    def test_a_partition_that_is_not_a_function(self, flow, partition):
        refused(
            GraphError,
            f"partition is {partition!r}; give a function of a record batch",
            lambda: flow.key_by(partition=partition),
        )

    @pytest.mark.parametrize("partitions", OUT_OF_RANGE)
    def test_partitions(self, flow, partitions):
        refused(
            ConfigError,
            f"partitions is {partitions!r}; give an int from 1 to 1024",
            lambda: flow.key_by("city", partitions=partitions),
        )


class TestAggregate:
    @pytest.mark.parametrize("aggregation", [None, "city", Count(), {"n": Count()}])
    def test_not_an_aggregation(self, flow, aggregation):
        refused(
            GraphError,
            f"aggregate got {aggregation!r}; give an Aggregation, for instance "
            'Aggregation(keys=["city"], measures={"orders": Count()})',
            lambda: flow.aggregate(aggregation),
        )

    @pytest.mark.parametrize("spread", [*OUT_OF_RANGE, None])
    def test_spread(self, flow, spread):
        refused(
            ConfigError,
            f"spread is {spread!r}; give an int from 1 to 1024",
            lambda: flow.aggregate(SALES, spread=spread),
        )


class TestStateful:
    @pytest.mark.parametrize("make", [None, 3, Same()])
    def test_not_callable(self, flow, make):
        refused(
            GraphError,
            f"stateful got {make!r}; give a function or class without arguments",
            lambda: flow.stateful(make),
        )


class TestStage:
    @pytest.mark.parametrize("config", [4, {"max_workers": 4}, StageConfig])
    def test_config(self, flow, config):
        refused(
            ConfigError,
            f"config is {config!r}; give a StageConfig",
            lambda: flow.stage("s", config),
        )


class TestStageConfig:
    def test_defaults(self):
        config = StageConfig()
        assert (config.partition_count, config.min_workers, config.max_workers) == (None, 1, 1)
        assert (config.chunk_rows, config.keep_order) == (500, False)

    def test_limits_are_allowed(self):
        StageConfig(partition_count=1, min_workers=1, max_workers=1, chunk_rows=1)
        StageConfig(partition_count=1_024, min_workers=1_024, max_workers=1_024)
        StageConfig(chunk_rows=1_000_000, keep_order=True)

    @pytest.mark.parametrize(
        ("setting", "most"),
        [("partition_count", 1_024), ("max_workers", 1_024), ("chunk_rows", 1_000_000)],
    )
    @pytest.mark.parametrize("value", [0, -1, 1_000_001, 1.5, "2", True])
    def test_out_of_range(self, setting, most, value):
        refused(
            ConfigError,
            f"{setting} is {value!r}; give an int from 1 to {most}",
            lambda: StageConfig(**{setting: value}),
        )

    def test_min_workers_is_at_most_max_workers(self):
        StageConfig(min_workers=3, max_workers=3)
        refused(
            ConfigError,
            "min_workers is 4; give an int from 1 to 3",
            lambda: StageConfig(min_workers=4, max_workers=3),
        )

    @pytest.mark.parametrize("value", [None, 1, "yes"])
    def test_keep_order(self, value):
        refused(
            ConfigError,
            f"keep_order is {value!r}; give True or False",
            lambda: StageConfig(keep_order=value),
        )

    def test_only_named_settings(self):
        with pytest.raises(TypeError):
            StageConfig(4)
        with pytest.raises(TypeError, match=re.escape("workers")):
            StageConfig(workers=4)


class TestPipeline:
    def test_defaults(self):
        settings = Pipeline("p").settings
        assert (settings.name, settings.checkpoint, settings.stage) == ("p", None, None)
        assert (settings.cut_interval_s, settings.max_bytes) == (5, 256 << 20)

    @pytest.mark.parametrize("value", [0, 0.09, -1, float("inf"), float("nan"), "5", None, True])
    def test_cut_interval(self, value):
        refused(
            ConfigError,
            f"cut_interval_s is {value!r}; give a finite number from 0.1 up",
            lambda: Pipeline("p", cut_interval_s=value),
        )
        Pipeline("p", cut_interval_s=0.1)

    @pytest.mark.parametrize("value", [0, (1 << 20) - 1, -1, 2e9, "1", None, True])
    def test_max_bytes(self, value):
        refused(
            ConfigError,
            f"max_bytes is {value!r}; give an int of at least 1048576",
            lambda: Pipeline("p", max_bytes=value),
        )
        Pipeline("p", max_bytes=1 << 20)

    @pytest.mark.parametrize("value", [500, {"chunk_rows": 5}, StageConfig])
    def test_stage(self, value):
        refused(
            ConfigError,
            f"stage is {value!r}; give a StageConfig",
            lambda: Pipeline("p", stage=value),
        )

    @pytest.mark.parametrize("value", ["", 3, b"state"])
    def test_checkpoint(self, value):
        refused(
            ConfigError,
            f"checkpoint is {value!r}, {a_type(value)}; give a path, a str or a Path",
            lambda: Pipeline("p", checkpoint=value),
        )
