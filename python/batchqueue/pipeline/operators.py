"""The operators of a worker: what the steps of a graph do to chunks."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, pairwise
from typing import Any, TypeAlias, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from batchqueue.aggregation.aggregator import Aggregation, Aggregator
from batchqueue.base.words import a_type
from batchqueue.pipeline.chunks import filtered
from batchqueue.pipeline.contract import CutError, GraphError, OperatorError
from batchqueue.pipeline.graph import AggregateStep, FilterStep, MapStep, StatefulStep

__all__ = ["Chain", "ChainStep", "PartialAggregateStep"]


_Result = TypeVar("_Result")


class Chain:
    """Adjacent operators, applied one after the other without a queue in between.

    A chain belongs to one worker: its methods must not be called concurrently. It makes its own
    instances of stateful operators. Operators never get an empty batch.

    An exception of an operator is raised as `OperatorError`, with the original as its `__cause__`.
    After an error the chain is unusable, because an operator may have seen half of a chunk.

    Attributes:
        has_state: Whether a cut needs a snapshot.
        keeps_rows: Whether it may hold rows until `flush`.

    Example:
        >>> import pyarrow as pa
        >>> import pyarrow.compute as pc
        >>> from batchqueue.pipeline.operators import Chain
        >>> from batchqueue.pipeline.graph import FilterStep, MapStep
        >>> chain = Chain([FilterStep(pc.field("n") > 1), MapStep(lambda chunk: chunk, None, None)])
        >>> [batch.to_pydict() for batch in chain.process(pa.record_batch({"n": [1, 2, 3]}))]
        [{'n': [2, 3]}]
    """

    def __init__(self, steps: "Sequence[ChainStep]") -> None:
        """Create the operators.

        Raises:
            GraphError: A step does not belong in a chain, or made something that is not an
                operator.
            OperatorError: The function of a stateful step raised.
        """
        self._operators = [_operator(step) for step in steps]
        self._stateful = [operator for operator in self._operators if operator.has_state]
        self.has_state = bool(self._stateful)
        self.keeps_rows = any(operator.keeps_rows for operator in self._operators)

    def process(self, chunk: pa.RecordBatch) -> list[pa.RecordBatch]:
        """Return the output for a chunk, without empty batches.

        Raises:
            OperatorError: An operator raised, or returned something invalid.
        """
        return list(self.outputs(chunk))

    def flush(self) -> list[pa.RecordBatch]:
        """Return what should not wait any longer, before a cut and at the end.

        The output of an operator passes through the operators after it before they are flushed.

        Raises:
            OperatorError: See `process`.
        """
        return list(self.flushed())

    def outputs(self, chunk: pa.RecordBatch) -> Iterable[pa.RecordBatch]:
        """Return the output of `process` lazily, as operators yield it.

        Consume the output before the next call to the chain. If no operator has more than one
        output, it is a tuple of at most one batch.
        """
        for place, operator in enumerate(self._operators):
            if not chunk.num_rows:
                return ()
            try:
                result = operator.process(chunk)
            except OperatorError:
                raise
            except Exception as error:
                raise _failed(operator, error, "") from error
            if result is None:
                return ()
            if not isinstance(result, pa.RecordBatch):
                return self._from_each(place, result)
            chunk = result
        return (chunk,) if chunk.num_rows else ()

    def flushed(self) -> Iterator[pa.RecordBatch]:
        """Return the output of `flush` lazily. Consume it before the next call."""
        for place, operator in enumerate(self._operators):
            for batch in _guarded(operator, operator.flush, " in flush"):
                yield from self._from(place + 1, iter((batch,)))

    def snapshot(self) -> bytes:
        """Return the state of all operators, after `flush`.

        Raises:
            CutError: `flush` was not called.
            OperatorError: An operator raised, or returned something that is not bytes.
        """
        for operator in self._operators:
            operator.check_flushed()
        states = [_called(operator, operator.snapshot, "snapshot") for operator in self._stateful]
        return packed([operator.name for operator in self._stateful], states)

    def restore(self, state: bytes) -> None:
        """Restore all operators from an earlier snapshot, before the first chunk.

        Raises:
            CutError: The snapshot belongs to another chain, or is damaged; no operator has been
                restored.
            OperatorError: An operator raised.
        """
        states = unpacked([operator.name for operator in self._stateful], state)
        for operator, own in zip(self._stateful, states, strict=True):
            _called(operator, partial(operator.restore, own), "restore")

    def pause(self, reason: str) -> None:
        """Notify the operators that their input pauses.

        Raises:
            OperatorError: An operator raised.
        """
        for operator in self._operators:
            _called(operator, partial(operator.pause, reason), "on_pause")

    def resume(self) -> None:
        """Notify the operators that their input continues.

        Raises:
            OperatorError: An operator raised.
        """
        for operator in self._operators:
            _called(operator, operator.resume, "on_resume")

    def _from_each(self, place: int, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Return the output of the chain for batches that the operator at an index returned."""
        return self._from(place + 1, _guarded(self._operators[place], lambda: batches, ""))

    def _from(self, place: int, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Return the output of the operators from an index on for some batches, depth first."""
        # Not recursive: a chain may have more operators than Python allows nested calls.
        levels = [batches]
        while levels:
            batch = next(levels[-1], None)
            if batch is None:
                levels.pop()
            elif batch.num_rows:
                next_place = place + len(levels) - 1
                if next_place == len(self._operators):
                    yield batch
                else:
                    operator = self._operators[next_place]
                    levels.append(_guarded(operator, partial(operator.process, batch), ""))


ChainStep: TypeAlias = "MapStep | FilterStep | StatefulStep | AggregateStep | PartialAggregateStep"


Outputs: TypeAlias = pa.RecordBatch | Iterator[pa.RecordBatch] | None
"""The output for a chunk: a batch, as from most operators, several lazily, or nothing."""


class ChainedOperator:
    """An operator inside a chain, which wraps its exceptions.

    Attributes:
        name: The step as the graph declares it; part of the snapshot.
        has_state: Whether it supports `snapshot` and `restore`.
        keeps_rows: Whether it may hold rows until `flush`.
    """

    has_state = False
    keeps_rows = False

    def __init__(self, name: str) -> None:
        self.name = name

    def process(self, chunk: pa.RecordBatch) -> Outputs:
        """Return the output for a chunk."""
        raise NotImplementedError

    def flush(self) -> Iterator[pa.RecordBatch]:
        """Return what should not wait any longer, lazily."""
        return iter(())

    def check_flushed(self) -> None:
        """Raise CutError if there are rows that only `flush` would emit."""

    def snapshot(self) -> bytes:
        """Return the state."""
        raise NotImplementedError

    def restore(self, state: bytes) -> None:
        """Restore the state of an earlier snapshot."""
        raise NotImplementedError

    def pause(self, reason: str) -> None:
        """Handle a pause of the input."""

    def resume(self) -> None:
        """Handle the end of a pause."""


def _guarded(
    operator: ChainedOperator, begin: Callable[[], Outputs], where: str
) -> Iterator[pa.RecordBatch]:
    """Return the batches of an operator, wrapping exceptions raised between them."""
    batches: Iterator[pa.RecordBatch] | None = None
    while True:
        try:
            if batches is None:
                batches = _each(begin())
            batch = next(batches, None)
        except OperatorError:
            raise
        except Exception as error:
            raise _failed(operator, error, where) from error
        if batch is None:
            return
        yield batch


def _each(outputs: Outputs) -> Iterator[pa.RecordBatch]:
    if outputs is None:
        return iter(())
    return iter((outputs,)) if isinstance(outputs, pa.RecordBatch) else outputs


def _called(operator: ChainedOperator, method: Callable[[], _Result], name: str) -> _Result:
    try:
        return method()
    except OperatorError:
        raise
    except Exception as error:
        raise _failed(operator, error, f" in {name}") from error


def _failed(operator: ChainedOperator, error: Exception, where: str) -> OperatorError:
    message = f"{operator.name} raised {type(error).__name__}{where}: {error}"
    return OperatorError(message, operator.name)


def _operator(step: Any) -> ChainedOperator:
    name = str(step)
    match step:
        case MapStep(operation=operation, schema=schema):
            return operator_of(name, operation, schema)
        case FilterStep(keep=keep):
            return FilterOperator(name, keep)
        case StatefulStep(make=make):
            try:
                made = make()
            except Exception as error:
                raise OperatorError(
                    f"{name} could not be made: {type(error).__name__}: {error}", name
                ) from error
            return operator_of(name, made)
        case AggregateStep(aggregation=aggregation):
            return AggregateOperator(name, aggregation, emits_partials=False)
        case PartialAggregateStep(aggregation=aggregation):
            return AggregateOperator(name, aggregation, emits_partials=True)
    raise GraphError(f"{name} cannot run inside a chain; it begins or ends a stage")


# The snapshot of a chain: the states of its operators, with their names, in one bytes object.


_VERSION = 1
_FORMAT = "batchqueue.chain"


def packed(names: Sequence[str], states: Sequence[bytes]) -> bytes:
    """Return the states of operators as bytes: a line of JSON followed by the states."""
    operators = [[name, len(state)] for name, state in zip(names, states, strict=True)]
    header = {"format": _FORMAT, "version": _VERSION, "operators": operators}
    return b"".join([json.dumps(header).encode(), b"\n", *states])


def unpacked(names: Sequence[str], data: bytes) -> list[bytes]:
    """Return the states that were packed.

    Args:
        names: The names of the operators to restore.
        data: What `packed` returned.

    Raises:
        CutError: `data` was not made by `packed`, is damaged, has another version, or belongs to
            other operators.
    """
    line, _, rest = data.partition(b"\n")
    try:
        header = json.loads(line)
        if header["format"] != _FORMAT:
            raise ValueError(header["format"])
        version = header["version"]
        found, sizes = _operators(header) if version == _VERSION else ([], [])
    except (ValueError, TypeError, KeyError) as error:
        raise _damaged(data) from error
    if version != _VERSION:
        raise CutError(
            f"the snapshot has version {version}, and this batchqueue reads version {_VERSION}; "
            "install the batchqueue that wrote it, or start with another checkpoint directory"
        )
    if found != list(names):
        raise CutError(
            f"the snapshot belongs to the operators {_listed(found)}, and the operators with state "
            f"are now {_listed(names)}; restore the graph, or start with another checkpoint "
            "directory"
        )
    ends = list(accumulate(sizes, initial=0))
    if ends[-1] != len(rest):
        raise _damaged(data)
    return [rest[start:end] for start, end in pairwise(ends)]


def _operators(header: dict[str, Any]) -> tuple[list[str], list[int]]:
    names, sizes = [], []
    for name, size in header["operators"]:
        if not isinstance(name, str) or not isinstance(size, int) or size < 0:
            raise ValueError(name, size)
        names.append(name)
        sizes.append(size)
    return names, sizes


def _damaged(data: bytes) -> CutError:
    return CutError(
        f"{len(data)} bytes that begin with {data[:40]!r} are not the snapshot of a chain, or a "
        "part of it is missing; start with another checkpoint directory"
    )


def _listed(names: Sequence[str]) -> str:
    return f"[{', '.join(names)}]"


# `aggregate` in a chain: in one worker, or in several whose partials another merges.


_NEVER_MS = 1e12
"""The flush period: effectively never, since the chain decides when to flush."""


@dataclass(frozen=True, eq=False)
class PartialAggregateStep:
    """The first half of a spread aggregation: `spread` workers merge parts of the rows.

    The second half is an `AggregateStep` over the partials, without a spread.
    """

    aggregation: Aggregation
    spread: int

    def __str__(self) -> str:
        return f"aggregate({', '.join(self.aggregation.measures)}) in {self.spread} parts"


class AggregateOperator(ChainedOperator):
    """Merges rows, and partials, until `flush`; groups are emitted earlier if there are too many.

    It has no state at a cut, because it is flushed first.
    """

    keeps_rows = True

    def __init__(self, name: str, aggregation: Aggregation, *, emits_partials: bool) -> None:
        super().__init__(name)
        self._aggregation = aggregation
        self._emits_partials = emits_partials
        self._early: list[pa.RecordBatch] = []
        self._aggregator = self._new()

    def process(self, chunk: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Merge the rows; return groups only if there would be too many."""
        self._aggregator.update(chunk)
        early = self._early.copy()
        self._early.clear()
        for partials in early:
            yield partials if self._emits_partials else self._merged(partials)

    def flush(self) -> Iterator[pa.RecordBatch]:
        """Return all groups, and start over."""
        if len(self._aggregator):
            if self._emits_partials:
                groups = self._aggregator.partials()
            else:
                groups = self._aggregator.result()
                self._aggregator = self._new()
            yield groups

    def check_flushed(self) -> None:
        """Raise CutError if there are groups."""
        if groups := len(self._aggregator):
            raise CutError(
                f"{self.name} still has {groups} groups, which a snapshot would lose; flush the "
                "chain before"
            )

    def _new(self) -> Aggregator:
        return Aggregator(self._aggregation, self._early.append, flush_period_ms=_NEVER_MS)

    def _merged(self, partials: pa.RecordBatch) -> pa.RecordBatch:
        aggregator = Aggregator(self._aggregation)
        aggregator.update(partials)
        return aggregator.result()


class FilterOperator(ChainedOperator):
    """Keeps the rows for which an expression or a function is true; null drops the row."""

    def __init__(self, name: str, keep: pc.Expression | Callable[[pa.RecordBatch], Any]) -> None:
        super().__init__(name)
        self._keep = keep

    def process(self, chunk: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows to keep."""
        if isinstance(self._keep, pc.Expression):
            given: Any = _evaluated(self._keep, chunk)
        else:
            given = self._keep(chunk)
        return filtered(chunk, self._mask(given, chunk.num_rows))

    def _mask(self, given: Any, rows: int) -> pa.BooleanArray:
        wanted = f"return a boolean array with a value for each of the {rows} rows"
        mask = row_values(self.name, given, rows, wanted)
        if not pa.types.is_boolean(mask.type):
            message = f"{self.name} returned values of type {mask.type}; {wanted}"
            raise OperatorError(message, self.name)
        return mask


def _evaluated(expression: pc.Expression, chunk: pa.RecordBatch) -> pa.ChunkedArray:
    """Return the value of an expression for each row.

    `RecordBatch.filter` would run in pyarrow's threads, and does not support all column types.
    """
    # Imported here, because it imports pandas if installed, which takes seconds.
    from pyarrow import acero

    table = pa.Table.from_batches([chunk])
    plan = acero.Declaration.from_sequence(
        [
            acero.Declaration("table_source", acero.TableSourceNodeOptions(table)),
            acero.Declaration("project", acero.ProjectNodeOptions([expression], ["keep"])),
        ]
    )
    return plan.to_table(use_threads=False).column(0)


# Functions and operator objects of the user in a chain: `map` and `stateful`.


class FunctionOperator(ChainedOperator):
    """A function of a record batch."""

    def __init__(
        self, name: str, function: Callable[[pa.RecordBatch], Any], schema: pa.Schema | None
    ) -> None:
        super().__init__(name)
        self._function = function
        self._schema = schema

    def process(self, chunk: pa.RecordBatch) -> Outputs:
        """Call the function."""
        result = self._function(chunk)
        if not isinstance(result, pa.RecordBatch):
            return None if result is None else self._checked(result)
        if self._schema is not None:
            check_schema(self.name, result, self._schema)
        return result

    def _checked(self, result: Any) -> Iterator[pa.RecordBatch]:
        for batch in batches_of(self.name, result):
            if self._schema is not None:
                check_schema(self.name, batch, self._schema)
            yield batch


class ObjectOperator(FunctionOperator):
    """An object with `process` and any optional methods of `contract.Operator`."""

    def __init__(self, name: str, operation: Any, schema: pa.Schema | None = None) -> None:
        super().__init__(name, operation.process, schema)
        self._flush = getattr(operation, "flush", None)
        self._snapshot = getattr(operation, "snapshot", None)
        self._restore = getattr(operation, "restore", None)
        self._on_pause = getattr(operation, "on_pause", None)
        self._on_resume = getattr(operation, "on_resume", None)
        if (self._snapshot is None) != (self._restore is None):
            names = ("snapshot", "restore")
            has, lacks = names if self._restore is None else reversed(names)
            raise GraphError(
                f"{name}: {type(operation).__name__} has `{has}` but not `{lacks}`; define both, "
                "or neither"
            )
        self.has_state = self._snapshot is not None
        self.keeps_rows = self._flush is not None

    def flush(self) -> Iterator[pa.RecordBatch]:
        """Call `flush` of the object."""
        return iter(()) if self._flush is None else self._checked(self._flush())

    def snapshot(self) -> bytes:
        """Return the state of the object."""
        assert self._snapshot is not None
        state = self._snapshot()
        if not isinstance(state, bytes):
            raise OperatorError(
                f"the snapshot of {self.name} is {a_type(state)}; return bytes", self.name
            )
        return state

    def restore(self, state: bytes) -> None:
        """Restore the state of the object."""
        assert self._restore is not None
        self._restore(state)

    def pause(self, reason: str) -> None:
        """Call `on_pause`."""
        if self._on_pause is not None:
            self._on_pause(reason)

    def resume(self) -> None:
        """Call `on_resume`."""
        if self._on_resume is not None:
            self._on_resume()


def operator_of(name: str, operation: Any, schema: pa.Schema | None = None) -> ChainedOperator:
    """Return the chained operator of a function, or of an object with `process`."""
    if callable(getattr(operation, "process", None)) and not isinstance(operation, type):
        return ObjectOperator(name, operation, schema)
    if callable(operation) and not isinstance(operation, type):
        return FunctionOperator(name, operation, schema)
    raise GraphError(
        f"{name} made {operation!r}; it must make an object with `process`, or a function of a "
        "record batch"
    )


# What an operator may return, and the errors for everything else.


_REMEDY = "return a RecordBatch, a Table, an iterable of these, or None for nothing"


def batches_of(operator: str, result: Any) -> Iterator[pa.RecordBatch]:
    """Return the record batches of what `process` or `flush` returned, lazily.

    Raises:
        OperatorError: The result is neither a batch, a table, an iterable of these, nor None.
    """
    if result is None:
        return
    if isinstance(result, pa.RecordBatch | pa.Table):
        yield from _batches(result)
        return
    if isinstance(result, str | bytes | Mapping) or not isinstance(result, Iterable):
        raise OperatorError(f"{operator} returned {a_type(result)}; {_REMEDY}", operator)
    for item in result:
        if not isinstance(item, pa.RecordBatch | pa.Table):
            raise OperatorError(
                f"{operator} returned {a_type(result)} with {a_type(item)} in it; {_REMEDY}",
                operator,
            )
        yield from _batches(item)


def check_schema(operator: str, batch: pa.RecordBatch, wanted: pa.Schema) -> None:
    """Refuse a batch whose columns differ from the declared ones; metadata may differ.

    Raises:
        OperatorError: The columns differ; the message says how.
    """
    if batch.schema.equals(wanted):
        return
    raise OperatorError(
        f"{operator} returned another schema than it declares: "
        f"{_difference(batch.schema, wanted)}; change the function or schema=",
        operator,
    )


def row_values(operator: str, given: Any, rows: int, wanted: str) -> pa.Array:
    """Return what a function returned for the rows of a chunk, as one array.

    Args:
        operator: The operator whose function it is.
        given: A pyarrow array, chunked or not, or what `pa.array` takes: numpy, pandas, a list.
        rows: The rows of the chunk.
        wanted: The remedy for the errors.

    Raises:
        OperatorError: The result is not an array, or not of that length.
    """
    if isinstance(given, pa.ChunkedArray):
        values = given.combine_chunks()
    elif isinstance(given, pa.Array):
        values = given
    else:
        try:
            values = pa.array(given)
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            message = f"{operator} returned {a_type(given)}; {wanted}"
            raise OperatorError(message, operator) from error
    if len(values) != rows:
        raise OperatorError(f"{operator} returned {len(values)} values; {wanted}", operator)
    return values


def _difference(found: pa.Schema, wanted: pa.Schema) -> str:
    missing = [name for name in wanted.names if name not in found.names]
    added = [name for name in found.names if name not in wanted.names]
    parts = []
    if missing:
        parts.append(f"{_named(missing)} missing")
    if added:
        parts.append(f"{_named(added)} not declared")
    if not parts and found.names != wanted.names:
        parts.append(f"the columns are {found.names}, declared are {wanted.names}")
    if not parts:
        parts += [
            f"{have.name!r} is {_described(have)}, declared is {_described(want)}"
            for have, want in zip(found, wanted, strict=True)
            if not have.equals(want)
        ]
    return ", ".join(parts)


def _described(field: pa.Field) -> str:
    return f"{field.type}{'' if field.nullable else ' not null'}"


def _named(columns: list[str]) -> str:
    return f"{', '.join(map(repr, columns))} {'is' if len(columns) == 1 else 'are'}"


def _batches(data: pa.RecordBatch | pa.Table) -> list[pa.RecordBatch]:
    return [data] if isinstance(data, pa.RecordBatch) else data.to_batches()
