"""The workers of a stage: one applies operators, the other writes to a sink."""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from batchqueue.pipeline.chunks.cutter import ChunkCutter, SizedBatch
from batchqueue.pipeline.chunks.origin import Origin
from batchqueue.pipeline.contract import Sink, TransactionalSink
from batchqueue.pipeline.cuts.recovery import Positions, StoredCut
from batchqueue.pipeline.operators import Chain
from batchqueue.pipeline.runner.chunks import Chunk, Order
from batchqueue.pipeline.runner.ending import RunEnded
from batchqueue.pipeline.runner.stage import Stage
from batchqueue.pipeline.sinks.writing import write_to

if TYPE_CHECKING:
    import pyarrow as pa


class Worker:
    """A worker of a stage. Its thread calls all methods.

    Attributes:
        number: Its number in the stage, from 0.
    """

    def __init__(self, stage: Stage, number: int) -> None:
        self.number = number
        self._stage = stage

    def open(self) -> Any:
        """Make ready what it works with."""
        raise NotImplementedError

    def close(self) -> None:
        """Release what it works with."""

    def take(self, chunks: list[Chunk]) -> None:
        """Handle chunks, in order; what that raises ends the run."""
        raise NotImplementedError

    def flush(self, cut: int) -> None:
        """Emit what should not wait beyond a cut."""

    def snapshot(self) -> bytes | None:
        """Return the state; None if there is none."""
        return None

    def restore(self, state: bytes | None) -> None:
        """Take the state of a former snapshot."""

    def notify_of_pause(self, reason: str | None) -> None:
        """Take note that the input pauses; with None, that it continues."""

    def obey(self, order: Order) -> None:
        """Carry out an order; what it raises ends the run."""
        try:
            if not self._stage.ending.has_begun:
                order.result = order.what()
        except RunEnded:
            pass
        except BaseException as error:
            self._stage.ending.fail(self._stage.name, error)
        finally:
            self._stage.complete(order)


class OperatorWorker(Worker):
    """Applies operators, and hands on what they emit."""

    def __init__(self, stage: Stage, number: int, chunk_rows: int) -> None:
        super().__init__(stage, number)
        self._cutter = ChunkCutter(chunk_rows)
        self._chain: Chain | None = None
        self._known_pause: str | None = None

    def open(self) -> bool:
        """Make the operators; return whether they have state."""
        self._chain = Chain(self._stage.plan.steps)
        return self._chain.has_state

    @property
    def chain(self) -> Chain:
        """The operators, which `open` has made."""
        assert self._chain is not None
        return self._chain

    def take(self, chunks: list[Chunk]) -> None:
        """Apply the operators to each chunk."""
        stage, number, chain = self._stage, self.number, self.chain
        with stage.busy:
            for chunk in chunks:
                try:
                    if not stage.ending.has_begun:
                        self._emit(chain.outputs(chunk.batch), chunk.origin, chunk)
                except RunEnded:
                    pass
                except BaseException as error:
                    stage.chunks_failed.add(1)
                    stage.ending.fail(stage.name, error, chunk.origin)
                finally:
                    # One by one: what comes before must not wait for the next call of an operator.
                    stage.gate.leave(chunk.batch.num_rows, chunk.size, number)

    def flush(self, cut: int) -> None:
        """Emit what should not wait beyond a cut."""
        if self.chain.keeps_rows:
            place = f"{self._stage.name}/{self.number}"
            with self._stage.busy:
                self._emit(self.chain.flushed(), Origin(cut, place, None, 0))

    def snapshot(self) -> bytes | None:
        """Return the state of the operators; None if they have none."""
        return self.chain.snapshot() if self.chain.has_state else None

    def restore(self, state: bytes | None) -> None:
        """Take the state of a former snapshot."""
        if state is not None:
            self.chain.restore(state)

    def notify_of_pause(self, reason: str | None) -> None:
        """Notify the operators that their input pauses; with None, that it continues."""
        if reason is None and self._known_pause is not None:
            self.chain.resume()
        elif reason is not None and self._known_pause is None:
            self.chain.pause(reason)
        self._known_pause = reason

    def _emit(
        self, batches: "Iterable[pa.RecordBatch]", origin: Origin, chunk: Chunk | None = None
    ) -> None:
        """Hand on the batches that follow from a chunk, in chunks; all of this counts as work."""
        # Most operators return one batch, which nothing later can be joined with.
        is_alone = type(batches) is tuple
        cut = self._cutter.all_of if is_alone else self._cutter.add
        number = 0
        for batch in batches:
            # Operators often return what they were given, which has been measured.
            size = chunk.size if chunk is not None and batch is chunk.batch else None
            for piece in cut(batch, size):
                self._hand_on(piece, origin.child(number))
                number += 1
        if not is_alone:
            for piece in self._cutter.rest():
                self._hand_on(piece, origin.child(number))
                number += 1

    def _hand_on(self, piece: SizedBatch, origin: Origin) -> None:
        stage = self._stage
        for outlet in stage.outlets:
            outlet.put(piece, origin, stage.busy)
        stage.rows_out.add(piece.batch.num_rows)
        stage.bytes_out.add(piece.size)


class SinkWorker(Worker):
    """Writes to a sink, several chunks together if they are there.

    Attributes:
        sink: The sink.
        skips: Whether it drops what comes, because the sink has it already. Written by orders.
    """

    def __init__(self, stage: Stage, sink: Sink, pipeline: str) -> None:
        super().__init__(stage, 0)
        self.sink = sink
        self.skips = False
        self._pipeline = pipeline

    def open(self) -> StoredCut | None:
        """Prepare the sink; return its last cut, None if it has none or is not transactional."""
        begin = getattr(self.sink, "open", None)
        if begin is not None:
            begin(self._pipeline)
        if not isinstance(self.sink, TransactionalSink):
            return None
        last = self.sink.last_cut()
        return None if last is None else StoredCut(*last)

    def close(self) -> None:
        """Have the sink release what it holds."""
        end = getattr(self.sink, "close", None)
        if end is not None:
            try:
                end()
            except BaseException as error:
                self._stage.ending.fail(self._stage.name, error)

    def take(self, chunks: list[Chunk]) -> None:
        """Write the chunks, in groups of about the rows that the sink wants."""
        for group in _groups(chunks, self.sink.batch_rows):
            rows = size = 0
            for chunk in group:
                rows += chunk.batch.num_rows
                size += chunk.size
            try:
                if not (self._stage.ending.has_begun or self.skips):
                    self._write(group)
                    self._stage.rows_out.add(rows)
                    self._stage.bytes_out.add(size)
            except BaseException as error:
                self._stage.chunks_failed.add(len(group))
                self._stage.ending.fail(self._stage.name, error, group[0].origin)
            finally:
                self._stage.gate.leave(rows, size, self.number, len(group))

    def commit(self, cut: int, positions: Positions) -> None:
        """Have the sink store what it was given, with the cut."""
        assert isinstance(self.sink, TransactionalSink)
        with self._stage.busy:
            self.sink.commit(cut, positions)

    def _write(self, group: list[Chunk]) -> None:
        with self._stage.busy:
            write_to(self.sink, [chunk.batch for chunk in group])


def _groups(chunks: list[Chunk], batch_rows: int) -> Iterator[list[Chunk]]:
    """Divide chunks into groups of at most `batch_rows` rows, or of a single chunk."""
    group: list[Chunk] = []
    rows = 0
    for chunk in chunks:
        if group and rows + chunk.batch.num_rows > batch_rows:
            yield group
            group, rows = [], 0
        group.append(chunk)
        rows += chunk.batch.num_rows
    if group:
        yield group
