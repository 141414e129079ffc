"""`Worker`: handles the records of the partitions that its group assigns to it."""

import atexit
import math
import os
import socket
import threading
import time
import uuid
import weakref
from collections.abc import Callable
from typing import Any, Self, TypeVar

from batchqueue._core import PartitionPolicy, ThreadPolicy
from batchqueue.base.background_log import BackgroundLog, flush_log
from batchqueue.base.checks import check_finite
from batchqueue.base.signals import Flag, signals, wait_for
from batchqueue.exceptions import ConfigError, QueueClosedError, QueueForkedError
from batchqueue.groups.backend import StreamSource
from batchqueue.groups.control import BEATS_PER_LEASE, Control
from batchqueue.groups.plan import GroupBalancer, bounded
from batchqueue.groups.record import Assignment, Codec, Start
from batchqueue.groups.skew import SkewDetectionConfig
from batchqueue.groups.worker.held import ReadState
from batchqueue.groups.worker.load import weigh
from batchqueue.groups.worker.loops import (
    commit_loop,
    control_loop,
    guarded,
    listen_loop,
    read_loop,
)
from batchqueue.groups.worker.membership import Membership
from batchqueue.groups.worker.metrics import (
    WorkerMetrics,
    WorkerSummary,
    metrics_of,
    stats_of,
    summary_of,
)
from batchqueue.groups.worker.routes import Factory, Routes, instance
from batchqueue.groups.worker.settings import Callback, OnFailure, OnGap, WorkerSettings
from batchqueue.queues.config import BatchQueueConfig, DrainBalancer, RetryPolicy
from batchqueue.queues.queue import BatchQueue
from batchqueue.queues.stats import BatchQueueStats

_POLL_S = 0.05


F = TypeVar("F", bound=Factory)


class Worker:
    """Handles the records of the partitions that its group assigns to it.

    The workers of a group share the partitions of a stream; each partition has one owner at a time.
    Start as many as you like, in any processes and on any hosts: each takes its share when it
    starts, and gives it back when it ends. If one dies, the others take over its partitions after
    `lease_ms`, on Kafka after the session of the group. A partition whose owner does not change
    never pauses, except that on Kafka nothing new is read while another one waits for its handler.

    The records of a partition are handled in order. A handler is called by one thread at a time;
    `handler_factory` creates one per partition, which run in parallel. A handler that is slow,
    fails or hangs holds up only the partitions that it serves.

    Delivery is at least once: records that a worker had in hand and not committed when it crashed
    are delivered again. With a `Fence`, a `MetricsSink` or `Batch.commit_with`, each takes effect
    once.

    Example:
        >>> from batchqueue.groups import MemoryStreams, Worker
        >>> orders = MemoryStreams("orders", partitions=4)
        >>> worker = Worker("billing", orders, codec="utf8")
        >>> @worker.handler
        ... def store(batch):
        ...     print(batch.values)
        >>> with orders.producer(codec="utf8") as producer:
        ...     _ = producer.send("coffee")
        >>> worker.run(until_idle=0.1).handled
        ['coffee']
        1
    """

    def __init__(
        self,
        group: str,
        source: StreamSource,
        *,
        codec: str | Codec = "bytes",
        name: str | None = None,
        threads: ThreadPolicy | None = None,
        capacity: float = 1.0,
        lease_ms: int = 5_000,
        grace: float = 30,
        prefetch: int = 10_000,
        prefetch_bytes: int = 16 << 20,
        max_batch_items: int = 10_000,
        retry: RetryPolicy | None = None,
        on_failure: OnFailure = OnFailure.BLOCK,
        on_gap: OnGap | str = OnGap.FAIL,
        start: Start = Start.EARLIEST,
        balancer: GroupBalancer | None = None,
        skew: SkewDetectionConfig | None = None,
        on_assign: Callback | None = None,
        on_revoke: Callback | None = None,
        on_lost: Callback | None = None,
    ) -> None:
        """Prepare a worker; `run` or `start` makes it join.

        Args:
            group: The group. All of its workers should have the same handlers and settings.
            source: The stream: `RedisStreams`, `KafkaStreams` or `MemoryStreams`.
            codec: Decodes records: "bytes", "utf8", "json", "msgpack", "arrow" or a `Codec`.
                Default: "bytes".
            name: A name in the group: a worker that joins under a name immediately replaces the
                current worker of that name, and gets its partitions. On Kafka it is only a label.
                Default: None, a unique name.
            threads: The number of drain threads. Default: one per core.
            capacity: The share of the load that it takes, relative to the other workers. It has no
                effect on Kafka, where the broker assigns. Default: 1.0.
            lease_ms: The others take over when the worker has been silent for this long, 500 to
                60,000 ms. Default: 5 s. On Kafka it is refused, as the session of the group takes
                its place.
            grace: How long leaving waits for records in hand, in seconds. Default: 30 s.
            prefetch: The most records per partition that are read and not done. Default: 10,000.
            prefetch_bytes: The most bytes per partition that are read and not done. Default: 16
                MiB.
            max_batch_items: The most records in one call of a handler. Default: 10,000.
            retry: How often, and when, a batch whose handler raised is retried. Default:
                `RetryPolicy()`: three attempts, 100 and 200 ms apart.
            on_failure: What happens after the last attempt. Default: `OnFailure.BLOCK`, the
                partition waits, and the batch is retried.
            on_gap: What happens when records were trimmed before they were read: "fail" or "skip".
                Default: "fail".
            start: Where a group begins in a partition that is new to it. Default: `Start.EARLIEST`.
            balancer: How partitions are spread; give all workers of a group the same. It has no
                effect on Kafka. Default: `GroupBalancer.load_weighted()`.
            skew: When a partition counts as hot: a warning names it, and up to twice `prefetch` and
                `prefetch_bytes` are read ahead. Lags are read at most once a second. Default:
                `SkewDetectionConfig()`.
            on_assign: Called with a list of `Assignment` before any of their records are handled.
                If it raises, it is called again later, and the partitions wait.
            on_revoke: Called when partitions are given up in an orderly way, after their last
                handler has returned. Records that are done are committed even if it raises.
            on_lost: Called when partitions are gone; another worker may already own them.

        Raises:
            ConfigError: A setting is invalid; the message names it, its limit and the remedy.
        """
        if isinstance(on_gap, str):
            try:
                on_gap = OnGap(on_gap)
            except ValueError:
                raise ConfigError(f'on_gap is {on_gap!r}; give "fail" or "skip"') from None
        self.settings = WorkerSettings(
            group=group,
            name=name,
            codec=codec,
            threads=threads or ThreadPolicy.cpu_cores(1.0),
            capacity=capacity,
            lease_ms=lease_ms,
            grace=grace,
            prefetch=prefetch,
            prefetch_bytes=prefetch_bytes,
            max_batch_items=max_batch_items,
            retry=retry,
            on_failure=on_failure,
            on_gap=on_gap,
            start=start,
            balancer=balancer or GroupBalancer.load_weighted(),
            skew=SkewDetectionConfig() if skew is None else skew,
            on_assign=on_assign,
            on_revoke=on_revoke,
            on_lost=on_lost,
        )
        for method in ("connect", "open_writer", "stream"):
            if not hasattr(source, method):
                raise ConfigError(
                    f"source is {source!r}; give a stream, for instance MemoryStreams(...) or "
                    "RedisStreams(...)"
                )
        self.source = source
        self.name = name or f"{socket.gethostname()}:{os.getpid()}:{uuid.uuid4().hex[:8]}"
        self._routes = Routes()
        self._member: Membership | None = None
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._leaving: Leaving | None = None

    def handler(self, handler: Any) -> Any:
        """Let a function, an object with `consume`, or an instance of a class handle all records.

        It is called with a `Batch`, by one thread at a time. Records that `add_handler` assigns to
        another handler do not come here. This may be used as a decorator.

        Raises:
            ConfigError: It is not a handler, or is a coroutine function; it has `on_idle` or
                `on_error`, which a worker does not call; there is a handler for all records
                already; or the worker has been started.
        """
        self._check_not_started()
        self._routes.set_other(instance(handler))
        return handler

    def add_handler(self, item_type: type | str, handler: Any) -> None:
        """Let a handler take the records of one kind.

        Each handler gets the records of its kinds in order; there is no order between handlers.

        Args:
            item_type: The exact class of the decoded values, or a tag: the value of the header
                `type` of the records.
            handler: As for `handler`. The same handler may take several kinds.

        Raises:
            ConfigError: As for `handler`, or the kind has a handler.
        """
        self._check_not_started()
        self._routes.add(item_type, instance(handler))

    def handler_factory(self, factory: F) -> F:
        """Create a separate handler for each partition, so that partitions run in parallel.

        Args:
            factory: Takes the `Assignment` and returns a handler. It is called when a partition is
                assigned, `on_open` of the handler with the first batch, and `on_close` when the
                partition is given up or lost.

        Raises:
            ConfigError: It is not callable, there is a handler for all records, or the worker has
                been started.
        """
        self._check_not_started()
        self._routes.set_factory(factory)
        return factory

    def run(
        self, *, max_seconds: float | None = None, until_idle: float | None = None
    ) -> WorkerSummary:
        """Work until SIGTERM or Ctrl-C, then leave: finish what is in hand, commit, hand over.

        Signals are handled if this is the main thread. A second signal gives up what is in hand.

        Args:
            max_seconds: Leave after this many seconds. Default: None, no limit.
            until_idle: Leave when no record has come for this many seconds and none is in hand.
                Default: None, wait for more.

        Raises:
            ConfigError: A setting is invalid, the stream has another number of partitions, or the
                worker has no handler.
            HandlerFailedError: A handler, or its commit, failed for good under `OnFailure.STOP`.
            ReplacedError: Another process joined under this worker's name.
            StreamUnavailableError: The server cannot be reached at the start. Later, the worker
                waits until it is back.
            TruncatedError: Records were trimmed before they were read.
        """
        for setting, value in (("max_seconds", max_seconds), ("until_idle", until_idle)):
            if value is not None:
                check_finite(setting, value, 0, ", or leave it out")
        if self._member is not None and self._member.is_called_by_handler:
            raise ConfigError("run was called by a handler of the worker, which runs already")
        stop, give_up = Flag(), Flag()
        with signals(stop, give_up, "leaving the group"):
            self.start()
            end = None if max_seconds is None else time.monotonic() + max_seconds
            try:
                while not (stop.is_set or self._is_to_leave(end, until_idle)):
                    time.sleep(_POLL_S)
                return self.leave(_give_up=give_up)
            except KeyboardInterrupt:
                self.leave(0)
                raise

    def _is_to_leave(self, end: float | None, until_idle: float | None) -> bool:
        member = self._started()
        if member.error is not None or member.control.is_leaving or member.control.ended:
            return True
        if end is not None and time.monotonic() >= end:
            return True
        return until_idle is not None and is_idle(member, until_idle)

    def start(self) -> None:
        """Join the group in background threads, and return.

        Raises:
            ConfigError: As for `run`.
            StreamUnavailableError: As for `run`.
            QueueClosedError: The worker has left.
            QueueForkedError: The worker was made before a fork.
        """
        self._check_process()
        with self._lock:
            if self._member is None:
                self._start()
            elif self._leaving is not None and self._leaving.is_over:
                raise QueueClosedError(f"worker {self.name} has left its group; make another one")

    def _start(self) -> None:
        if not self._routes.all:
            raise ConfigError(
                f"worker {self.name} has no handler; add one with @worker.handler or add_handler"
            )
        member = open_membership(self.settings, self.source, self._routes, self.name)
        self._member = member
        self._leaving = Leaving(member, start_threads(member), leave_at_exit(self))

    def leave(self, grace: float | None = None, *, _give_up: Flag | None = None) -> WorkerSummary:
        """Give the partitions back and end; records in hand are handled and committed first.

        When called by a handler or a callback of this worker, it does not wait: the worker leaves
        when that has returned. Ctrl-C gives up what is in hand, and is raised when the worker has
        ended.

        Args:
            grace: Seconds after which the rest is given up, reported as `unfinished`, and handled
                again elsewhere. Default: None, the `grace` of the worker.

        Raises:
            HandlerFailedError: As for `run`.
            ReplacedError: As for `run`.
            TruncatedError: As for `run`.
            QueueForkedError: The worker was made before a fork.
        """
        self._check_process()
        grace = self.settings.grace if grace is None else grace
        check_finite("grace", grace, 0, ", for instance 30")
        if self._leaving is None:
            return WorkerSummary()
        return self._leaving.leave(grace, _give_up or Flag())

    def assigned(self) -> dict[int, Assignment]:
        """Return the current assignments, by partition."""
        member = self._member
        if member is None:
            return {}
        with member.lock:
            return {
                number: held.assignment
                for number, held in sorted(member.held.items())
                if held.assignment is not None and held.is_running
            }

    def pause(self, partition: int) -> None:
        """Stop handing out records of a partition; it stays assigned. See `resume`.

        Raises:
            ConfigError: The partition is not assigned.
        """
        self._pause(partition, is_paused=True)

    def resume(self, partition: int) -> None:
        """End the pause of a partition. Giving a partition up also ends its pause.

        Raises:
            ConfigError: The partition is not assigned.
        """
        self._pause(partition, is_paused=False)

    def metrics(self) -> WorkerMetrics:
        """Return the current metrics. Available until the worker is garbage.

        Raises:
            QueueClosedError: The worker has not been started.
        """
        return metrics_of(self._started())

    def stats(self) -> BatchQueueStats:
        """Return the statistics of the local queue, whose items are turns of partitions.

        Raises:
            QueueClosedError: The worker has not been started.
        """
        return self._started().queue.stats()

    def __enter__(self) -> Self:
        """Start the worker."""
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        """Leave the group."""
        if os.getpid() == self._pid:
            self.leave()

    def __repr__(self) -> str:
        """Say which group and stream it works for."""
        return f"<Worker {self.name!r} of group {self.settings.group!r} on {self.source.stream!r}>"

    def _pause(self, partition: int, *, is_paused: bool) -> None:
        member = self._started()
        with member.lock:
            if not member.pause(partition, is_paused):
                held = sorted(member.held)
                raise ConfigError(f"partition {partition!r} is not assigned; these are: {held}")

    def _started(self) -> Membership:
        self._check_process()
        if self._member is None:
            raise QueueClosedError(f"worker {self.name} has not been started")
        return self._member

    def _check_not_started(self) -> None:
        if self._member is not None:
            raise ConfigError("the worker has been started; add handlers before")

    def _check_process(self) -> None:
        if os.getpid() != self._pid:
            raise QueueForkedError(
                f"worker {self.name} was made before a fork, and its threads are not in this "
                "process; make a worker here"
            )


_MANY = 1 << 16
"""More partitions per drain thread than a worker has lanes, so that each lane gets its own."""

_SPARE_THREADS = 256
"""Started only while all drain threads are inside handlers, and ended when idle."""


def open_membership(
    settings: WorkerSettings, source: StreamSource, routes: Routes, name: str
) -> Membership:
    """Connect, and create all that the threads of a worker share.

    Args:
        settings: The settings of the worker.
        source: The stream.
        routes: The handlers.
        name: The name of the worker.

    Raises:
        ConfigError: The stream has another number of partitions.
        StreamUnavailableError: The server cannot be reached.
    """
    connection = source.connect(settings.group, lease_ms=settings.lease_ms, name=name)
    try:
        partitions = connection.partitions(source.partition_count)
    except BaseException:
        connection.close()
        raise
    control = Control(
        name,
        nonce=uuid.uuid4().hex,
        lease_ms=connection.lease_ms,
        partitions=partitions,
        capacity=settings.capacity,
        host=socket.gethostname(),
        pid=os.getpid(),
        balancer=bounded(settings.balancer, connection.lease_ms / 1_000 / BEATS_PER_LEASE),
        weigh=weigh,
        stats=lambda: stats_of(member),
    )
    queue: BatchQueue[Any] = BatchQueue(
        f"{settings.group}/{source.stream}",
        BatchQueueConfig(
            threads=settings.threads,
            partitions=PartitionPolicy.adaptive(_MANY),
            buffer_size=16,
            balancer=DrainBalancer.load_weighted(),
            # A handler that hangs holds a thread; each partition may have one.
            spare_threads=_SPARE_THREADS,
            shutdown_timeout=LAST_SHUTDOWN_S,
        ),
    )
    member = Membership(
        settings,
        stream=source.stream,
        routes=routes,
        connection=connection,
        control=control,
        queue=queue,
    )
    return member


def start_threads(member: Membership) -> list[threading.Thread]:
    """Start the threads of a worker, and return them."""
    loops: dict[str, Callable[[], None]] = {
        "control": lambda: control_loop(member),
        "listener": lambda: listen_loop(member),
        "reader": lambda: read_loop(member),
        "committer": lambda: commit_loop(member),
        "handover": member.handover.run,
    }
    threads = [
        threading.Thread(
            target=guarded,
            args=(member, loop),
            name=f"{member.settings.group}-{name}",
            daemon=True,
        )
        for name, loop in loops.items()
    ]
    for thread in threads:
        thread.start()
    return threads


_log = BackgroundLog("batchqueue")


LAST_SHUTDOWN_S = 5.0
"""How long the local queue may take to end when no records are in hand."""


class Leaving:
    """The end of a worker. Several threads may request it: one performs it, and the others wait.

    Attributes:
        leaver: The thread that performs it, or None.
        is_over: Whether it is complete.
    """

    def __init__(
        self,
        member: Membership,
        threads: list[threading.Thread],
        at_exit: Callable[[], None],
    ) -> None:
        self.leaver: int | None = None
        self._member = member
        self._threads = threads
        self._at_exit = at_exit
        self._by = math.inf
        self._done = threading.Event()
        self._summary: WorkerSummary | None = None
        self._interrupt: BaseException | None = None

    @property
    def is_over(self) -> bool:
        """Whether it is complete."""
        return self._done.is_set()

    def leave(self, grace: float, give_up: Flag) -> WorkerSummary:
        """Leave the group, and return the summary; raise the error that stopped the worker, if any.

        Args:
            grace: Seconds for records in hand. The shortest of all callers counts.
            give_up: Set to end the grace period.
        """
        member = self._member
        if member.is_called_by_handler:
            with member.lock:
                member.control.leave()
                member.control_due.notify()
            return summary_of(member)
        with member.lock:
            self._by = min(self._by, time.monotonic() + grace)
            is_first, self.leaver = self.leaver is None, self.leaver or threading.get_ident()
        if is_first:
            try:
                self._do(give_up)
            finally:
                self._done.set()
        elif self.leaver == threading.get_ident() and not self.is_over:
            return summary_of(member)  # called by a signal handler in the middle of `leave`
        wait_for(self._done)
        with member.lock:
            error, member.error = member.error, None
        if error is not None:
            raise error
        return self._summary or summary_of(member)

    def _do(self, give_up: Flag) -> None:
        member = self._member
        with member.lock:
            member.control.leave()
            member.control_due.notify()
        self._wait(lambda: self._by, give_up)
        with member.lock:
            if not member.control.ended:
                member.control.give_up()
                member.obey(member.control.orders())
                member.control_due.notify()
        end = time.monotonic() + member.control.timeout_ms / 1_000
        self._wait(lambda: end, Flag())
        with member.lock:
            self._summary = summary_of(member)
            member.stop_threads()
        unfinished = member.notes.unfinished
        if unfinished:
            _log.warning(
                "%s: records in hand were given up, by partition: %s",
                member.stream,
                dict(unfinished),
            )
        member.connection.close()
        # Anything still running there is ignored, so a handler that hangs is not waited for.
        member.queue.shutdown(0 if unfinished else LAST_SHUTDOWN_S)
        if not member.lanes:  # else the local queue has closed the handlers
            for route in member.routes.all:
                if route.on_close is not None:
                    route.on_close()
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(1.0)
        flush_log()
        atexit.unregister(self._at_exit)
        if self._interrupt is not None:
            raise self._interrupt

    def _wait(self, end: Callable[[], float], give_up: Flag) -> None:
        """Wait until the control side has ended, the time is over, or `give_up` is set.

        Ctrl-C also ends the wait, and is raised when the worker has ended.
        """
        member = self._member
        try:
            while not (member.control.ended or member.is_stopping):
                left = end() - time.monotonic()
                if left <= 0 or give_up.is_set:
                    return
                with member.lock:
                    if not member.control.ended:
                        member.over.wait(min(left, _POLL_S))
        except BaseException as interrupt:
            self._interrupt = self._interrupt or interrupt


def is_idle(member: Membership, seconds: float) -> bool:
    """Return whether everything held was read to the end, and nothing came for some seconds."""
    with member.lock:
        notes = member.notes
        if not member.control.is_settled:
            return False
        if notes.assigned == 0 and notes.idle_s < member.control.lease_ms / 1_000:
            return False  # the first plan may still come
        waiting = any(
            held.reading is not ReadState.CAUGHT_UP and number not in member.paused
            for number, held in member.held.items()
        )
        busy = waiting or member.counts.in_hand > 0 or bool(member.dirty)
        busy = busy or any(held.refused is not None for held in member.held.values())
        return not busy and notes.idle_s >= seconds


# Shutdown of a worker when the interpreter exits.


def leave_at_exit(worker: "Worker") -> Callable[[], None]:
    """Leave when the interpreter exits, unless the worker is garbage; return the exit function."""
    known = weakref.ref(worker)

    def leave() -> None:
        found = known()
        if found is not None and os.getpid() == found._pid:
            found.leave()

    return atexit.register(leave)
