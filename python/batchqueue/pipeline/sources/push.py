"""`PushSource`: rows that the program pushes."""

import threading
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple

import pyarrow as pa

from batchqueue.base.words import a_type, counted
from batchqueue.exceptions import ConfigError
from batchqueue.pipeline.contract import Lag, Limit, PipelineError, Plan, Position, Split
from batchqueue.pipeline.sources.splits import within

_FIELD = "batches"


class _Pushed(NamedTuple):
    batch: pa.RecordBatch
    done: Future[None]


class PushSource:
    """A source of the batches passed to `PipelineRun.push`; the position is their count.

    `push` returns once a cut includes the batch. A batch that it did not confirm, because the
    process or the run ended, is not kept: push it again. It may have been stored, so delivery is at
    least once.

    Example:
        >>> import pyarrow as pa
        >>> from batchqueue.pipeline import FunctionSink, Pipeline, PushSource
        >>> rows = []
        >>> flow = Pipeline("orders")
        >>> flow.source(PushSource()).to(FunctionSink(rows.extend))
        >>> with flow.start() as run:
        ...     run.push(pa.record_batch({"cents": [3, 4]}))
        ...     print(rows[0]["cents"].to_pylist())
        [3, 4]
    """

    bounded = False

    def __init__(self, *, name: str = "push", schema: pa.Schema | None = None) -> None:
        """Make a source without rows.

        Args:
            name: Its name in checkpoints and statistics. Default: "push".
            schema: The columns that each batch must have. Default: None, any.

        Raises:
            ConfigError: The name is invalid.
        """
        if not isinstance(name, str) or not name or not name.isprintable():
            raise ConfigError(f"name is {name!r}; give printable characters, at least one")
        self.name = name
        self._schema = schema
        self._reset()

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._waiting: deque[_Pushed] = deque()
        self._numbered: dict[int, _Pushed] = {}
        self._is_closed = False

    def __getstate__(self) -> dict[str, Any]:
        return {"name": self.name, "_schema": self._schema}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._reset()

    def push(self, data: pa.RecordBatch | pa.Table) -> Future[None]:
        """Enqueue rows; the future completes once a cut includes them, or the run ends without one.

        Args:
            data: A record batch, or a table.

        Raises:
            ConfigError: `data` is neither, or has other columns than the schema.
        """
        if isinstance(data, pa.Table):
            batches = data.combine_chunks().to_batches()
            data = batches[0] if batches else pa.RecordBatch.from_pylist([], schema=data.schema)
        if not isinstance(data, pa.RecordBatch):
            raise ConfigError(f"push got {a_type(data)}; give a record batch or a table")
        if self._schema is not None and not data.schema.equals(self._schema):
            raise ConfigError(
                f"push got columns {data.schema.names}, and source {self.name!r} has "
                f"{self._schema.names}; give these, with their types"
            )
        pushed = _Pushed(data, Future())
        # It cannot be cancelled: the batch may be part of a cut even if nothing waits for it.
        pushed.done.set_running_or_notify_cancel()
        if data.num_rows == 0:
            pushed.done.set_result(None)
            return pushed.done
        with self._lock:
            if not self._is_closed:
                self._waiting.append(pushed)
                return pushed.done
        _refuse(pushed, None)
        return pushed.done

    def open(self) -> None:
        """Accept batches: a run begins."""
        with self._lock:
            self._is_closed = False

    def drop(self, error: BaseException | None = None) -> None:
        """Accept nothing more, and refuse batches that no cut includes: the run has ended."""
        with self._lock:
            self._is_closed = True
            dropped = [*self._numbered.values(), *self._waiting]
            self._numbered.clear()
            self._waiting.clear()
        for pushed in dropped:
            _refuse(pushed, error)

    def schema(self) -> pa.Schema:
        """Return the given schema; an empty one if there is none."""
        return pa.schema([]) if self._schema is None else self._schema

    def initial(self) -> Position:
        """Return the position of the first batch."""
        return {_FIELD: 0}

    def plan(self, start: Position, limit: Limit) -> Plan:
        """Return the next batches as splits, up to the limit."""
        with self._lock:
            return within(self._from(start[_FIELD]), start, limit)

    def between(self, start: Position, end: Position) -> Sequence[Split]:
        """Return the batches still held; the others were not confirmed, and are pushed again."""
        with self._lock:
            return [
                _split(at, self._numbered[at].batch)
                for at in range(start[_FIELD], end[_FIELD])
                if at in self._numbered
            ]

    def read(self, split: Split) -> Iterator[pa.RecordBatch]:
        """Return a batch."""
        with self._lock:
            batch = self._numbered[split.what].batch
        yield batch

    def lag(self, at: Position) -> dict[str, Lag]:
        """Return the rows that were pushed after the position."""
        first = at[_FIELD]
        with self._lock:
            planned = [each for number, each in self._numbered.items() if number >= first]
            rows = sum(pushed.batch.num_rows for pushed in (*planned, *self._waiting))
        return {"0": Lag(rows, None)}

    def commit(self, end: Position) -> None:
        """Confirm the batches that a cut includes."""
        with self._lock:
            done = [number for number in self._numbered if number < end[_FIELD]]
            confirmed = [self._numbered.pop(number) for number in done]
        for pushed in confirmed:
            pushed.done.set_result(None)

    def _from(self, number: int) -> Iterator[Split]:
        while (pushed := self._at(number)) is not None:
            yield _split(number, pushed.batch)
            number += 1

    def _at(self, number: int) -> _Pushed | None:
        """Return a batch by number; a waiting batch gets the number if none has it."""
        if number not in self._numbered and self._waiting:
            self._numbered[number] = self._waiting.popleft()
        return self._numbered.get(number)


def _refuse(pushed: _Pushed, cause: BaseException | None) -> None:
    error = PipelineError(
        f"the run has ended before a cut had the batch of {counted(pushed.batch.num_rows, 'row')}; "
        "push it again to the next run"
    )
    error.__cause__ = cause
    pushed.done.set_exception(error)


def _split(number: int, batch: pa.RecordBatch) -> Split:
    start, end = {_FIELD: number}, {_FIELD: number + 1}
    return Split("0", start, end, batch.num_rows, batch.nbytes, number)
