"""The protocols that a pipeline is made of: sources, operators and sinks.

The unit of data is a *chunk*, a `pyarrow.RecordBatch` of at most `StageConfig.chunk_rows` rows.
Sources and operators may return record batches of any size; the pipeline cuts them and joins small
ones. On Spark, operators get Spark's own batches if the pipeline was made without `stage`.

A source is read in two steps. `plan` returns the next pieces of input, the *splits*, and the
position after them; `read` reads one split. Pausing means not planning, so a pause cannot skip
anything, and nothing is read ahead.
"""

import inspect
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from types import CoroutineType, GeneratorType
from typing import Any, NamedTuple, Protocol, runtime_checkable

import pyarrow as pa

from batchqueue.base.words import a_type
from batchqueue.exceptions import BatchQueueError

Position = dict[str, Any]
"""Where to continue in a source: JSON of less than 64 kB, whose fields the source defines."""

MAX_POSITION_BYTES = 64 * 1024


class Limit(NamedTuple):
    """The most that a plan may contain. A single split may exceed it, two together may not."""

    rows: int
    """Rows, at least 1."""
    bytes: int
    """Bytes in memory, at least 1."""


class Split(NamedTuple):
    """A piece of input that is read as a whole. It pickles, so that any process can read it."""

    partition: str
    """The part of the source that it belongs to; order is kept within each."""
    start: Position
    """The position where it begins."""
    end: Position
    """The position where the next split of the source begins."""
    rows: int | None
    """The number of rows; None if unknown until it is read."""
    bytes: int | None
    """Its size in memory, at least roughly; None if unknown until it is read."""
    what: Any
    """Whatever `Source.read` needs to find it, defined by the source."""


class Plan(NamedTuple):
    """The next splits of a source, and the position after them."""

    splits: tuple[Split, ...]
    """In reading order; empty if there is nothing to read now."""
    end: Position
    """Where the next plan begins."""


class Lag(NamedTuple):
    """How far a source is behind. Unknown values are None, never 0."""

    records: int | None
    seconds: float | None


@runtime_checkable
class Source(Protocol):
    """A description of input that can be read from any position.

    It must pickle: handles are opened in the process that reads, and `__getstate__` drops them. A
    run calls its methods from one thread at a time, and `lag` from another thread.

    `plan` and `between` are pure: the same arguments give the same splits, now and after a restart,
    regardless of what was planned before. `batchqueue.pipeline.testing.check_source` checks that.
    """

    @property
    def name(self) -> str:
        """Its name in statistics and errors."""
        ...

    @property
    def bounded(self) -> bool:
        """Whether it ends: an empty plan then means "the end", otherwise "nothing new yet"."""
        ...

    def schema(self) -> pa.Schema:
        """Return the schema of all batches."""
        ...

    def initial(self) -> Position:
        """Return the position where the first run begins, by default the start of all input."""
        ...

    def plan(self, start: Position, limit: Limit) -> Plan:
        """Return the next splits.

        Args:
            start: The position to begin at.
            limit: The most to plan: splits up to the first that would exceed it, but at least one
                if there is any input. A split of unknown size ends the plan.

        Raises:
            PositionError: `start` is not a position of this source.
            SourceChangedError: The input at `start` has changed or is gone.
        """
        ...

    def between(self, start: Position, end: Position) -> Sequence[Split]:
        """Return the splits from one position to a later one, as `plan` returned them.

        They do not depend on the limits of the plans, so that an epoch can be replayed.

        Raises:
            PositionError: `start` or `end` is not a position of this source.
            SourceChangedError: The input in between has changed or is gone.
        """
        ...

    def read(self, split: Split) -> Iterator[pa.RecordBatch]:
        """Read one split, and nothing ahead of it.

        Each call returns the same rows in the same order.

        Raises:
            SourceChangedError: The input has changed since it was planned.
        """
        ...

    def lag(self, at: Position) -> dict[str, Lag]:
        """Return how much input follows a position, by partition; empty if nothing is known.

        A run calls it on a separate thread at each backpressure check, while other methods run, and
        never waits for it: while it hangs, or if it raises, the lag is unknown.
        """
        ...

    def commit(self, end: Position) -> None:
        """Acknowledge that all input before a position has been stored and is not read again."""
        ...


class Operator(Protocol):
    """A step between source and sink. A function of a record batch works, too.

    One instance serves one worker: its methods are never called concurrently, and see each other's
    effects. All methods except `process` are optional. The others are:

    - `flush() -> Iterable[pa.RecordBatch]` emits what should not wait any longer, before a cut and
      at the end. Rows that have to wait become part of the snapshot.
    - `snapshot() -> bytes` returns the state at a cut, while no `process` runs. `restore(state:
      bytes)` restores it, before the first chunk. An operator has both or neither.
    - `on_pause(reason: str)` and `on_resume()` are called when the input pauses and resumes,
      between two calls of `process`, for example to stop timers. They keep the state.
    """

    def process(self, chunk: pa.RecordBatch) -> pa.RecordBatch | Iterable[pa.RecordBatch] | None:
        """Process a chunk, and return a batch, several, or None for nothing."""
        ...


@runtime_checkable
class Sink(Protocol):
    """The destination of chunks. Calls are never concurrent; a run makes them from one thread.

    Two more methods are optional. `open(pipeline: str)` prepares for a run of the pipeline with
    this name, before any other call, and discards what an earlier run did not commit. `close()`
    releases resources at the end of a run, even after an error.

    A sink whose attribute `needs_origins` is false gets chunks without the metadata that
    `chunk_origin` reads.
    """

    @property
    def batch_rows(self) -> int:
        """The preferred number of rows per write, if available; at least 1."""
        ...

    def write(self, chunks: list[pa.RecordBatch]) -> None:
        """Write chunks in order. Any exception ends the run.

        `chunk_origin` returns where a chunk came from. After a crash, chunks may be delivered
        again.
        """
        ...


@runtime_checkable
class TransactionalSink(Sink, Protocol):
    """A sink that stores its effects and the cut in one transaction: exactly once.

    Chunks written since the last `commit` become visible with the next `commit`, or not at all.
    """

    def commit(self, cut: int, positions: Mapping[str, Position]) -> None:
        """Store everything written since the last cut, together with the cut.

        Args:
            cut: Its number, one more than the last.
            positions: The position of each source after what was written, by name.
        """
        ...

    def last_cut(self) -> tuple[int, Mapping[str, Position]] | None:
        """Return the newest stored cut with its positions; None if there is none."""
        ...


def checked_position(position: Position, source: str) -> str:
    """Return a position as JSON with sorted keys; equal positions give equal texts.

    Args:
        position: A position of the source.
        source: The name of the source, for the error.

    Raises:
        PositionError: The position is not a dict of JSON, does not survive a round trip, or has 64
            kB or more.
    """
    remedy = "its source must return a dict of str, int, float, bool, None, lists and dicts"
    if not isinstance(position, dict):
        raise PositionError(f"source {source!r}: the position is {position!r}; {remedy}")
    try:
        text = json.dumps(position, sort_keys=True, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise PositionError(
            f"source {source!r}: the position {position!r} is not JSON ({error}); {remedy}"
        ) from error
    restored = json.loads(text)
    if restored != position:
        raise PositionError(
            f"source {source!r}: the position {position!r} comes back from a checkpoint as "
            f"{restored!r}; give lists instead of tuples, and dicts with keys of type str"
        )
    size = len(text.encode())
    if size >= MAX_POSITION_BYTES:
        raise PositionError(
            f"source {source!r}: a position has {size} bytes and the limit is "
            f"{MAX_POSITION_BYTES}; keep the list of pieces in the source, and in the position "
            "only the place in it"
        )
    return text


# Refuses sinks that return before they have written, such as coroutines and generators.


def is_deferred(function: Callable[..., Any]) -> bool:
    """Return whether calling a function only creates a coroutine or a generator."""
    return any(
        kind(function) or kind(type(function).__call__)
        for kind in (
            inspect.iscoroutinefunction,
            inspect.isgeneratorfunction,
            inspect.isasyncgenfunction,
        )
    )


def write_to(sink: Sink, chunks: list[pa.RecordBatch]) -> None:
    """Write chunks to a sink, and check that it did not defer the work.

    Raises:
        SinkError: The sink may not have written everything.
    """
    write: Callable[[list[pa.RecordBatch]], object] = sink.write
    check_written(write(chunks))


def check_written(result: object) -> None:
    """Refuse a result that indicates unfinished work.

    Args:
        result: What `write` of a sink, or the function of a sink, returned.

    Raises:
        SinkError: The result is an awaitable, a generator or another lazy iterator, or a future.
    """
    if result is None or not (
        inspect.isawaitable(result)
        or inspect.isasyncgen(result)
        or isinstance(result, (GeneratorType, map, filter, Future))
    ):
        return
    if isinstance(result, (CoroutineType, GeneratorType)):
        with suppress(Exception):
            result.close()  # without it, Python warns of a coroutine that was never awaited
    raise SinkError(
        f"the sink returned {a_type(result)}, and may not have written everything; have it wait "
        "for the end of what it begins, for instance by asyncio.run or Future.result"
    )


# Errors. Each message names the value, the limit and the remedy. Invalid settings raise
# `ConfigError` and a missing package `MissingPackageError`, as everywhere in batchqueue. These
# errors pickle, because they may come from another process.


class PipelineError(BatchQueueError, RuntimeError):
    """Base class of the errors of pipelines."""


class GraphError(PipelineError, ValueError):
    """The graph cannot run: a stage without a sink, two stages with one name, a join."""


class StateError(PipelineError):
    """A state machine was asked for a step that its table does not allow."""


class PositionError(PipelineError, ValueError):
    """A position is not JSON, is too large, or belongs to another source."""


class SourceChangedError(PipelineError):
    """What a position refers to has changed or is gone, so the source cannot continue from it."""


class SourceDataError(PipelineError):
    """Input cannot be read: it is corrupt, unreadable, or does not fit the schema of the source."""


class SourcePickleError(PipelineError, TypeError):
    """A source has to be sent to another process and does not pickle."""


class CutError(PipelineError):
    """The checkpoint and the sinks disagree about which cut was the last one."""


class CheckpointError(PipelineError):
    """A checkpoint is in use, belongs to another pipeline, or cannot be read or written."""


class SinkError(PipelineError):
    """The place of a sink is in use, belongs to another pipeline, or cannot be written."""


class StageFailedError(PipelineError):
    """An operator or a sink raised. The run has ended; the checkpoint holds the last cut.

    Its `__cause__` is the first error.

    Attributes:
        stage: The name of the stage.
        position: The origin of the chunk that failed, for the message; None if unknown.
    """

    def __init__(self, message: str, stage: str = "", position: str | None = None) -> None:
        super().__init__(message)
        self.stage = stage
        self.position = position

    def __reduce__(self) -> tuple[type["StageFailedError"], tuple[str, str, str | None]]:
        return type(self), (str(self), self.stage, self.position)


class NotOnSparkError(PipelineError):
    """A part of the graph does not run on Spark. The message names it and what to use instead."""


class OperatorError(PipelineError):
    """An operator raised, or returned something invalid. A run raises `StageFailedError` from it.

    Attributes:
        operator: The operator as the graph declares it, for instance `map(add_country)`.
    """

    def __init__(self, message: str, operator: str = "") -> None:
        super().__init__(message)
        self.operator = operator

    @property
    def cause(self) -> BaseException:
        """What the operator raised; this error if it returned something invalid."""
        return self.__cause__ or self

    def __reduce__(self) -> tuple[type["OperatorError"], tuple[str, str]]:
        return type(self), (str(self), self.operator)
