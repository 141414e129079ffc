"""`Chain`: the operators that one worker of a stage applies to each chunk."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, TypeVar

import pyarrow as pa

from batchqueue.pipeline.errors import GraphError, OperatorError
from batchqueue.pipeline.operators.aggregates import (
    AggregateOperator,
    MergeAggregateStep,
    PartialAggregateStep,
)
from batchqueue.pipeline.operators.base import ChainedOperator, Outputs
from batchqueue.pipeline.operators.envelope import packed, unpacked
from batchqueue.pipeline.operators.filters import FilterOperator
from batchqueue.pipeline.operators.maps import operator_of
from batchqueue.pipeline.steps import AggregateStep, FilterStep, MapStep, StatefulStep

ChainStep = (
    MapStep | FilterStep | StatefulStep | AggregateStep | PartialAggregateStep | MergeAggregateStep
)

_Result = TypeVar("_Result")


class Chain:
    """Neighbouring operators, applied one after the other without a queue in between.

    A chain belongs to one worker: its methods must not be called concurrently. It makes its own
    instances of stateful operators. Operators are never given an empty batch.

    What an operator raises is raised as `OperatorError`, with the operator's own error as its
    `__cause__`. After an error the chain is not usable any more, because an operator may have seen
    half of a chunk.

    Attributes:
        has_state: Whether a cut needs a snapshot.
        keeps_rows: Whether rows may wait for `flush`.

    Example:
        >>> import pyarrow as pa
        >>> import pyarrow.compute as pc
        >>> from batchqueue.pipeline.operators import Chain
        >>> from batchqueue.pipeline.steps import FilterStep, MapStep
        >>> chain = Chain([FilterStep(pc.field("n") > 1), MapStep(lambda chunk: chunk, None, None)])
        >>> [batch.to_pydict() for batch in chain.process(pa.record_batch({"n": [1, 2, 3]}))]
        [{'n': [2, 3]}]
    """

    def __init__(self, steps: Sequence[ChainStep]) -> None:
        """Make the operators.

        Raises:
            GraphError: A step does not belong into a chain, or made something that is not an
                operator.
            OperatorError: The function of a stateful step raised.
        """
        self._operators = [_operator(step) for step in steps]
        self._stateful = [operator for operator in self._operators if operator.has_state]
        self.has_state = bool(self._stateful)
        self.keeps_rows = any(operator.keeps_rows for operator in self._operators)

    def process(self, chunk: pa.RecordBatch) -> list[pa.RecordBatch]:
        """Return what follows from a chunk; no batch is empty.

        Raises:
            OperatorError: An operator raised, or returned something invalid.
        """
        return list(self.outputs(chunk))

    def flush(self) -> list[pa.RecordBatch]:
        """Return what should not wait any longer, before a cut and at the end.

        What an operator emits passes through those behind it, before these are flushed.

        Raises:
            OperatorError: As `process`.
        """
        return list(self.flushed())

    def outputs(self, chunk: pa.RecordBatch) -> Iterable[pa.RecordBatch]:
        """Return what `process` returns, one by one: a generator of an operator need not end first.

        Take all of it before the next call of the chain. If no operator has more than one output,
        it is a tuple of at most one batch.
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
        """Return what `flush` returns, one by one. Take all of it before the next call."""
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
        """Give all operators the state of a former snapshot, before the first chunk.

        Raises:
            CutError: It belongs to another chain, or is damaged; no operator has been restored.
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
        """Return what follows from the batches that the operator at a place returned."""
        return self._from(place + 1, _guarded(self._operators[place], lambda: batches, ""))

    def _from(self, place: int, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Return what the operators from a place on make of batches, depth first."""
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


def _guarded(
    operator: ChainedOperator, begin: Callable[[], Outputs], where: str
) -> Iterator[pa.RecordBatch]:
    """Return the batches of an operator; what it raises between them is wrapped."""
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
        case AggregateStep(aggregation=aggregation) | MergeAggregateStep(aggregation=aggregation):
            return AggregateOperator(name, aggregation, emits_partials=False)
        case PartialAggregateStep(aggregation=aggregation):
            return AggregateOperator(name, aggregation, emits_partials=True)
    raise GraphError(f"{name} cannot run inside a chain; it begins or ends a stage")
