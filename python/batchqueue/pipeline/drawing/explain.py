"""`explained`: a graph as text, stage by stage, as it will run in this process."""

from collections.abc import Iterator

from batchqueue._words import counted
from batchqueue.pipeline.compiling import CompiledGraph, Route, StagePlan
from batchqueue.pipeline.contract import Source, TransactionalSink

_GAP = "   "


def explained(graph: CompiledGraph) -> str:
    """Return the sources, stages and sinks of a graph as a tree, one line each.

    Args:
        graph: The graph, compiled.
    """
    lines = [line for name, source in graph.sources.items() for line in _tree(graph, name, source)]
    width = max(len(left) for left, _ in lines)
    return "\n".join(f"{left:{width}}{_GAP}{right}" for left, right in lines)


def order_of(graph: CompiledGraph, stage: StagePlan) -> str:
    """Return the order in which a stage meets rows, as a user would say it."""
    above = next((each for each in graph.stages if each.name == stage.upstream), None)
    before = "in order" if above is None else order_of(graph, above)
    if stage.workers == 1 or before == "in any order":
        return before
    match stage.route:
        case Route.KEY:
            return "in order per key" if before == "in order" else before
        case Route.SOURCE_PARTITION:
            return "in order per source partition" if before != "in order per key" else before
        case Route.ANY:
            return "in any order"


def delivery_of(stage: StagePlan) -> str:
    """Return what a sink does with rows that come again."""
    assert stage.sink is not None
    return "exactly once" if isinstance(stage.sink.sink, TransactionalSink) else "at least once"


def _tree(graph: CompiledGraph, name: str, source: Source) -> Iterator[tuple[str, str]]:
    end = "ends" if source.bounded else "does not end"
    yield name, f"source, {end}: {source!r}"
    yield from _below(graph, name, "")


def _below(graph: CompiledGraph, name: str, indent: str) -> Iterator[tuple[str, str]]:
    stages = graph.after(name)
    for stage in stages:
        is_last = stage is stages[-1]
        yield f"{indent}{'└─ ' if is_last else '├─ '}{stage.name}", _described(graph, stage)
        yield from _below(graph, stage.name, indent + ("   " if is_last else "│  "))


def _described(graph: CompiledGraph, stage: StagePlan) -> str:
    order = order_of(graph, stage)
    if stage.sink is not None:
        return f"sink, {delivery_of(stage)}, {order}: {stage.sink.sink!r}"
    workers = counted(stage.workers, "worker")
    steps = [str(stage.key)] if stage.key is not None else []
    steps += map(str, stage.steps)
    return f"{workers}, {order}: {', '.join(steps)}"
