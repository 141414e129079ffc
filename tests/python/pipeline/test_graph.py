"""Graphs: flows never change, branches keep their paths, and what cannot run is refused."""

import dataclasses
from functools import partial

import pyarrow.compute as pc
import pytest

from batchqueue import ConfigError
from batchqueue.aggregation import Aggregation, Count, Sum
from batchqueue.pipeline import Flow, GraphError, Pipeline, StageConfig
from batchqueue.pipeline.graph import (
    AggregateStep,
    FilterStep,
    GraphNode,
    KeyByStep,
    MapStep,
    SinkStep,
    SourceStep,
    StageStep,
    StatefulStep,
)
from batchqueue.pipeline.operators import PartialAggregateStep
from pipeline_support.graph_parts import Kept, Nothing

SALES = Aggregation(keys=["city"], measures={"orders": Count(), "cents": Sum("cents")})


class Same:
    """An operator object."""

    def process(self, chunk):
        return chunk


def enrich(batch):
    return batch


def flow_of(pipeline=None):
    return (pipeline or Pipeline("p")).source(Nothing())


def described(pipeline):
    """The steps on the way to each sink."""
    return [[str(node.step) for node in sink.path()] for sink in pipeline.graph.sinks]


class TestBranches:
    def test_a_line_of_all_steps(self):
        pipeline = Pipeline("p")
        config = StageConfig(max_workers=2)
        flow = pipeline.source(Nothing(), name="orders").filter(pc.field("n") > 0).map(enrich)
        flow = flow.stage("keyed", config).key_by("a", "b", partitions=4).stateful(Same)
        flow.aggregate(SALES, spread=3).to(Kept(), name="totals")
        pipeline.graph.check()
        assert described(pipeline) == [
            [
                "source 'orders'",
                "filter((n > 0))",
                "map(enrich)",
                "stage('keyed')",
                "key_by(a, b)",
                "stateful(Same)",
                "aggregate(orders, cents)",
                "sink 'totals'",
            ]
        ]
        steps = [node.step for node in pipeline.graph.sinks[0].path()]
        assert [type(step) for step in steps] == [
            *(SourceStep, FilterStep, MapStep, StageStep, KeyByStep, StatefulStep),
            *(AggregateStep, SinkStep),
        ]
        assert steps[3].config is config
        assert (steps[4].columns, steps[4].partitions) == (("a", "b"), 4)
        assert (steps[6].aggregation, steps[6].spread) == (SALES, 3)

    def test_two_methods_of_one_flow_make_two_branches(self):
        pipeline = Pipeline("p")
        flow = flow_of(pipeline).map(enrich)
        flow.to(Kept(), name="all")
        flow.filter(pc.field("n") > 0).to(Kept(), name="some")
        pipeline.graph.check()
        assert described(pipeline) == [
            ["source 'nothing'", "map(enrich)", "sink 'all'"],
            ["source 'nothing'", "map(enrich)", "filter((n > 0))", "sink 'some'"],
        ]
        left, right = (sink.path() for sink in pipeline.graph.sinks)
        assert left[1] is right[1]  # mapped once

    def test_several_sources(self):
        pipeline = Pipeline("p")
        for name in ("a", "b"):
            pipeline.source(Nothing(name)).to(Kept(), name=f"to {name}")
        pipeline.graph.check()
        assert [str(node.step) for node in pipeline.graph.sources] == ["source 'a'", "source 'b'"]
        assert described(pipeline) == [["source 'a'", "sink 'to a'"], ["source 'b'", "sink 'to b'"]]

    def test_a_path_of_more_steps_than_python_nests_calls(self):
        pipeline = Pipeline("p")
        flow = flow_of(pipeline)
        for _ in range(3_000):
            flow = flow.map(enrich)
        flow.to(Kept())
        pipeline.graph.check()
        assert len(pipeline.graph.sinks[0].path()) == 3_002

    def test_to_ends_a_branch(self):
        assert flow_of().to(Kept()) is None


class TestNothingChanges:
    def test_a_method_leaves_its_flow_as_it_was(self):
        pipeline = Pipeline("p")
        first = flow_of(pipeline)
        second = first.map(enrich)
        second.to(Kept())
        first.to(Kept())
        assert second is not first
        assert described(pipeline) == [
            ["source 'nothing'", "map(enrich)", "sink 'Kept'"],
            ["source 'nothing'", "sink 'Kept_2'"],
        ]

    @pytest.mark.parametrize(
        "step",
        [
            SourceStep(Nothing(), "s"),
            MapStep(enrich, None, None),
            FilterStep(enrich),
            KeyByStep(("k",), None, None),
            AggregateStep(SALES, 1),
            StatefulStep(Same, None),
            StageStep("s", None),
            SinkStep(Kept(), "s"),
            GraphNode(StageStep("s", None), None),
            StageConfig(),
        ],
        ids=lambda step: type(step).__name__,
    )
    def test_steps_are_frozen(self, step):
        field = dataclasses.fields(step)[0].name
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(step, field, None)

    def test_a_refused_step_leaves_the_graph_as_it_was(self):
        pipeline = Pipeline("p")
        flow = flow_of(pipeline)
        for refused in (
            lambda: flow.map(3),
            lambda: flow.filter("n > 0"),
            lambda: flow.key_by(),
            lambda: flow.aggregate(Count()),
            lambda: flow.stateful(None),
            lambda: flow.stage(""),
            lambda: flow.stage("nothing"),
            lambda: flow.stage("s", config="fast"),
            lambda: flow.to(None),
            lambda: flow.to(Kept(), name="nothing"),
            lambda: pipeline.source(None),
            lambda: pipeline.source(Nothing(), name="nothing"),
        ):
            with pytest.raises((GraphError, ConfigError)):
                refused()
        flow.stage("s").to(Kept())
        pipeline.graph.check()


class TestWithoutEnd:
    def test_a_pipeline_without_source(self):
        with pytest.raises(GraphError) as raised:
            Pipeline("p").graph.check()
        assert str(raised.value) == "the pipeline has no source; begin with pipeline.source(...)"

    @pytest.mark.parametrize(
        ("add", "end"),
        [
            (lambda flow: flow, "source 'nothing'"),
            (lambda flow: flow.map(enrich), "source 'nothing'"),
            (lambda flow: flow.stage("s"), "source 'nothing'"),
        ],
    )
    def test_a_branch_without_sink(self, add, end):
        pipeline = Pipeline("p")
        add(flow_of(pipeline))
        with pytest.raises(GraphError) as raised:
            pipeline.graph.check()
        assert str(raised.value) == f"{end} has no sink behind it; end the branch with .to(sink)"

    def test_one_of_two_branches_without_sink(self):
        pipeline = Pipeline("p")
        flow = flow_of(pipeline)
        flow.to(Kept())
        flow.map(enrich)
        with pytest.raises(GraphError, match=r"^map\(enrich\) has no sink behind it; end the"):
            pipeline.graph.check()

    def test_one_of_two_sources_without_sink(self):
        pipeline = Pipeline("p")
        flow_of(pipeline).to(Kept())
        pipeline.source(Nothing("other"))
        with pytest.raises(GraphError, match=r"^source 'other' has no sink behind it"):
            pipeline.graph.check()


class TestNames:
    def test_defaults_are_numbered(self):
        pipeline = Pipeline("p")
        for _ in range(3):
            flow_of(pipeline).to(Kept())
        names = [node.step.name for node in (*pipeline.graph.sources, *pipeline.graph.sinks)]
        assert names == ["nothing", "nothing_2", "nothing_3", "Kept", "Kept_2", "Kept_3"]

    def test_a_number_that_is_in_use_is_passed_over(self):
        pipeline = Pipeline("p")
        pipeline.source(Nothing(), name="Kept_2").to(Kept())
        pipeline.source(Nothing()).to(Kept())
        assert [node.step.name for node in pipeline.graph.sinks] == ["Kept", "Kept_3"]

    @pytest.mark.parametrize("name", ["", "a\nb", None, 3])
    def test_a_source_with_an_unusable_name_is_called_stage(self, name):
        pipeline = Pipeline("p")
        pipeline.source(Nothing(name))
        assert pipeline.graph.sources[0].step.name == "stage"

    @pytest.mark.parametrize(
        "use",
        [
            lambda pipeline, flow: pipeline.source(Nothing(), name="taken"),
            lambda pipeline, flow: flow.stage("taken"),
            lambda pipeline, flow: flow.to(Kept(), name="taken"),
        ],
        ids=["source", "stage", "sink"],
    )
    @pytest.mark.parametrize(
        "take",
        [
            lambda pipeline, flow: pipeline.source(Nothing(), name="taken"),
            lambda pipeline, flow: flow.stage("taken"),
            lambda pipeline, flow: flow.to(Kept(), name="taken"),
        ],
        ids=["source", "stage", "sink"],
    )
    def test_two_stages_cannot_have_one(self, take, use):
        pipeline = Pipeline("p")
        flow = flow_of(pipeline)
        take(pipeline, flow)
        with pytest.raises(GraphError) as raised:
            use(pipeline, flow)
        assert str(raised.value) == (
            "two stages are named 'taken'; give each a different name, because checkpoints and "
            "statistics use it"
        )

    @pytest.mark.parametrize("name", ["", "a\nb", "\0", 3, b"name"])
    def test_must_be_printable(self, name):
        message = f"the name is {name!r}; give printable characters, at least one"
        pipeline = Pipeline("p")
        flow = flow_of(pipeline)
        for use in (
            lambda: Pipeline(name),
            lambda: pipeline.source(Nothing(), name=name),
            lambda: flow.stage(name),
            lambda: flow.to(Kept(), name=name),
        ):
            with pytest.raises(ConfigError) as raised:
                use()
            assert str(raised.value) == message

    def test_a_stage_or_pipeline_needs_one(self):
        for use in (lambda: flow_of().stage(None), lambda: Pipeline(None)):
            with pytest.raises(ConfigError, match=r"^the name is None; give printable"):
                use()

    def test_any_printable_text_will_do(self):
        pipeline = Pipeline("Umsätze 2026 / {a}")
        flow_of(pipeline).stage("ünï ' \"").to(Kept(), name="🦀")
        pipeline.graph.check()


class TestNamesOfSteps:
    @pytest.mark.parametrize(
        ("operation", "shown"),
        [
            (enrich, "enrich"),
            (partial(enrich), "enrich"),
            (partial(partial(Same().process)), "process"),
            (Same(), "Same"),
            (lambda batch: batch, "<lambda>"),
            (Same().process, "process"),
        ],
    )
    def test_are_the_same_in_every_run(self, operation, shown):
        # Snapshots refer to them, so an address would lose the state.
        assert str(MapStep(operation, None, None)) == f"map({shown})"
        assert str(KeyByStep((), None, operation)) == f"key_by({shown})"
        assert str(StatefulStep(operation, None)) == f"stateful({shown})"

    def test_of_filters(self):
        assert str(FilterStep(enrich)) == "filter(enrich)"
        assert str(FilterStep(pc.field("n") > 1)) == "filter((n > 1))"

    def test_of_spread_aggregations(self):
        assert str(PartialAggregateStep(SALES, 2)) == "aggregate(orders, cents) in 2 parts"
        assert str(AggregateStep(SALES, 1)) == "aggregate(orders, cents)"

    def test_of_flows_and_pipelines(self):
        assert isinstance(flow_of(), Flow)
        assert repr(Pipeline("p")) == "Pipeline('p')"
