"""Which steps share a stage, and how stages are named."""

import pyarrow.compute as pc
import pytest

from batchqueue import ConfigError
from batchqueue.aggregation import Aggregation, Count
from batchqueue.pipeline import GraphError, Pipeline, StageConfig
from batchqueue.pipeline.compiling import StageRoute, compile_graph
from pipeline_support.numbers import Numbers
from pipeline_support.sinks import Kept


def first(chunk):
    return chunk


def second(chunk):
    return chunk


class Counting:
    def process(self, chunk):
        return chunk


def stages(build, config=None):
    """Compiles a graph; returns its stages by name."""
    flow = Pipeline("p")
    build(flow.source(Numbers(1)))
    graph = compile_graph(flow.graph, config or StageConfig())
    return {stage.name: stage for stage in graph.stages}


def shape(build, config=None):
    return [
        (name, stage.upstream, stage.workers, [str(step) for step in stage.steps])
        for name, stage in stages(build, config).items()
    ]


def test_neighbours_share_a_stage_and_a_sink_has_its_own():
    found = shape(lambda flow: flow.map(first).filter(pc.field("n") > 1).map(second).to(Kept()))
    assert found == [
        ("map(first)", "numbers", 1, ["map(first)", "filter((n > 1))", "map(second)"]),
        ("Kept", "map(first)", 1, []),
    ]


def test_sink_alone():
    assert shape(lambda flow: flow.to(Kept())) == [("Kept", "numbers", 1, [])]


def test_other_workers_begin_a_stage():
    found = shape(
        lambda flow: (
            flow.map(first)
            .map(second, workers=4)
            .map(first)
            .map(first, workers=4)
            .map(second, workers=1)
            .to(Kept())
        )
    )
    assert [(name, workers) for name, _, workers, _ in found] == [
        ("map(first)", 1),
        ("map(second)", 4),
        ("map(second)_2", 1),
        ("Kept", 1),
    ]


def test_key_by_begins_a_stage_with_a_worker_per_partition():
    found = stages(lambda flow: flow.map(first).key_by("n", partitions=3).map(second).to(Kept()))
    keyed = found["key_by(n)"]
    assert (keyed.workers, keyed.route, keyed.key.columns) == (3, StageRoute.KEY, ("n",))
    assert [str(step) for step in keyed.steps] == ["map(second)"]


def test_key_by_has_the_workers_of_the_pipeline_by_default():
    found = stages(lambda flow: flow.key_by("n").to(Kept()), StageConfig(max_workers=6))
    assert found["key_by(n)"].workers == 6


def test_more_partitions_than_workers():
    config = StageConfig(max_workers=3, partition_count=12)
    found = stages(lambda flow: flow.key_by("n").to(Kept()), config)
    assert (found["key_by(n)"].workers, found["key_by(n)"].partitions) == (3, 12)


def test_partition_count_wins_over_more_workers():
    config = StageConfig(max_workers=4, partition_count=2)
    flow = Pipeline("p", stage=config)
    flow.source(Numbers(1)).map(first).key_by("n").filter(second).to(Kept())
    mapped, keyed, sink = flow.compiled().stages
    assert [(each.workers, each.partitions) for each in (mapped, keyed, sink)] == [
        (2, 2),
        (2, 2),
        (1, 1),
    ]


def test_partitions_beyond_the_workers_are_those_of_keys():
    flow = Pipeline("p", stage=StageConfig(max_workers=3, partition_count=12))
    flow.source(Numbers(1)).map(first).key_by("n").filter(second).to(Kept())
    assert [each.partitions for each in flow.compiled().stages] == [3, 12, 1]


@pytest.mark.parametrize(
    "steps",
    [
        lambda flow: flow.map(first, workers=4),
        lambda flow: flow.key_by("n", partitions=4).filter(second),
        lambda flow: flow.aggregate(Aggregation(keys=["n"], measures={"rows": Count()}), spread=4),
    ],
    ids=["map", "key_by", "aggregate"],
)
def test_more_workers_than_partitions_are_refused(steps):
    flow = Pipeline("p", stage=StageConfig(max_workers=8, partition_count=2))
    steps(flow.source(Numbers(1))).to(Kept())
    with pytest.raises(GraphError, match="has 4 workers and partition_count is 2"):
        flow.compiled()


@pytest.mark.parametrize(
    "steps",
    [
        lambda flow: flow.map(first, workers=1),
        lambda flow: flow.key_by("n", partitions=1).filter(second),
        lambda flow: flow.stage("s", StageConfig(max_workers=4, min_workers=2)).map(first, 1),
    ],
    ids=["map", "key_by", "stage"],
)
def test_fewer_workers_than_min_workers_are_refused(steps):
    flow = Pipeline("p", stage=StageConfig(max_workers=4, min_workers=2))
    steps(flow.source(Numbers(1))).to(Kept())
    with pytest.raises(GraphError, match=r"has 1 worker and min_workers is 2.*give its step 2"):
        flow.compiled()


def test_min_workers_concern_no_stage_that_has_one_worker_by_its_kind():
    flow = Pipeline("p", stage=StageConfig(max_workers=4, min_workers=2))
    rows = Aggregation(keys=["n"], measures={"rows": Count()})
    flow.source(Numbers(1)).map(first).aggregate(rows, spread=2).to(Kept())
    flow.source(Numbers(1)).aggregate(rows).to(Kept())
    assert [each.workers for each in flow.compiled().stages] == [4, 2, 1, 1, 1, 1]


def test_each_worker_needs_a_partition():
    with pytest.raises(ConfigError, match="partition_count is 2 and min_workers 3"):
        StageConfig(max_workers=4, min_workers=3, partition_count=2)


def test_stage_names_what_follows_it():
    config = StageConfig(max_workers=2, keep_order=True, chunk_rows=7)
    found = stages(lambda flow: flow.map(first).stage("heavy", config).map(second).to(Kept()))
    assert list(found) == ["map(first)", "heavy", "Kept"]
    assert (found["heavy"].workers, found["heavy"].route) == (2, StageRoute.SOURCE_PARTITION)
    assert found["Kept"].config.chunk_rows == 7


def test_stage_names_a_key_by_that_follows_immediately():
    found = stages(lambda flow: flow.stage("keyed").key_by("n", partitions=2).map(first).to(Kept()))
    assert list(found) == ["keyed", "Kept"]
    assert (found["keyed"].route, found["keyed"].workers) == (StageRoute.KEY, 2)


def test_branches_begin_stages():
    def build(flow):
        mapped = flow.map(first)
        mapped.map(second).to(Kept())
        mapped.to(Kept())

    assert [(name, upstream) for name, upstream, _, _ in shape(build)] == [
        ("map(first)", "numbers"),
        ("map(second)", "map(first)"),
        ("Kept", "map(second)"),
        ("Kept_2", "map(first)"),
    ]


def test_branches_of_a_source():
    def build(flow):
        flow.map(first).to(Kept())
        flow.map(second).to(Kept())

    assert [(name, upstream) for name, upstream, _, _ in shape(build)] == [
        ("map(first)", "numbers"),
        ("Kept", "map(first)"),
        ("map(second)", "numbers"),
        ("Kept_2", "map(second)"),
    ]


def aggregated(**settings):
    return Aggregation(keys=["n"], measures={"rows": Count()}, **settings)


def test_spread_aggregation_has_two_stages():
    found = shape(lambda flow: flow.aggregate(aggregated(), spread=3).to(Kept()))
    assert [(name, workers, len(steps)) for name, _, workers, steps in found] == [
        ("aggregate(rows)", 3, 1),
        ("aggregate(rows)_2", 1, 1),
        ("Kept", 1, 0),
    ]


def test_aggregation_behind_several_workers_has_one():
    found = shape(lambda flow: flow.map(first, workers=4).aggregate(aggregated()).to(Kept()))
    assert [(name, workers) for name, _, workers, _ in found][:2] == [
        ("map(first)", 4),
        ("aggregate(rows)", 1),
    ]


def test_aggregation_by_its_own_key_stays_with_its_workers():
    by_key = shape(lambda flow: flow.key_by("n", partitions=4).aggregate(aggregated()).to(Kept()))
    assert [(name, workers) for name, _, workers, _ in by_key] == [("key_by(n)", 4), ("Kept", 1)]
    other = shape(lambda flow: flow.key_by("x", partitions=4).aggregate(aggregated()).to(Kept()))
    assert [(name, workers) for name, _, workers, _ in other] == [
        ("key_by(x)", 4),
        ("aggregate(rows)", 1),
        ("Kept", 1),
    ]


def test_names_are_those_of_the_functions_and_never_change():
    def build(flow):
        flow.stateful(Counting).map(lambda chunk: chunk, workers=2).map(Counting(), workers=1).to(
            Kept()
        )

    names = [name for name, *_ in shape(build)]
    assert names == ["stateful(Counting)", "map(<lambda>)", "map(Counting)", "Kept"]
    assert names == [name for name, *_ in shape(build)]


def test_names_of_stages_avoid_those_that_were_given():
    def build(flow):
        flow.map(first).stage("map(second)").map(first).to(Kept(), name="map(first)")

    assert [name for name, *_ in shape(build)] == ["map(first)_2", "map(second)", "map(first)"]


def test_object_in_a_stage_of_several_workers_is_refused():
    with pytest.raises(GraphError, match=r"would call the object of map.Counting. concurrently"):
        stages(lambda flow: flow.map(Counting()).to(Kept()), StageConfig(max_workers=2))


@pytest.mark.parametrize("rows", [0, -1, 1_000_001, True, 1.0, None])
def test_batch_rows_of_a_sink_must_be_a_count(rows):
    with pytest.raises(
        GraphError, match=r"sink 'Kept' has batch_rows .*; it must be an int from 1"
    ):
        stages(lambda flow: flow.to(Kept(batch_rows=rows)))


def test_chunks_are_as_small_as_the_narrowest_branch_wants():
    flow = Pipeline("p")
    numbers = flow.source(Numbers(1))
    numbers.stage("small", StageConfig(chunk_rows=10)).to(Kept())
    numbers.to(Kept())
    graph = compile_graph(flow.graph, StageConfig())
    assert graph.chunk_rows_after("numbers") == 10


def test_each_stage_follows_the_one_before_it():
    def build(flow):
        left = flow.map(first).key_by("n", partitions=2).map(second)
        left.map(first, workers=5).to(Kept())
        left.aggregate(aggregated(), spread=2).to(Kept())
        flow.to(Kept())

    seen = {"numbers"}
    for name, upstream, _, _ in shape(build):
        assert upstream in seen
        seen.add(name)
