"""Compilation of a graph to the stages that a process runs. Pure: it starts nothing."""

import enum
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from batchqueue.base.checks import is_whole
from batchqueue.base.words import counted
from batchqueue.pipeline.contract import GraphError, Source
from batchqueue.pipeline.graph import (
    MAX_CHUNK_ROWS,
    AggregateStep,
    FilterStep,
    Graph,
    GraphNode,
    KeyByStep,
    MapStep,
    SinkStep,
    SourceStep,
    StageConfig,
    StageStep,
    StatefulStep,
)
from batchqueue.pipeline.operators import ChainStep, PartialAggregateStep


class StageRoute(enum.Enum):
    """How a stage picks the worker that gets a chunk."""

    ANY = "any"
    """To the worker with the fewest chunks, taking turns among equals."""
    SOURCE_PARTITION = "source partition"
    """To the worker of the source partition that the chunk comes from."""
    KEY = "key"
    """To several workers: the chunk is split, and each row goes to the worker of its key."""


@dataclass(frozen=True, eq=False)
class StagePlan:
    """A stage: operators that run one after the other in each worker, or a sink.

    Attributes:
        name: Its name, unique in the pipeline and stable across runs of an equal graph.
        source: The name of the source that its chunks come from.
        upstream: The name of the stage before it, or of the source.
        config: Its settings.
        workers: Its threads.
        route: Which worker gets a chunk.
        key: The key, if the route is by key.
        steps: Its operators, in order; empty for a sink.
        sink: The sink, or None.
    """

    name: str
    source: str
    upstream: str
    config: StageConfig
    workers: int
    route: StageRoute = StageRoute.ANY
    key: KeyByStep | None = None
    steps: tuple[ChainStep, ...] = ()
    sink: SinkStep | None = None

    @property
    def partitions(self) -> int:
        """The partitions that keys are hashed to and the workers divide; else one per worker."""
        return self.workers if self.key is None else self.config.partition_count or self.workers


@dataclass(frozen=True, eq=False)
class CompiledGraph:
    """What a process runs.

    Attributes:
        sources: The sources by name, in declaration order.
        stages: The stages; each follows the stage before it.
    """

    sources: dict[str, Source]
    stages: tuple[StagePlan, ...]

    def after(self, name: str) -> tuple[StagePlan, ...]:
        """Return the stages that a source or stage feeds."""
        return tuple(stage for stage in self.stages if stage.upstream == name)

    def chunk_rows_after(self, name: str) -> int:
        """Return the most rows of the chunks that a source or stage emits."""
        return min(stage.config.chunk_rows for stage in self.after(name))


def compile_graph(graph: Graph, config: StageConfig | None = None) -> CompiledGraph:
    """Return the sources and stages of a graph.

    Adjacent operators share a stage, up to a `stage`, a `key_by`, a different `workers` or a
    branch. Each sink is a separate stage, so that a slow sink is visible as such.

    Args:
        graph: The graph.
        config: The settings of stages that have none. Default: None, `StageConfig()`.

    Raises:
        GraphError: The graph cannot run.
    """
    graph.check()
    return _Compiler(graph, config or StageConfig()).compiled()


@dataclass(eq=False)
class _Compiler:
    graph: Graph
    config: StageConfig
    stages: list[StagePlan] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._children: dict[int, list[GraphNode]] = {}
        self._names: set[str] = set()
        for node in _nodes(self.graph):
            if node.parent is not None:
                self._children.setdefault(id(node.parent), []).append(node)
            if isinstance(node.step, SourceStep | StageStep | SinkStep):
                self._names.add(node.step.name)

    def compiled(self) -> CompiledGraph:
        sources = {}
        for node in self.graph.sources:
            assert isinstance(node.step, SourceStep)
            sources[node.step.name] = node.step.source
            self._branches(node, node.step.name, node.step.name)
        return CompiledGraph(sources, tuple(self.stages))

    def _branches(self, node: GraphNode, source: str, upstream: str) -> None:
        """Start a stage with each child of a node that ends one."""
        for child in self._children[id(node)]:
            self._follow(child, source, upstream, None)

    def _follow(self, node: GraphNode, source: str, upstream: str, stage: StagePlan | None) -> None:
        """Add a node to an incomplete stage, or start another stage with it."""
        step = node.step
        if isinstance(step, SinkStep):
            _check_batch_rows(step)
            above = upstream if stage is None else self._complete(stage)
            config = _single(self.config if stage is None else stage.config)
            self.stages.append(StagePlan(step.name, source, above, config, 1, sink=step))
            return
        extended = None if stage is None else _extended(stage, step)
        if extended is None:
            above = upstream if stage is None else self._complete(stage)
            extended = self._begun(node, source, above)
        if isinstance(step, AggregateStep) and step.spread > 1:
            above = self._complete(extended)
            label = self._unused(_label(step))
            merge = (replace(step, spread=1),)
            config = _single(self.config)
            extended = replace(_configured(label, source, above, config, 1), steps=merge)
        if len(self._children[id(node)]) > 1:
            self._branches(node, source, self._complete(extended))
        else:
            self._follow(self._children[id(node)][0], source, upstream, extended)

    def _begun(self, node: GraphNode, source: str, upstream: str) -> StagePlan:
        step = node.step
        if isinstance(step, StageStep):
            return _configured(step.name, source, upstream, step.config or self.config)
        name = self._unused(_label(step))
        if isinstance(step, KeyByStep):
            stage = _configured(name, source, upstream, self.config)
            return _keyed(stage, step)
        assert not isinstance(step, SourceStep | SinkStep)
        config, workers = self.config, self.config.workers
        if isinstance(step, MapStep) and step.workers is not None:
            workers = step.workers
        elif isinstance(step, AggregateStep):
            workers = step.spread
            config = config if workers > 1 else _single(config)
        stage = _configured(name, source, upstream, config, workers)
        return replace(stage, steps=(_in_chain(step),))

    def _complete(self, stage: StagePlan) -> str:
        """Add a stage, and return its name."""
        _check_workers(stage)
        for step in stage.steps:
            if (
                stage.workers > 1
                and isinstance(step, MapStep)
                and hasattr(step.operation, "process")
            ):
                raise GraphError(
                    f"stage {stage.name!r} has {stage.workers} workers, which would call the "
                    f"object of {_label(step)} concurrently; give a function, use "
                    ".stateful(make), or give map workers=1"
                )
        self.stages.append(stage)
        return stage.name

    def _unused(self, label: str) -> str:
        name, number = label, 2
        while name in self._names:
            name, number = f"{label}_{number}", number + 1
        self._names.add(name)
        return name


def _check_workers(stage: StagePlan) -> None:
    """Refuse a number of workers that a step asks for and the settings of its stage rule out."""
    least, most = stage.config.min_workers, stage.config.partition_count
    if stage.workers < least:
        raise GraphError(
            f"stage {stage.name!r} has {counted(stage.workers, 'worker')} and min_workers is "
            f"{least}; give its step {least} or more, or the stage its own StageConfig"
        )
    if most is not None and stage.workers > most:
        raise GraphError(
            f"stage {stage.name!r} has {stage.workers} workers and partition_count is {most}, so "
            f"that some would have no partition; give its step {most} at most, or raise "
            "partition_count"
        )


def _check_batch_rows(step: SinkStep) -> None:
    rows: object = step.sink.batch_rows
    if not is_whole(rows, 1, MAX_CHUNK_ROWS):
        raise GraphError(
            f"{step} has batch_rows {rows!r}; it must be an int from 1 to {MAX_CHUNK_ROWS:,}"
        )


def _nodes(graph: Graph) -> Iterator[GraphNode]:
    """Return the nodes that lead to sinks, each once and after its parent."""
    seen: set[int] = set()
    for sink in graph.sinks:
        for node in sink.path():
            if id(node) not in seen:
                seen.add(id(node))
                yield node


def _extended(stage: StagePlan, step: object) -> StagePlan | None:
    """Return a stage with one more step; None if the step begins another stage."""
    match step:
        case MapStep(workers=workers) if workers not in {None, stage.workers}:
            return None
        case KeyByStep():
            # A `.stage(...)` gives its name and settings to the `key_by` after it.
            is_new = not stage.steps and stage.key is None
            return _keyed(stage, step) if is_new else None
        case AggregateStep() if not _meets_groups(stage, step):
            return None
        case MapStep() | FilterStep() | AggregateStep() | StatefulStep():
            return replace(stage, steps=(*stage.steps, _in_chain(step)))
    return None


def _in_chain(step: MapStep | FilterStep | AggregateStep | StatefulStep) -> ChainStep:
    """Return what a chain does for a step; only the first half of a spread aggregation."""
    if isinstance(step, AggregateStep) and step.spread > 1:
        return PartialAggregateStep(step.aggregation, step.spread)
    return step


def _meets_groups(stage: StagePlan, step: AggregateStep) -> bool:
    """Return whether all rows of a group go to one worker, or a later stage merges its parts."""
    if step.spread > 1:
        return stage.workers == step.spread
    if stage.workers == 1:
        return True
    key = stage.key
    if key is None or key.partition is not None:
        return False
    return set(key.columns) <= set(step.aggregation.keys)


def _configured(
    name: str, source: str, upstream: str, config: StageConfig, workers: int | None = None
) -> StagePlan:
    count = config.workers if workers is None else workers
    ordered = config.keep_order and count > 1
    route = StageRoute.SOURCE_PARTITION if ordered else StageRoute.ANY
    return StagePlan(name, source, upstream, config, count, route)


def _keyed(stage: StagePlan, step: KeyByStep) -> StagePlan:
    workers = step.partitions or stage.config.workers
    return replace(stage, workers=workers, route=StageRoute.KEY, key=step)


def _single(config: StageConfig) -> StageConfig:
    """Return the settings of a stage with the number of workers forced to 1."""
    return replace(config, min_workers=1)


def _label(step: object) -> str:
    """Name a stage after its first step, using only what is the same in every run."""
    match step:
        case MapStep(operation=operation):
            return f"map({_called(operation)})"
        case FilterStep(keep=keep):
            return f"filter({_called(keep)})" if hasattr(keep, "__name__") else "filter"
        case StatefulStep(make=make):
            return f"stateful({_called(make)})"
    return str(step)


def _called(operation: object) -> str:
    name = getattr(operation, "__name__", type(operation).__name__)
    return name if isinstance(name, str) and name.isprintable() else type(operation).__name__
