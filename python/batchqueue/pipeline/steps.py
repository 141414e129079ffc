"""The steps of a graph, as they were declared. They do nothing; a runner gives them a meaning."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from batchqueue.pipeline.contract import Operator, Sink, Source
from batchqueue.pipeline.stage_config import StageConfig

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.compute as pc

    from batchqueue.aggregation import Aggregation


@dataclass(frozen=True, eq=False)
class SourceStep:
    """The beginning: a source under the name that positions and statistics use."""

    source: Source
    name: str

    def __str__(self) -> str:
        return f"source {self.name!r}"


@dataclass(frozen=True, eq=False)
class MapStep:
    """A function of a record batch, or an operator."""

    operation: "Callable[[pa.RecordBatch], Any] | Operator"
    workers: int | None
    schema: "pa.Schema | None"

    def __str__(self) -> str:
        return f"map({_name_of(self.operation)})"


@dataclass(frozen=True, eq=False)
class FilterStep:
    """Which rows stay: a pyarrow expression, or a function of a record batch."""

    keep: "pc.Expression | Callable[[pa.RecordBatch], Any]"

    def __str__(self) -> str:
        return f"filter({_name_of(self.keep) if callable(self.keep) else self.keep})"


@dataclass(frozen=True, eq=False)
class KeyByStep:
    """From here on, rows with equal values in these columns meet the same worker, in order."""

    columns: tuple[str, ...]
    partitions: int | None
    partition: "Callable[[pa.RecordBatch], Any] | None"

    def __str__(self) -> str:
        return f"key_by({', '.join(self.columns) or _name_of(self.partition)})"


@dataclass(frozen=True, eq=False)
class AggregateStep:
    """A row per group, with each cut."""

    aggregation: "Aggregation"
    spread: int

    def __str__(self) -> str:
        return f"aggregate({', '.join(self.aggregation.measures)})"


@dataclass(frozen=True, eq=False)
class StatefulStep:
    """An operator with state, made once for each worker."""

    make: Callable[[], Operator]
    spark: Any

    def __str__(self) -> str:
        return f"stateful({_name_of(self.make)})"


@dataclass(frozen=True, eq=False)
class StageStep:
    """The beginning of a named stage, with its settings."""

    name: str
    config: StageConfig | None

    def __str__(self) -> str:
        return f"stage({self.name!r})"


@dataclass(frozen=True, eq=False)
class SinkStep:
    """The end."""

    sink: Sink
    name: str

    def __str__(self) -> str:
        return f"sink {self.name!r}"


Step = (
    SourceStep
    | MapStep
    | FilterStep
    | KeyByStep
    | AggregateStep
    | StatefulStep
    | StageStep
    | SinkStep
)


@dataclass(frozen=True, eq=False)
class Node:
    """A step and the one before it; sources have none before them."""

    step: Step
    parent: "Node | None"

    def path(self) -> "tuple[Node, ...]":
        """Return the nodes from the source to this one."""
        nodes: list[Node] = []
        node: Node | None = self
        while node is not None:
            nodes.append(node)
            node = node.parent
        return tuple(reversed(nodes))


def _name_of(value: object) -> str:
    """Return a name that is the same in every run, because snapshots refer to it."""
    if isinstance(value, partial):
        return _name_of(value.func)
    name = getattr(value, "__name__", None)
    return name if isinstance(name, str) and name else type(value).__name__
