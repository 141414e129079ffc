"""`Stage`: the queue of a stage, with its gate, its workers and its figures."""

import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from batchqueue._core import (
    Counter,
    PartitionPolicy,
    ThreadPolicy,
    TimeMeter,
    partition_of_key,
)
from batchqueue._signals import wait_for
from batchqueue.config import BatchQueueConfig
from batchqueue.pipeline.chunks.cutter import SizedBatch
from batchqueue.pipeline.chunks.memory import RowsMeter
from batchqueue.pipeline.chunks.origin import Origin, with_origin
from batchqueue.pipeline.compiling import Route, StagePlan
from batchqueue.pipeline.keying.partitioner import Partitioner
from batchqueue.pipeline.runner.chunks import Chunk, Order
from batchqueue.pipeline.runner.ending import Ending, RunEnded
from batchqueue.pipeline.runner.gate import Gate
from batchqueue.pipeline.steps import StatefulStep
from batchqueue.policies import PartitionSelector
from batchqueue.queue import BatchQueue

if TYPE_CHECKING:
    import pyarrow as pa

    from batchqueue.pipeline.runner.worker import Worker

CHUNKS_PER_WORKER = 4
"""Full chunks that a worker holds, the one in hand included."""

_SLACK = 64
"""Room in each partition for orders, which need no room in the gate."""

_NEVER_MS = 1e15

_MOST_BYTES = 2**63 - 1
"""More than there is: what the gate can count to."""


class Stage:
    """A stage that runs: each worker is a drain thread of the queue, with its partition.

    Attributes:
        plan: What it consists of.
        name: Its name.
        gate: What it holds.
        outlets: The stages that it feeds.
        workers: Its workers, by number.
        busy: The time that its workers spend in operators, or in the sink.
        waited_for: The time that the stage or source before it waits for room here.
        rows_in: The rows that it accepted; likewise `bytes_in`.
        rows_out: The rows that it emitted, or that its sink took; likewise `bytes_out`.
        chunks_failed: The chunks whose operator or sink raised.
    """

    def __init__(
        self, plan: StagePlan, outlets: Sequence["Stage"], max_bytes: int, ending: Ending
    ) -> None:
        """Make a stage without workers; `start` starts it.

        Args:
            plan: What it consists of.
            outlets: The stages that it feeds, which must run already.
            max_bytes: The most bytes that it holds.
            ending: What ends the run early.
        """
        rows = plan.config.chunk_rows * CHUNKS_PER_WORKER
        if plan.sink is not None:
            rows = max(rows, 2 * plan.sink.sink.batch_rows)
        self.plan = plan
        self.name = plan.name
        self.outlets = tuple(outlets)
        self.gate = Gate(plan.workers, min(max_bytes, _MOST_BYTES), rows)
        self.ending = ending
        self.workers: list[Worker] = []
        self.busy = TimeMeter(plan.workers)
        self.waited_for = TimeMeter()
        self.rows_in, self.bytes_in = Counter(), Counter()
        self.rows_out, self.bytes_out = Counter(), Counter()
        self.chunks_failed = Counter()
        self._queue: BatchQueue[Chunk | Order] | None = None
        self._partitioner: Partitioner | None = None
        if plan.key is not None:
            key = plan.key
            self._size_of = RowsMeter()
            self._partitioner = Partitioner(key.columns, plan.partitions, key.partition)
        # Otherwise any worker will do, and most stages have one.
        self._routes = plan.key is not None or plan.route is Route.SOURCE_PARTITION
        self._hashes = any(isinstance(step, StatefulStep) for step in plan.steps)
        self._attaches_origins = plan.sink is not None and getattr(
            plan.sink.sink, "needs_origins", True
        )
        self._pipeline = ""
        self._worker_of: dict[str, int] = {}
        self._orders: set[Order] = set()
        self._pause: str | None = None
        self._to_notify: set[int] = set()
        self._lock = threading.Lock()

    def start(self, pipeline: str, workers: "list[Worker]") -> None:
        """Start a thread for each worker."""
        self.workers = workers
        self._pipeline = pipeline
        # The queue's lines of the log name the class.
        dispatcher = type(self.name, (_Dispatcher,), {})
        # Nothing takes partitions over: each keeps its thread, because of the order, and because
        # an operator may keep what only the thread that made it can use.
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
            busy: What does not count the time of waiting; it counts the calling thread now.

        Raises:
            RunEnded: The run ends early.
        """
        if not self._routes:
            self._accept(None, chunk, origin, busy)
            return
        for worker, part, place in self._routed(chunk, origin):
            self._accept(worker, part, place, busy)

    def put_ready(self, chunks: Sequence[tuple[SizedBatch, Origin]]) -> int:
        """Wait until there is room for the first chunk; put it, and those that there is room for.

        To put several together wakes the worker once.

        Args:
            chunks: At least one, each with where it came from.

        Returns:
            How many were put.

        Raises:
            RunEnded: The run ends early.
        """
        if self._routes:
            self.put(*chunks[0], None)
            return 1
        items: list[Chunk] = []
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

    def _chunk(self, worker: int, batch: "pa.RecordBatch", size: int, origin: Origin) -> Chunk:
        if self._attaches_origins:
            # Here, and not where the sink is called: that would wait for it between two writes.
            batch = with_origin(batch, self._pipeline, self.plan.source, origin)
        return Chunk(worker, batch, size, origin)

    def order(
        self, what: "Callable[[Worker], Any]", workers: "list[Worker] | None" = None
    ) -> list[Order]:
        """Have workers do something, after the chunks before it; wait with `results`.

        Args:
            what: Gets the worker.
            workers: Which. Default: None, all.
        """
        chosen = self.workers if workers is None else workers
        orders = [Order(worker.number, partial(what, worker)) for worker in chosen]
        with self._lock:
            self._orders.update(orders)
        for order in orders:
            if self._queue is None or not self._queue.produce(order):
                self.complete(order)
        if self.ending.has_begun:
            self._end()
        return orders

    def notify_of_pause(self, reason: str | None) -> None:
        """Notify the operators, behind the chunks that are here, that their input pauses.

        Args:
            reason: Why; None if the input continues.
        """
        with self._lock:
            self._pause = reason
            # A worker that has not come to the order before will see the new reason.
            workers = [each for each in self.workers if each.number not in self._to_notify]
            self._to_notify.update(worker.number for worker in workers)
        self.order(self._pass_pause_on, workers)

    def results(
        self, orders: list[Order], is_late: Callable[[], None] | None = None, late_s: float = 30
    ) -> list[Any]:
        """Wait until the workers have done it, and return what they returned.

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

    def complete(self, order: Order) -> None:
        """Note that an order is done, or dropped."""
        with self._lock:
            self._orders.discard(order)
        order.is_done.set()

    def _pass_pause_on(self, worker: "Worker") -> None:
        with self._lock:
            self._to_notify.discard(worker.number)
            reason = self._pause
        worker.notify_of_pause(reason)

    def shut_down(self, timeout: float | None) -> bool:
        """End the threads; return whether they have ended in time, in seconds."""
        return self._queue is None or self._queue.shutdown(timeout) == 0

    def _wait_for_room(
        self, rows: int, size: int, worker: int | None, busy: TimeMeter | None
    ) -> int:
        """Enter the gate, and count the wait of this thread for room, and not as work."""
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
                # The stage before runs this, but it is the key of this one.
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
        worker = None
        if self.plan.route is Route.SOURCE_PARTITION:
            worker = self._worker_of_partition(origin.partition)
        return [(worker, chunk, origin)]

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


def _worker_of_item(item: Chunk | Order, partitions: int) -> int:
    del partitions
    return item.worker


class _Dispatcher:
    """What a drain thread calls: it hands items to the worker of their partition."""

    def __init__(self, workers: "list[Worker]") -> None:
        self._workers = workers

    def consume(self, items: list[Chunk | Order]) -> None:
        """Hand chunks to a worker, several together up to the next order."""
        if len(self._workers) == 1 and not any(type(item) is Order for item in items):
            self._workers[0].take(cast("list[Chunk]", items))
            return
        chunks: list[Chunk] = []
        for item in items:
            if isinstance(item, Order):
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

    def _take(self, chunks: list[Chunk]) -> None:
        if chunks:
            self._workers[chunks[0].worker].take(chunks)
