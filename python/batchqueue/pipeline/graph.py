"""`Flow`: a graph from sources through operators to sinks, declared step by step."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from batchqueue.aggregation.aggregator import Aggregation
from batchqueue.base.checks import check_switch, check_whole
from batchqueue.exceptions import ConfigError
from batchqueue.pipeline.contract import GraphError, Operator, Sink, Source, is_deferred

MAX_WORKERS = 1_024
MAX_CHUNK_ROWS = 1_000_000


class Flow:
    """The output of a step. It is immutable: each method returns a new flow.

    Calling two methods on the same flow makes two branches, and each chunk goes to both. Branches
    never meet again: joins are left to Spark.

    `Pipeline.source` returns the first flow.
    """

    def __init__(self, graph: "Graph", node: "GraphNode") -> None:
        self._graph = graph
        self._node = node

    def map(
        self,
        operation: Callable[[pa.RecordBatch], Any] | Operator,
        workers: int | None = None,
        schema: pa.Schema | None = None,
    ) -> "Flow":
        """Apply a function or an operator to each chunk.

        Args:
            operation: A function that takes a `pyarrow.RecordBatch` and returns one, several, or
                None for nothing; or an object with `process`, which serves a single worker.
            workers: Threads that run it, 1 to 1024; a number that differs from that of the
                preceding stage starts a new stage. Default: None, it joins the preceding stage.
            schema: The schema of the result. It is checked in this process, and Spark needs it
                where an empty batch does not reveal it. Default: None, any.

        Raises:
            GraphError: `operation` is neither, or an object would serve several workers or steps.
            ConfigError: `workers` is out of range.
        """
        if workers is not None:
            check_whole("workers", workers, 1, MAX_WORKERS)
        is_object = hasattr(operation, "process")
        if isinstance(operation, type) or not (is_object or callable(operation)):
            raise GraphError(
                f"map got {operation!r}; give a function of a record batch, or an object with "
                "`process`"
            )
        if is_object and (workers or 1) > 1:
            raise GraphError(
                f"map got an object, {operation!r}, for {workers} workers, which would call it "
                "concurrently; give a function, or use .stateful(make) after .key_by(...)"
            )
        if is_object:
            self._graph.check_new(operation, "give another instance, or use .stateful(make)")
        return self._then(MapStep(operation, workers, schema))

    def filter(self, keep: pc.Expression | Callable[[pa.RecordBatch], Any]) -> "Flow":
        """Keep some of the rows.

        Args:
            keep: A pyarrow expression, such as `pc.field("cents") > 0`; or a function that takes a
                record batch and returns a boolean array with a value per row. Null drops the row.

        Raises:
            GraphError: `keep` is neither.
        """
        if not (isinstance(keep, pc.Expression) or callable(keep)):
            raise GraphError(
                f"filter got {keep!r}; give a pyarrow expression, or a function of a record batch"
            )
        return self._then(FilterStep(keep))

    def key_by(
        self,
        *columns: str,
        partitions: int | None = None,
        partition: Callable[[pa.RecordBatch], Any] | None = None,
    ) -> "Flow":
        """Start a stage in which rows with equal keys go to the same worker, in order.

        Args:
            columns: The columns of the key, at least one unless `partition` is given.
            partitions: Workers of the stage, 1 to 1024. Default: None, `max_workers` of the
                `StageConfig` of the stage, or fewer if its `partition_count` is lower.
            partition: A function that takes a record batch and returns the partition of each row,
                as an array of ints; it is taken modulo `partition_count` of the `StageConfig`, or
                the number of workers if that is not set. Default: None, a stable hash of the key.

        Raises:
            GraphError: There are neither columns nor a function, or a column is not a str.
            ConfigError: `partitions` is out of range.
        """
        if partitions is not None:
            check_whole("partitions", partitions, 1, MAX_WORKERS)
        if partition is not None and not callable(partition):
            raise GraphError(f"partition is {partition!r}; give a function of a record batch")
        if not all(isinstance(column, str) and column for column in columns):
            raise GraphError(f"key_by got {columns!r}; give names of columns")
        if bool(columns) == (partition is not None):
            raise GraphError("give key_by either columns or partition=, a function")
        return self._then(KeyByStep(columns, partitions, partition))

    def aggregate(self, aggregation: Aggregation, spread: int = 1) -> "Flow":
        """Aggregate rows by group, in Rust; each cut emits a batch with a row per group.

        A group with new rows is emitted again at a later cut, with the values of these rows alone,
        so the sink has to combine them, as `MetricsSink` does in its store.

        Args:
            aggregation: The keys and measures. `max_groups` bounds the memory: once there are that
                many groups, they are emitted before the cut.
            spread: Workers that each aggregate a part of the rows, before one more worker merges
                the results; 1 to 1024. Use more than one where a single thread is too slow.
                Default: 1.

        Raises:
            GraphError: `aggregation` is not an `Aggregation`.
            ConfigError: `spread` is out of range.
        """
        check_whole("spread", spread, 1, MAX_WORKERS)
        if not isinstance(aggregation, Aggregation):
            raise GraphError(
                f"aggregate got {aggregation!r}; give an Aggregation, for instance "
                'Aggregation(keys=["city"], measures={"orders": Count()})'
            )
        return self._then(AggregateStep(aggregation, spread))

    def stateful(self, make: Callable[[], Operator], spark: Any = None) -> "Flow":
        """Apply a stateful operator, one instance per worker.

        After `key_by`, it sees all rows of its keys, in order. Its `snapshot` is part of each cut.

        Args:
            make: Makes an operator; called once per worker.
            spark: The equivalent `StatefulProcessor` on Spark. Default: None, the graph does not
                run on Spark.

        Raises:
            GraphError: `make` is not callable.
        """
        if not callable(make):
            raise GraphError(f"stateful got {make!r}; give a function or class without arguments")
        return self._then(StatefulStep(make, spark))

    def stage(self, name: str, config: "StageConfig | None" = None) -> "Flow":
        """Start a stage: the steps that follow run in separate threads, behind a separate queue.

        Args:
            name: Its name in statistics; printable characters, at least one.
            config: Its settings. Default: None, those of the pipeline.

        Raises:
            GraphError: The name is in use.
            ConfigError: The name or the config is invalid.
        """
        check_name(name)
        if not (config is None or isinstance(config, StageConfig)):
            raise ConfigError(f"config is {config!r}; give a StageConfig")
        return self._then(StageStep(self._graph.unused_name(name, name), config))

    def to(self, sink: Sink, *, name: str | None = None) -> None:
        """End the branch in a sink.

        Args:
            sink: Where chunks go.
            name: Its name in statistics. Default: None, the name of its class.

        Raises:
            GraphError: `sink` is not a sink, its `write` is a coroutine or a generator function, it
                ends another branch, or the name is in use.
            ConfigError: The name is invalid.
        """
        if isinstance(sink, type) or not isinstance(sink, Sink):
            raise GraphError(
                f"{sink!r} is not a sink: it needs batch_rows and write(chunks); give for instance "
                "MetricsSink, or FunctionSink(function)"
            )
        if is_deferred(sink.write):
            raise GraphError(
                f"write of {sink!r} is a coroutine or a generator function, and a call of it would "
                "write nothing; make it a plain function"
            )
        self._graph.check_new(sink, "give each branch a sink; joins are for Spark")
        self._then(SinkStep(sink, self._graph.unused_name(name, type(sink).__name__)))

    def _then(self, step: "Step") -> "Flow":
        return Flow(self._graph, self._graph.add(step, self._node))


@dataclass(frozen=True, kw_only=True)
class StageConfig:
    """The settings of a stage: its workers, and the size of its chunks.

    Attributes:
        partition_count: Partitions of the stage, 1 to 1024: `key_by` hashes keys to them, and any
            stage has at most this many workers, since each needs one. Default: None, one per
            worker.
        min_workers: The fewest workers that a stage of operators may have, at most `max_workers`
            and `partition_count`: a graph that asks for fewer is refused. Default: 1.
        max_workers: The workers of a stage whose first step does not set a number, 1 to 1024: each
            is a thread with its own operator instances. More than one requires operators that may
            run concurrently. Sinks, and aggregations without a key, have one. Default: 1.
        chunk_rows: The most rows of a chunk, 1 to 1,000,000. Chunks also stay below 1 MB, except
            for a single row that is larger. On Spark, see `Pipeline(stage=...)`. Default: 500.
        keep_order: Whether a stage with several workers keeps the order of each source partition,
            by sending all its chunks to one worker. Default: False, chunks go to any worker.

    Raises:
        ConfigError: A number is out of range; the message names the setting and its limit.
    """

    partition_count: int | None = None
    min_workers: int = 1
    max_workers: int = 1
    chunk_rows: int = 500
    keep_order: bool = False

    def __post_init__(self) -> None:
        check_whole("max_workers", self.max_workers, 1, MAX_WORKERS)
        check_whole("min_workers", self.min_workers, 1, self.max_workers)
        check_whole("chunk_rows", self.chunk_rows, 1, MAX_CHUNK_ROWS)
        if self.partition_count is not None:
            check_whole("partition_count", self.partition_count, 1, MAX_WORKERS)
            if self.partition_count < self.min_workers:
                raise ConfigError(
                    f"partition_count is {self.partition_count} and min_workers "
                    f"{self.min_workers}; give each worker a partition"
                )
        check_switch("keep_order", self.keep_order)

    @property
    def workers(self) -> int:
        """The workers of a stage that does not set a number; each has a partition."""
        return min(self.max_workers, self.partition_count or self.max_workers)


# The steps of a graph, as they were declared. They do nothing until a runner interprets them.


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

    operation: Callable[[pa.RecordBatch], Any] | Operator
    workers: int | None
    schema: pa.Schema | None

    def __str__(self) -> str:
        return f"map({_name_of(self.operation)})"


@dataclass(frozen=True, eq=False)
class FilterStep:
    """The rows to keep: a pyarrow expression, or a function of a record batch."""

    keep: pc.Expression | Callable[[pa.RecordBatch], Any]

    def __str__(self) -> str:
        return f"filter({_name_of(self.keep) if callable(self.keep) else self.keep})"


@dataclass(frozen=True, eq=False)
class KeyByStep:
    """From here on, rows with equal values in these columns go to the same worker, in order."""

    columns: tuple[str, ...]
    partitions: int | None
    partition: Callable[[pa.RecordBatch], Any] | None

    def __str__(self) -> str:
        return f"key_by({', '.join(self.columns) or _name_of(self.partition)})"


@dataclass(frozen=True, eq=False)
class AggregateStep:
    """An aggregation, which emits a row per group at each cut."""

    aggregation: Aggregation
    spread: int

    def __str__(self) -> str:
        return f"aggregate({', '.join(self.aggregation.measures)})"


@dataclass(frozen=True, eq=False)
class StatefulStep:
    """A stateful operator, made once per worker."""

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
    """The end of a branch: a sink."""

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
class GraphNode:
    """A step and its predecessor; sources have none."""

    step: Step
    parent: "GraphNode | None"

    def path(self) -> "tuple[GraphNode, ...]":
        """Return the nodes from the source to this one."""
        nodes: list[GraphNode] = []
        node: GraphNode | None = self
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


class Graph:
    """The sources and sinks declared for one pipeline, in declaration order."""

    def __init__(self) -> None:
        self.sources: list[GraphNode] = []
        self.sinks: list[GraphNode] = []
        self._nodes: list[GraphNode] = []
        self._names: set[str] = set()

    def add_source(self, source: Source, name: str | None) -> GraphNode:
        """Begin a branch."""
        if isinstance(source, type) or not isinstance(source, Source):
            raise GraphError(
                f"{source!r} is not a source: it needs name, bounded, schema, initial, plan, "
                "between, read, lag and commit; give for instance FileSource or IterableSource"
            )
        self.check_new(source, "branch the flow of the first, or give another instance")
        node = GraphNode(SourceStep(source, self.unused_name(name, source.name)), None)
        self.sources.append(node)
        self._nodes.append(node)
        return node

    def add(self, step: Step, parent: GraphNode) -> GraphNode:
        """Continue a branch."""
        node = GraphNode(step, parent)
        self._nodes.append(node)
        if isinstance(step, SinkStep):
            self.sinks.append(node)
        return node

    def unused_name(self, given: str | None, default: str) -> str:
        """Reserve the name of a stage: the given one, or the default, numbered if necessary."""
        if given is not None:
            check_name(given)
            if given in self._names:
                raise GraphError(
                    f"two stages are named {given!r}; give each a different name, because "
                    "checkpoints and statistics use it"
                )
            name = given
        else:
            is_name = isinstance(default, str) and default and default.isprintable()
            base = default if is_name else "stage"
            name, number = base, 2
            while name in self._names:
                name, number = f"{base}_{number}", number + 1
        self._names.add(name)
        return name

    def check_new(self, part: object, remedy: str) -> None:
        """Refuse a source, sink or operator that is already in the graph: two threads would use it.

        Raises:
            GraphError: It is already in the graph.
        """
        if any(part is _part_of(node.step) for node in self._nodes):
            raise GraphError(f"{part!r} is in the graph already; {remedy}")

    def check(self) -> None:
        """Refuse a graph that cannot run.

        Raises:
            GraphError: There is no source, or a branch ends without a sink.
        """
        if not self.sources:
            raise GraphError("the pipeline has no source; begin with pipeline.source(...)")
        reached = {id(node) for sink in self.sinks for node in sink.path()}
        for node in self._nodes:
            if id(node) not in reached:
                raise GraphError(
                    f"{node.step} has no sink behind it; end the branch with .to(sink)"
                )


def _part_of(step: Step) -> object:
    """Return the instance that a step uses; None if it makes its own."""
    match step:
        case SourceStep(source=part) | SinkStep(sink=part) | MapStep(operation=part):
            return part
    return None


def check_name(name: object) -> None:
    """Refuse an invalid name.

    Raises:
        ConfigError: The name is not a str of printable characters, or is empty.
    """
    if not isinstance(name, str) or not name or not name.isprintable():
        raise ConfigError(f"the name is {name!r}; give printable characters, at least one")
