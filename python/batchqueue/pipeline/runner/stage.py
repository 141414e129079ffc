"""`RunnerStage`: the queue of a stage, with its gate, its workers and its counters."""

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Self, cast

import pyarrow as pa

from batchqueue._core import (
    Counter,
    PartitionPolicy,
    StageGate,
    ThreadPolicy,
    TimeMeter,
    partition_of_key,
)
from batchqueue.base.signals import wait_for
from batchqueue.pipeline.chunks import ChunkCutter, Origin, RowsMeter, SizedBatch, with_origin
from batchqueue.pipeline.compiling import StagePlan, StageRoute
from batchqueue.pipeline.contract import (
    Limit,
    OperatorError,
    Sink,
    StageFailedError,
    TransactionalSink,
    write_to,
)
from batchqueue.pipeline.graph import StatefulStep
from batchqueue.pipeline.operators import Chain
from batchqueue.pipeline.runner.checkpoint import Positions, StoredCut
from batchqueue.pipeline.runner.keying import Partitioner
from batchqueue.queues.config import BatchQueueConfig, PartitionSelector
from batchqueue.queues.queue import BatchQueue

CHUNKS_PER_WORKER = 4
"""Full chunks that a worker holds, including the one that it processes."""

_SLACK = 64
"""Room in each partition for orders, which need no room in the gate."""

_NEVER_MS = 1e15

_MOST_BYTES = 2**63 - 1
"""Effectively unlimited: the most that the gate can count to."""


class RunnerStage:
    """A running stage: each worker is a drain thread of the queue, with its partition.

    Attributes:
        plan: Its plan.
        name: Its name.
        gate: Bounds and counts what it holds.
        outlets: The stages that it feeds.
        workers: Its workers, by number.
        busy: The time that its workers spend in operators, or in the sink.
        waited_for: The time that the stage or source before it waits for room here.
        rows_in: The rows that it accepted; likewise `bytes_in`.
        rows_out: The rows that it emitted, or that its sink took; likewise `bytes_out`.
        chunks_failed: The chunks whose operator or sink raised.
    """

    def __init__(
        self, plan: StagePlan, outlets: Sequence["RunnerStage"], max_bytes: int, ending: "Ending"
    ) -> None:
        """Make a stage without workers; `start` starts it.

        Args:
            plan: Its plan.
            outlets: The stages that it feeds, which must already be running.
            max_bytes: The most bytes that it holds.
            ending: The early end of the run.
        """
        rows = plan.config.chunk_rows * CHUNKS_PER_WORKER
        if plan.sink is not None:
            rows = max(rows, 2 * plan.sink.sink.batch_rows)
        self.plan = plan
        self.name = plan.name
        self.outlets = tuple(outlets)
        self.gate = Gate(plan.workers, min(max_bytes, _MOST_BYTES), rows)
        self.ending = ending
        self.workers: list[StageWorker] = []
        self.busy = TimeMeter(plan.workers)
        self.waited_for = TimeMeter()
        self.rows_in, self.bytes_in = Counter(), Counter()
        self.rows_out, self.bytes_out = Counter(), Counter()
        self.chunks_failed = Counter()
        self._queue: BatchQueue[StageChunk | StageOrder] | None = None
        self._partitioner: Partitioner | None = None
        if plan.key is not None:
            key = plan.key
            self._size_of = RowsMeter()
            self._partitioner = Partitioner(key.columns, plan.partitions, key.partition)
        # Otherwise any worker will do, and most stages have one.
        self._routes = plan.key is not None or plan.route is StageRoute.SOURCE_PARTITION
        self._hashes = any(isinstance(step, StatefulStep) for step in plan.steps)
        self._attaches_origins = plan.sink is not None and getattr(
            plan.sink.sink, "needs_origins", True
        )
        self._pipeline = ""
        self._worker_of: dict[str, int] = {}
        self._orders: set[StageOrder] = set()
        self._pause: str | None = None
        self._to_notify: set[int] = set()
        self._lock = threading.Lock()

    def start(self, pipeline: str, workers: "list[StageWorker]") -> None:
        """Start a thread for each worker."""
        self.workers = workers
        self._pipeline = pipeline
        # The queue's log lines name the class.
        dispatcher = type(self.name, (_Dispatcher,), {})
        # No take-overs: each partition keeps its thread, because of the order, and because an
        # operator may hold objects that only the thread that made them can use.
        self._queue = BatchQueue(
            f"{pipeline}: {self.name}",
            BatchQueueConfig(
                threads=ThreadPolicy.fixed(len(workers)),
                partitions=PartitionPolicy.fixed(len(workers)),
                # With one partition there is nothing to select.
                selector=None if len(workers) == 1 else PartitionSelector.custom(_worker_of_item),
                consumer_factory=lambda: dispatcher(workers),
                buffer_size=self.gate.worker_rows + _SLACK,
                min_idle_ms=0,
                takeover_after_ms=_NEVER_MS,
                shutdown_timeout=0,
            ),
        )
        self.ending.notify(self._end)

    def put(self, chunk: SizedBatch, origin: Origin, busy: TimeMeter | None) -> None:
        """Hand a chunk to its worker, or to several by key; wait until there is room.

        Args:
            chunk: The chunk.
            origin: Where it came from.
            busy: The meter that counts the calling thread now, and must not count its wait.

        Raises:
            RunEnded: The run ends early.
        """
        if not self._routes:
            self._accept(None, chunk, origin, busy)
            return
        for worker, part, place in self._routed(chunk, origin):
            self._accept(worker, part, place, busy)

    def put_ready(self, chunks: Sequence[tuple[SizedBatch, Origin]]) -> int:
        """Wait until there is room for the first chunk; put it, and any following chunks that fit.

        Putting several together wakes the worker only once.

        Args:
            chunks: At least one, each with its origin.

        Returns:
            How many were put.

        Raises:
            RunEnded: The run ends early.
        """
        if self._routes:
            self.put(*chunks[0], None)
            return 1
        items: list[StageChunk] = []
        rows_in = bytes_in = 0
        for (batch, size), origin in chunks:
            rows = batch.num_rows
            taken = self.gate.try_enter(rows, size)
            if taken is None:
                if items:
                    break
                taken = self._wait_for_room(rows, size, None, None)
            items.append(self._chunk(taken, batch, size, origin))
            rows_in += rows
            bytes_in += size
        self.rows_in.add(rows_in)
        self.bytes_in.add(bytes_in)
        if self._queue is None or self._queue.produce_many(items) < len(items):
            raise RunEnded
        return len(items)

    def _accept(
        self, worker: int | None, chunk: SizedBatch, origin: Origin, busy: TimeMeter | None
    ) -> None:
        batch, size = chunk
        rows = batch.num_rows
        taken = self.gate.try_enter(rows, size, worker)
        if taken is None:
            taken = self._wait_for_room(rows, size, worker, busy)
        self.rows_in.add(rows)
        self.bytes_in.add(size)
        item = self._chunk(taken, batch, size, origin)
        if self._queue is None or not self._queue.produce(item):
            raise RunEnded

    def _chunk(self, worker: int, batch: pa.RecordBatch, size: int, origin: Origin) -> "StageChunk":
        if self._attaches_origins:
            # Here, not where the sink is called, which would then wait for it between two writes.
            batch = with_origin(batch, self._pipeline, self.plan.source, origin)
        return StageChunk(worker, batch, size, origin)

    def order(
        self, what: "Callable[[StageWorker], Any]", workers: "list[StageWorker] | None" = None
    ) -> "list[StageOrder]":
        """Have workers do something after the chunks queued before it; wait with `results`.

        Args:
            what: Called with the worker.
            workers: The workers. Default: None, all.
        """
        chosen = self.workers if workers is None else workers
        orders = [StageOrder(worker.number, partial(what, worker)) for worker in chosen]
        with self._lock:
            self._orders.update(orders)
        for order in orders:
            if self._queue is None or not self._queue.produce(order):
                self.complete(order)
        if self.ending.has_begun:
            self._end()
        return orders

    def notify_of_pause(self, reason: str | None) -> None:
        """Notify the operators, after the chunks already queued, that their input pauses.

        Args:
            reason: Why; None if the input continues.
        """
        with self._lock:
            self._pause = reason
            # A worker that has not reached its previous order yet will see the new reason.
            workers = [each for each in self.workers if each.number not in self._to_notify]
            self._to_notify.update(worker.number for worker in workers)
        self.order(self._pass_pause_on, workers)

    def results(
        self,
        orders: "list[StageOrder]",
        is_late: Callable[[], None] | None = None,
        late_s: float = 30,
    ) -> list[Any]:
        """Wait until the workers have carried out orders, and return the results.

        Args:
            orders: What `order` returned.
            is_late: Called once if it takes longer than `late_s`.
            late_s: Seconds.

        Raises:
            RunEnded: The run ends early.
        """
        for order in orders:
            if is_late is None:
                wait_for(order.is_done)
            elif not wait_for(order.is_done, late_s):
                is_late()
                is_late = None
                wait_for(order.is_done)
        if self.ending.has_begun:
            raise RunEnded
        return [order.result for order in orders]

    def complete(self, order: "StageOrder") -> None:
        """Note that an order is done, or dropped."""
        with self._lock:
            self._orders.discard(order)
        order.is_done.set()

    def _pass_pause_on(self, worker: "StageWorker") -> None:
        with self._lock:
            self._to_notify.discard(worker.number)
            reason = self._pause
        worker.notify_of_pause(reason)

    def shut_down(self, timeout: float | None) -> bool:
        """End the threads; return whether they ended within a timeout in seconds."""
        return self._queue is None or self._queue.shutdown(timeout) == 0

    def _wait_for_room(
        self, rows: int, size: int, worker: int | None, busy: TimeMeter | None
    ) -> int:
        """Enter the gate, counting the wait of this thread as a wait for room, not as work."""
        if busy is not None:
            busy.leave()
        self.waited_for.enter()
        try:
            return self.gate.enter(rows, size, worker)
        finally:
            self.waited_for.leave()
            if busy is not None:
                busy.enter()

    def _routed(
        self, chunk: SizedBatch, origin: Origin
    ) -> list[tuple[int | None, SizedBatch, Origin]]:
        if self._partitioner is not None:
            try:
                parts = self._partitioner.split(chunk.batch)
            except Exception as error:
                # The stage before runs this, but the key is that of this stage.
                self.chunks_failed.add(1)
                self.ending.fail(self.name, error, origin)
                raise RunEnded from error
            return [
                (
                    partition % self.plan.workers,
                    SizedBatch(part, self._size_of(part)),
                    origin.child(partition),
                )
                for partition, part in parts
            ]
        return [(self._worker_of_partition(origin.partition), chunk, origin)]

    def _worker_of_partition(self, partition: str) -> int:
        if self._hashes:  # the state of a worker belongs to the same partitions in each run
            return partition_of_key(partition, self.plan.workers)
        with self._lock:
            return self._worker_of.setdefault(partition, len(self._worker_of) % self.plan.workers)

    def _end(self) -> None:
        self.gate.end()
        with self._lock:
            orders = list(self._orders)
        for order in orders:
            order.is_done.set()


def _worker_of_item(item: "StageChunk | StageOrder", partitions: int) -> int:
    del partitions
    return item.worker


# What goes through the queue of a stage: chunks, and orders to one of its workers.


@dataclass(slots=True, eq=False)
class StageChunk:
    """A record batch on its way to a worker.

    Attributes:
        worker: The number of the worker.
        batch: The rows.
        size: Their bytes, as the gate counts them.
        origin: Where they came from.
    """

    worker: int
    batch: pa.RecordBatch
    size: int
    origin: Origin


@dataclass(slots=True, eq=False)
class StageOrder:
    """A task that a worker runs on its own thread, after the chunks queued before it.

    Attributes:
        worker: The number of the worker.
        what: The function to run.
        result: What it returned, once it is done.
        is_done: Set when it is done.
    """

    worker: int
    what: Callable[[], Any]
    result: Any = None
    is_done: threading.Event = field(default_factory=threading.Event)


class RunEnded(Exception):
    """The run ends early: unprocessed input is dropped, and read again by the next run."""


class Ending:
    """The early end of a run, by its first error or by giving up. Nothing more is processed then.

    Attributes:
        failure: The first error, or None. Written once, before `has_begun`.
        has_begun: Whether the run ends early. Read by all threads between two chunks.
    """

    def __init__(self) -> None:
        self.failure: StageFailedError | None = None
        self.has_begun = False
        self._lock = threading.Lock()
        self._callbacks: list[Callable[[], None]] = []

    def notify(self, callback: Callable[[], None]) -> None:
        """Have a function called when the run ends early, or immediately if it already does."""
        with self._lock:
            self._callbacks.append(callback)
            is_late = self.has_begun
        if is_late:
            callback()

    def fail(self, stage: str, error: BaseException, origin: Origin | None = None) -> None:
        """End the run with an error. Later errors are not kept: they may follow from the first."""
        cause = error
        if isinstance(error, OperatorError) and isinstance(error.__cause__, Exception):
            cause = error.__cause__
        where = "" if origin is None else f", with {origin}"
        text = (
            str(error) if isinstance(error, OperatorError) else f"{type(cause).__name__}: {cause}"
        )
        failure = StageFailedError(
            f"stage {stage!r} failed{where}: {text}; the run has ended, and the next one continues "
            "behind the last cut",
            stage,
            None if origin is None else origin.position,
        )
        failure.__cause__ = cause
        self._begin(failure)

    def give_up(self) -> None:
        """End the run without an error: time has run out."""
        self._begin(None)

    def _begin(self, failure: StageFailedError | None) -> None:
        with self._lock:
            if self.has_begun:
                return
            self.failure = failure
            self.has_begun = True
            callbacks = list(self._callbacks)
        for callback in callbacks:
            callback()


class _Dispatcher:
    """The handler that drain threads call: it hands items to the worker of their partition."""

    def __init__(self, workers: "list[StageWorker]") -> None:
        self._workers = workers

    def consume(self, items: list[StageChunk | StageOrder]) -> None:
        """Hand chunks to a worker, several together up to the next order."""
        if len(self._workers) == 1 and not any(type(item) is StageOrder for item in items):
            self._workers[0].take(cast("list[StageChunk]", items))
            return
        chunks: list[StageChunk] = []
        for item in items:
            if isinstance(item, StageOrder):
                self._take(chunks)
                chunks = []
                self._workers[item.worker].obey(item)
            else:
                if chunks and chunks[0].worker != item.worker:
                    self._take(chunks)
                    chunks = []
                chunks.append(item)
        self._take(chunks)

    def on_close(self) -> None:
        """Have a sink release what it holds; it has a single worker, on this thread."""
        if len(self._workers) == 1:
            self._workers[0].close()

    def _take(self, chunks: list[StageChunk]) -> None:
        if chunks:
            self._workers[chunks[0].worker].take(chunks)


class Gate(StageGate):
    """Admits chunks into a stage, and counts them until they are completed.

    A chunk enters if the stage then holds at most `max_bytes` and its worker at most `worker_rows`.
    An empty stage admits any chunk, and an empty worker any number of rows. A chunk overtakes only
    chunks that wait for rows of their worker, so a large chunk gets its turn.

    The thread that completes a chunk gives its room to waiting threads, so that each wakes only
    once its chunk has been admitted.
    """

    if TYPE_CHECKING:  # the core's, which returns the class that is called

        def __new__(cls, workers: int, max_bytes: int, worker_rows: int) -> Self:
            """Begin empty."""
            ...

    def enter(self, rows: int, size: int, worker: int | None = None) -> int:
        """Wait for room, and take it.

        Args:
            rows: The rows of the chunk, at least 1.
            size: Its bytes.
            worker: The worker that must get it. Default: None, any.

        Returns:
            The worker that gets it.

        Raises:
            RunEnded: The run ends early.
        """
        lock = _locked()
        ticket = self.line_up(rows, size, worker, lock)
        lock.acquire()
        found = self.entered(ticket)
        assert found is not None, "the lock is released for those that are inside"
        return found

    def free(self) -> Limit:
        """Wait until there is room for a row, and return the room.

        Raises:
            RunEnded: The run ends early.
        """
        room = self.room()
        while room is None:
            lock = _locked()
            room = self.room(lock)
            if room is None:
                lock.acquire()
        return Limit(*room)

    def held(self) -> Limit:
        """Return the rows and bytes that are accepted but not completed."""
        return Limit(*self.held_amount())


def _locked() -> threading.Lock:
    lock = threading.Lock()
    lock.acquire()
    return lock


# The workers of a stage: one applies operators, the other writes to a sink.


class StageWorker:
    """A worker of a stage. Its thread calls all methods.

    Attributes:
        number: Its number in the stage, from 0.
    """

    def __init__(self, stage: RunnerStage, number: int) -> None:
        self.number = number
        self._stage = stage

    def open(self) -> Any:
        """Prepare its operators or its sink."""
        raise NotImplementedError

    def close(self) -> None:
        """Release its operators or its sink."""

    def take(self, chunks: list[StageChunk]) -> None:
        """Process chunks in order; any exception ends the run."""
        raise NotImplementedError

    def flush(self, cut: int) -> None:
        """Emit what should not wait beyond a cut."""

    def snapshot(self) -> bytes | None:
        """Return the state; None if there is none."""
        return None

    def restore(self, state: bytes | None) -> None:
        """Restore the state of an earlier snapshot."""

    def notify_of_pause(self, reason: str | None) -> None:
        """Handle a pause of the input; with None, its end."""

    def obey(self, order: StageOrder) -> None:
        """Carry out an order; any exception ends the run."""
        try:
            if not self._stage.ending.has_begun:
                order.result = order.what()
        except RunEnded:
            pass
        except BaseException as error:
            self._stage.ending.fail(self._stage.name, error)
        finally:
            self._stage.complete(order)


class OperatorWorker(StageWorker):
    """A worker that applies operators, and hands on their output."""

    def __init__(self, stage: RunnerStage, number: int, chunk_rows: int) -> None:
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

    def take(self, chunks: list[StageChunk]) -> None:
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
                    # One by one: the stage before must not wait for the next call of an operator.
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
        """Restore the state of an earlier snapshot."""
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
        self, batches: Iterable[pa.RecordBatch], origin: Origin, chunk: StageChunk | None = None
    ) -> None:
        """Hand on the output for a chunk, in chunks; all of this counts as work."""
        # Most operators return one batch, which nothing later can be joined with.
        is_alone = type(batches) is tuple
        cut = self._cutter.all_of if is_alone else self._cutter.add
        number = 0
        for batch in batches:
            # Operators often return their input, which has already been measured.
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


class SinkWorker(StageWorker):
    """A worker that writes to a sink, several chunks together if available.

    Attributes:
        sink: The sink.
        skips: Whether it drops chunks, because the sink already has them. Written by orders.
    """

    def __init__(self, stage: RunnerStage, sink: Sink, pipeline: str) -> None:
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
        """Make the sink release its resources."""
        end = getattr(self.sink, "close", None)
        if end is not None:
            try:
                end()
            except BaseException as error:
                self._stage.ending.fail(self._stage.name, error)

    def take(self, chunks: list[StageChunk]) -> None:
        """Write the chunks, in groups of about as many rows as the sink prefers."""
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
        """Make the sink store what it was given, with the cut."""
        assert isinstance(self.sink, TransactionalSink)
        with self._stage.busy:
            self.sink.commit(cut, positions)

    def _write(self, group: list[StageChunk]) -> None:
        with self._stage.busy:
            write_to(self.sink, [chunk.batch for chunk in group])


def _groups(chunks: list[StageChunk], batch_rows: int) -> Iterator[list[StageChunk]]:
    """Divide chunks into groups of at most `batch_rows` rows, or of a single chunk."""
    group: list[StageChunk] = []
    rows = 0
    for chunk in chunks:
        if group and rows + chunk.batch.num_rows > batch_rows:
            yield group
            group, rows = [], 0
        group.append(chunk)
        rows += chunk.batch.num_rows
    if group:
        yield group


# The first gate fills lazy statics of the core: a child forked meanwhile would wait forever.
StageGate(1, 1, 1)
