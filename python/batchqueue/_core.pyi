"""
The Rust core of batchqueue. Use the names of the package `batchqueue` instead.
"""

from datetime import timedelta
from typing import Any, Final, SupportsFloat, SupportsIndex, final
from typing_extensions import disjoint_base

__all__ = [
    "__version__",
    "Aggregator",
    "Counter",
    "DistinctSketch",
    "Entries",
    "FutureBase",
    "GateTicket",
    "HandlerCall",
    "PartitionPolicy",
    "PendingItem",
    "Queue",
    "ReplyReader",
    "RoomNotifier",
    "StageGate",
    "ThreadPolicy",
    "TimeBuckets",
    "TimeMeter",
    "add_handlers",
    "close_all",
    "close_to_outside",
    "end",
    "fill_statics",
    "flush_until",
    "forget_parent",
    "histograms_of",
    "is_exiting",
    "partition_of_key",
    "prepare_for_forks",
    "produce_arrow_until",
    "remove_handler_soon",
    "room",
    "shutdown_until",
    "stats_of",
    "thread_count",
    "try_produce",
    "try_produce_many",
    "try_submit",
    "unhandled_types",
    "wait_logged",
    "watch_forks",
    "with_instants",
]

__version__: Final[str]
"""
The version of the package.
"""

@disjoint_base
class Aggregator:
    """
    The core of `batchqueue.aggregation.Aggregator`.
    """
    def __bool__(self, /) -> bool:
        """
        Return True, even while there are no groups.
        """
    def __len__(self, /) -> int: ...
    def __new__(
        cls,
        /,
        keys: "list[str]",
        window: "tuple[str, str, int, int, str | None] | None",
        measures: "list[tuple[str, str, str | None, str | None, list[float], int]]",
        max_groups: "int",
        text: "str",
        next_worker: "Any",
        flush_period_s: "float",
    ) -> Aggregator: ...
    def consume(self, /, batch: "list[Any]") -> None:
        """
        Aggregate a list of Arrow data: rows, or partials of an equal aggregation.

        A queue does this without the interpreter.

        Args:
            batch: Objects with `__arrow_c_array__` or `__arrow_c_stream__`. Either all of them are
                aggregated, or none.

        Raises:
            ConfigError: A column is missing, its type is not supported or has changed, or the
                partials belong to another aggregation.
            BatchQueueError: There would be more than `max_groups` groups and there is no next
                worker, or the data is invalid.
        """
    @property
    def dropped(self, /) -> int:
        """
        Groups that were lost because the next worker raised, or refused them at close.
        """
    @property
    def emits(self, /) -> bool:
        """
        Whether there is a next worker, to which the groups are emitted.
        """
    def flush(self, /) -> None:
        """
        Emit all groups to the next worker now. Without a next worker, nothing happens.
        """
    def on_close(self, /) -> None:
        """
        Emit all groups for the last time.

        Raises:
            BatchQueueError: The next worker refused some of the groups; they are lost.
        """
    def on_idle(self, /) -> None:
        """
        Emit all groups: no rows wait to be merged with them.
        """
    def partials(self, /) -> "Any":
        """
        Take all groups out, as a record batch of partials that an equal aggregator can aggregate
        further, in this process or another.

        Returns:
            A `pyarrow.RecordBatch` (without pyarrow: an object with `__arrow_c_array__`), or None
            if there are no groups.
        """
    def result(self, /) -> "Any":
        """
        Return the keys and the measures of all groups, in order of first appearance. The groups
        stay.

        Returns:
            A `pyarrow.RecordBatch` (without pyarrow: an object with `__arrow_c_array__`), or None
            if there are no groups.

        Raises:
            OverflowError: A sum of integers does not fit into 64 bits; `partials` returns it as a
                decimal.
        """
    def update(self, /, data: Any) -> None:
        """
        Aggregate one piece of Arrow data.

        Args:
            data: An object with `__arrow_c_array__` or `__arrow_c_stream__`.

        Raises:
            ConfigError: As `consume`.
            BatchQueueError: As `consume`.
        """

@final
class Counter:
    """
    A count that one or more threads raise, and how fast it rises.
    """
    def __new__(cls, /, clock: Any | None = None) -> Counter:
        """
        Begin with 0.

        Args:
            clock: Returns seconds that never decrease. Default: None, that of the system.
        """
    def add(self, /, amount: SupportsIndex) -> None:
        """
        Raise it.
        """
    @property
    def per_s(self, /) -> float:
        """
        How much it rises in a second; the mean of the last three seconds.
        """
    @property
    def value(self, /) -> int:
        """
        The count now.
        """

@final
class DistinctSketch:
    """
    A sketch of distinct values: HyperLogLog, as Apache DataSketches has it.
    """
    def __new__(cls, /, lg_registers: SupportsIndex) -> DistinctSketch:
        """
        Make an empty sketch.

        Args:
            lg_registers: How many registers it has at most, as a power of two: 4 to 21.

        Raises:
            ConfigError: That is another number.
        """
    def add(self, /, value: Any) -> None:
        """
        Add a value.

        Raises:
            TypeError: It is not a str, bytes, or an int of 64 bits.
            OverflowError: It is an int of more bits.
            UnicodeEncodeError: It is a str that is not valid Unicode.
        """
    def copy(self, /) -> DistinctSketch:
        """
        Return an equal sketch.
        """
    def estimate(self, /) -> float:
        """
        Return the estimated number of distinct values.
        """
    def merge(self, /, other: bytes) -> None:
        """
        Add the values of another sketch, which `to_bytes` returned.

        Raises:
            ConfigError: The bytes are not those of a sketch.
        """
    def to_bytes(self, /) -> bytes:
        """
        Return the sketch as DataSketches of other languages read it.
        """

@final
class Entries:
    """
    Entries of a stream, by ascending id, as they were read. A slice shares their bytes.
    """
    def __getitem__(self, places: slice, /) -> Entries: ...
    def __len__(self, /) -> int: ...
    def entry(self, /, offset: "int") -> "tuple[int, bytes, bytes | None, tuple[Any, ...]]":
        """
        Return offset, value, key and headers of the entry with an offset.

        Raises:
            IndexError: It is not there.
        """
    @property
    def first(self, /) -> int:
        """
        The offset of the first entry.
        """
    @property
    def last(self, /) -> int:
        """
        The offset of the last entry.
        """
    def records(self, /, values: "list[Any]") -> "list[Any]":
        """
        Return records of the first entries.

        Args:
            values: What `values` has returned, or other values for the first entries.

        Raises:
            IndexError: There are more values than entries.
        """
    def values(
        self, /, decode: "Any", plain: "int | None" = None
    ) -> "tuple[list[Any], BaseException | None]":
        """
        Return the values of the entries, up to the first that cannot be decoded.

        Args:
            decode: Takes the bytes of a value and its offset, and returns the value.
            plain: Values of at most so many bytes are not decoded: they stay bytes. Default: None,
                all are decoded.

        Returns:
            The values, and what `decode` raised, or None.

        Raises:
            BaseException: What `decode` raised, if it is not a BatchQueueError.
        """

@disjoint_base
class FutureBase:
    """
    The methods of a future. Threads may call them concurrently.
    """
    def __new__(cls, /) -> FutureBase: ...
    @property
    def _condition(self, /) -> Any:
        """
        The condition that `concurrent.futures.wait` holds.
        """
    def _get_snapshot(self, /) -> "tuple[bool, bool, Any, BaseException | None]":
        """
        Whether it is done, whether it was cancelled, the result, the error: for asyncio.
        """
    @property
    def _state(self, /) -> str:
        """
        The name of the state in `concurrent.futures`.
        """
    @property
    def _waiters(self, /) -> Any:
        """
        The list that `concurrent.futures.wait` enters itself in.
        """
    def add_done_callback(self, /, function: Any) -> None:
        """
        Call a function with the future when it is done; immediately if it is.

        Args:
            function: Runs on the thread that ends the future, most often a drain thread. What it
                raises is logged.
        """
    def cancel(self, /) -> bool:
        """
        Cancel the item, if no handler has got it. It is not handled then, and counts as consumed.

        Returns:
            True if the item is cancelled. False if it is in a call, or the future is done.
        """
    def cancelled(self, /) -> bool:
        """
        Whether the item was cancelled.
        """
    def done(self, /) -> bool:
        """
        Whether the item was cancelled, or there is a result or an error.
        """
    def exception(
        self, /, timeout: SupportsFloat | SupportsIndex | timedelta | None = None
    ) -> "BaseException | None":
        """
        Wait for the end.

        Args:
            timeout: Seconds to wait. Default: no limit.

        Returns:
            The error, or None if there is a result.

        Raises:
            CancelledError: The item was cancelled.
            TimeoutError: Time ran out.
            BatchQueueError: Called without a timeout from a handler of the same queue.
        """
    def result(self, /, timeout: SupportsFloat | SupportsIndex | timedelta | None = None) -> "Any":
        """
        Wait for the result.

        Args:
            timeout: Seconds to wait. Default: no limit.

        Returns:
            What the handler returned for the item.

        Raises:
            CancelledError: The item was cancelled.
            TimeoutError: Time ran out. The item is still queued, or in a call.
            BatchQueueError: Called without a timeout from a handler of the same queue.
        """
    def running(self, /) -> bool:
        """
        Whether the item is in a call, or waits for its next attempt.
        """
    def set_exception(self, /, exception: "BaseException") -> None:
        """
        For those that make futures: end it with an error.
        """
    def set_result(self, /, result: Any) -> None:
        """
        For those that make futures: end it with a result.
        """
    def set_running_or_notify_cancel(self, /) -> bool:
        """
        For those that make futures: the work begins, unless it was cancelled.
        """

@final
class GateTicket:
    """
    A place in the line of a gate.
    """

@final
class HandlerCall:
    """
    One call into a handler, made by a drain thread that waits for a coroutine.

    Meanwhile the queue answers the coroutine as it would answer the drain thread.
    """
    def __new__(cls, /) -> HandlerCall:
        """
        Begin a call: on the drain thread, inside the handler.
        """
    @property
    def active(self, /) -> bool:
        """
        Whether the drain thread still waits.
        """
    def end(self, /) -> None:
        """
        End the call.
        """

@final
class PartitionPolicy:
    """
    How many partitions a queue has. Compares by value and pickles.
    """
    def __eq__(self, value: object, /) -> bool: ...
    def __hash__(self, /) -> int: ...
    def __ne__(self, value: object, /) -> bool: ...
    def __new__(cls, /, *args: "Any", **options: "Any") -> PartitionPolicy:
        """
        Raise TypeError: use a static method.
        """
    def __reduce__(self, /) -> tuple[Any, tuple[int]]: ...
    def __repr__(self, /) -> str: ...
    @staticmethod
    def adaptive(multiplier: "int" = 25) -> PartitionPolicy:
        """
        Let the partitions grow with `add_handler`: one for each handler up to `multiplier` per
        drain thread, then one for every two handlers.

        Args:
            multiplier: Partitions per drain thread up to which each handler gets its own, 1 or
                more.

        Raises:
            ConfigError: `multiplier` is below 1.
        """
    @staticmethod
    def fixed(count: "int") -> PartitionPolicy:
        """
        Use `count` partitions.

        Args:
            count: Partitions, 1 or more.

        Raises:
            ConfigError: `count` is below 1.
        """
    def resolve(
        self, /, threads: SupportsIndex, handlers: SupportsFloat | SupportsIndex = 0.0
    ) -> int:
        """
        Return the number of partitions, at least 1.

        Args:
            threads: Drain threads.
            handlers: Sum of the weights of the handlers.
        """
    @staticmethod
    def thread_multiply(multiplier: "int") -> PartitionPolicy:
        """
        Use `multiplier` partitions per drain thread.

        Args:
            multiplier: Partitions per drain thread, 1 or more.

        Raises:
            ConfigError: `multiplier` is below 1.
        """

@final
class PendingItem:
    """
    An item whose partition is full.

    It is refused when the caller gives it up, at the latest when this object is destroyed.
    """
    def begin_wait(self, /, call: HandlerCall | None) -> None:
        """
        Wait without a deadline from now on: if the call is a handler's and the wait can never end,
        it may be given up.

        Args:
            call: The handler call that the caller belongs to.
        """
    @property
    def is_given_up(self, /) -> bool:
        """
        Whether the wait is given up: the next attempt raises the error.
        """
    @property
    def line(self, /) -> tuple[int, int] | None:
        """
        The line that the item waits in: its partition, and a number for its type; or None if it is
        settled.
        """
    def refuse(self, /) -> None:
        """
        Give up. A settled item is left as it is.
        """
    def time_out(self, /, accepted: "int") -> "BaseException | None":
        """
        Give up because time ran out.

        Args:
            accepted: Items of the same call that were accepted before.

        Returns:
            The error to raise, or None if the item is settled.
        """
    def try_again(self, /, call: HandlerCall | None) -> bool | None:
        """
        Try to enqueue the item.

        Args:
            call: The handler call that the caller belongs to.

        Returns:
            True if the item was accepted, False if the queue is shut down, None if the partition is
            still full.
        """

@disjoint_base
class Queue:
    """
    The core of one queue; `batchqueue.BatchQueue` adds what is written in Python.
    """
    def __new__(
        cls,
        /,
        name: str,
        config: Any,
        selector: tuple[str, Any | None],
        consumers: Any,
        per_thread: bool,
        dead_letter: Any,
        default_handler: Any,
    ) -> Queue:
        """
        Start the drain threads.

        Args:
            name: The name of the queue.
            config: A `BatchQueueConfig`.
            selector: The kind of the selector, and its function or None.
            consumers: Methods of the consumers: none if items go to handlers, else one, or one per
                drain thread.
            per_thread: Whether there is one consumer per drain thread.
            dead_letter: Methods of the handler of dead letters, or None.
            default_handler: Methods of the handler of types that have none, or None.
        """
    def __reduce__(self, /) -> "tuple[Any, ...]": ...
    @property
    def _number(self, /) -> int:
        """
        The place of the queue among all that this process has made, in order of creation.
        """
    def flush(self, /, timeout: SupportsFloat | SupportsIndex | timedelta | None = None) -> bool:
        """
        Wait until all items accepted before the call have been handled.

        Args:
            timeout: Seconds to wait. Default: no limit.

        Returns:
            True if they have been handled. False if time ran out, or a shutdown abandoned some.

        Raises:
            BatchQueueError: Called from a drain thread, which would wait for itself.
            QueueForkedError: The queue was made before a fork.
        """
    @property
    def name(self, /) -> str:
        """
        The name of the queue.
        """
    def produce(
        self,
        /,
        item: Any,
        second: "None" = None,
        *,
        timeout: SupportsFloat | SupportsIndex | timedelta | None = None,
    ) -> bool:
        """
        Enqueue one item.

        Args:
            item: Any object. It goes to the handler of its class.
            timeout: Seconds to wait for space with `BufferStrategy.BLOCKING`. Default: no limit.

        Returns:
            True if the item was accepted. False if it was refused: the partition is full and the
            strategy is `IF_POSSIBLE`, or the queue is shut down.

        Raises:
            ProduceTimeoutError: The partition stayed full for the whole timeout.
            ReentrantProduceError: The wait of a handler would never end.
            QueueForkedError: The queue was made before a fork.
        """
    def produce_arrow(
        self,
        /,
        batch: Any,
        *,
        type_column: "str",
        timeout: SupportsFloat | SupportsIndex | timedelta | None = None,
    ) -> int:
        """
        Enqueue the rows of Arrow data, split by the values of one column, the tags.

        The rows of a tag go to the handler that `add_handler("tag", ...)` registered, as a list of
        `pyarrow.RecordBatch` in their original order; without pyarrow, as objects with
        `__arrow_c_array__`. The buffer size and all counts are in rows. Adjacent rows of a tag are
        not copied.

        Args:
            batch: Anything with `__arrow_c_array__` or `__arrow_c_stream__`, like a record batch or
                a table of pyarrow, polars, DuckDB or nanoarrow.
            type_column: Name of the column with the tags: strings, integers (7 is the tag "7"), or
                a dictionary of them. Rows with null, or with a tag that has no handler, count as
                unhandled.
            timeout: Seconds in all, from the call on, to wait for space with
                `BufferStrategy.BLOCKING`. Default: no limit.

        Returns:
            The number of accepted rows: all of them, unless a partition is full and the strategy is
            `IF_POSSIBLE`, or the queue is shut down.

        Raises:
            ConfigError: `batch` is not Arrow data, the column is missing or of another type, or the
                selector is `by_key` or `custom`.
            BatchQueueError: The stream of batches failed.
            ProduceTimeoutError: A partition stayed full. Each error, and an interrupt like
                `KeyboardInterrupt`, has the number of accepted rows in `accepted`: the rows of all
                batches before the last that was read, and of that batch the rows of some tags,
                which need not be its first rows.
            ReentrantProduceError: The wait of a handler would never end.
            QueueForkedError: The queue was made before a fork.
        """
    def produce_many(
        self,
        /,
        items: Any,
        second: "None" = None,
        *,
        timeout: SupportsFloat | SupportsIndex | timedelta | None = None,
    ) -> int:
        """
        Enqueue many items in order, up to the first that is refused.

        Args:
            items: Any iterable. A list or a tuple is several times faster, because it is enqueued
                in large pieces.
            timeout: Seconds in all to wait for space with `BufferStrategy.BLOCKING`. Default: no
                limit.

        Returns:
            The number of accepted items, counted from the first.

        Raises:
            ProduceTimeoutError: A partition stayed full; `accepted` of the error is the number of
                accepted items. An interrupt, like `KeyboardInterrupt`, has `accepted` too.
            ReentrantProduceError: The wait of a handler would never end.
            QueueForkedError: The queue was made before a fork.
        """
    def rebalance(self, /) -> int:
        """
        Run the balancer now, on the load since its last run.

        A call from a drain thread requests a run, does not wait for it, and returns 0.

        Returns:
            The number of partitions whose wanted drain thread changed; 0 without a balancer. Each
            partition moves at the end of its current drain thread's cycle.

        Raises:
            QueueForkedError: The queue was made before a fork.
        """
    def remove_handler(
        self,
        /,
        item_type: type | str,
        *,
        timeout: SupportsFloat | SupportsIndex | timedelta | None = None,
    ) -> bool:
        """
        Remove the handler of a type. Items of the type are unhandled from now on, also those that
        wait in a partition: call `flush` before, so that the handler gets them.

        The handler gets the batch that a drain thread may have in flight, and then `on_close`,
        unless it serves another type of this queue. When the call returns, no thread is inside the
        handler and none will enter it. A call from a drain thread does not wait for that.

        Args:
            item_type: The class, or the tag.
            timeout: Seconds to wait. Default: no limit.

        Returns:
            True if the type had a handler. False if it had none, or the queue is shut down; also if
            time ran out while a thread was inside the handler, whose `on_close` comes later then.

        Raises:
            ConfigError: `item_type` is neither a class nor a tag.
            QueueForkedError: The queue was made before a fork.
        """
    @property
    def running(self, /) -> bool:
        """
        Whether the queue accepts items: False once it is shut down.
        """
    def shutdown(self, /, timeout: SupportsFloat | SupportsIndex | timedelta | None = None) -> int:
        """
        Refuse every new item, deliver what was accepted, and end the drain threads.

        Called from a handler of this queue, it closes the queue and returns; the drain threads end
        later.

        Args:
            timeout: Seconds to wait. Default: no limit.

        Returns:
            The number of abandoned items: 0 unless time ran out.

        Raises:
            QueueForkedError: The queue was made before a fork.
        """
    def submit(
        self,
        /,
        item: Any,
        second: "None" = None,
        *,
        timeout: SupportsFloat | SupportsIndex | timedelta | None = None,
    ) -> "Any":
        """
        Enqueue one item whose result is wanted.

        The handler returns a list, or another sequence, with one result for each item of its batch.

        Args:
            item: Any object. It goes to the handler of its class.
            timeout: Seconds to wait for space with `BufferStrategy.BLOCKING`. Default: no limit.

        Returns:
            A `concurrent.futures.Future`: the result of the item, or what its handler raised in the
            last attempt. The item may have been refused, which no call raises: the future has a
            `QueueClosedError` if the queue is shut down, a `ProduceTimeoutError` if the partition
            stayed full for the whole timeout or is full with `BufferStrategy.IF_POSSIBLE`, a
            `ReentrantProduceError` if the wait of a handler would never end.

        Raises:
            QueueForkedError: The queue was made before a fork.
        """

@final
class ReplyReader:
    """
    Finds the entries in the replies to XREAD commands, while they arrive.

    It reads protocol 2. One thread uses it.
    """
    def __new__(cls, /, expected: SupportsIndex) -> ReplyReader:
        """
        Expect replies.

        Args:
            expected: How many commands were sent.
        """
    def feed(self, /, data: bytes) -> bool:
        """
        Take bytes that have arrived, and return whether all replies are there.

        Raises:
            OverflowError: The id of an entry, which is the argument, is too large for an offset.
            ValueError: The bytes are not a reply to XREAD.
        """
    def take(self, /) -> "list[list[tuple[bytes, Entries, int]] | str]":
        """
        Return the replies: of each the streams that have entries, or what the server refused.

        Returns:
            For each command a list of the key of a stream, its entries, and their bytes; or a str,
            which begins with a word for the kind of the error.
        """

@final
class RoomNotifier:
    """
    The lines of one queue that tasks of one event loop wait in.
    """
    def __new__(cls, /) -> RoomNotifier: ...
    def fileno(self, /) -> int:
        """
        Return the file descriptor, which is readable when a partition has room.
        """
    def take_notified(self, /) -> list[tuple[int, int]]:
        """
        Return the watched lines of the partitions that got room since the last call, or that accept
        no more items.
        """
    def unwatch(self, /, line: tuple[SupportsIndex, SupportsIndex]) -> None:
        """
        Stop watching a line.
        """
    def watch(self, /, pending: PendingItem) -> None:
        """
        Watch the line that an item waits in, from now on.
        """

@disjoint_base
class StageGate:
    """
    How much a stage of a pipeline holds, in rows and bytes, and what waits for room, in order.

    The thread that makes room gives it to those that wait, so that none wakes in vain.
    """
    def __new__(
        cls, /, workers: SupportsIndex, max_bytes: SupportsIndex, worker_rows: SupportsIndex
    ) -> StageGate:
        """
        Begin empty.

        Args:
            workers: The workers of the stage.
            max_bytes: The most bytes that the stage holds, unless a single chunk has more.
            worker_rows: The most rows that each worker holds, unless a single chunk has more.
        """
    def end(self, /) -> None:
        """
        Let all waits end, now and later: the run ends early.
        """
    def entered(self, /, ticket: GateTicket) -> int | None:
        """
        Return the worker that a chunk got that was in line; None if it still is.

        Raises:
            RunEnded: It will not get any, because the run ends early.
        """
    def held_amount(self, /) -> tuple[int, int]:
        """
        Return the rows and bytes that are accepted and not completed.
        """
    def leave(
        self,
        /,
        rows: SupportsIndex,
        size: SupportsIndex,
        worker: SupportsIndex,
        chunks: SupportsIndex = 1,
    ) -> None:
        """
        Give back the room of chunks that are completed, and let those in that wait for it.

        Args:
            rows: Their rows in all.
            size: Their bytes in all.
            worker: Whose they were.
            chunks: How many. Default: 1.
        """
    def line_up(
        self, /, rows: SupportsIndex, size: SupportsIndex, worker: SupportsIndex | None, lock: Any
    ) -> GateTicket:
        """
        Wait in line for room; the lock is released when there is a decision.

        Args:
            rows: The rows of the chunk, at least 1.
            size: Its bytes.
            worker: The worker that must have it; None for any.
            lock: A locked `threading.Lock`.

        Raises:
            RunEnded: The run ends early.
        """
    @property
    def most_bytes(self, /) -> int:
        """
        The most bytes that were held so far.
        """
    def room(self, /, lock: Any | None = None) -> tuple[int, int] | None:
        """
        Return the rows and bytes that may still enter; None if that is not even a row.

        Args:
            lock: A locked `threading.Lock`, which is released when there may be room for a row,
                if there is none. Default: None.

        Raises:
            RunEnded: The run ends early.
        """
    def try_enter(
        self, /, rows: SupportsIndex, size: SupportsIndex, worker: SupportsIndex | None = None
    ) -> int | None:
        """
        Take room and return the worker that gets the chunk; None if it has to wait.

        Args:
            rows: The rows of the chunk, at least 1.
            size: Its bytes.
            worker: The worker that must have it. Default: None, any.

        Raises:
            RunEnded: The run ends early.
        """
    @property
    def waiting(self, /) -> int:
        """
        How many chunks wait in line.
        """
    @property
    def worker_rows(self, /) -> int:
        """
        The most rows of a worker.
        """

@final
class ThreadPolicy:
    """
    How many drain threads a queue has. Compares by value and pickles.
    """
    def __eq__(self, value: object, /) -> bool: ...
    def __hash__(self, /) -> int: ...
    def __ne__(self, value: object, /) -> bool: ...
    def __new__(cls, /, *args: "Any", **options: "Any") -> ThreadPolicy:
        """
        Raise TypeError: use a static method.
        """
    def __reduce__(self, /) -> tuple[Any, Any]: ...
    def __repr__(self, /) -> str: ...
    @staticmethod
    def cpu_cores(multiplier: "float") -> ThreadPolicy:
        """
        Use `multiplier` drain threads per core that this process may use: rounded half up, at
        least 1.

        Args:
            multiplier: Drain threads per core, above 0.

        Raises:
            ConfigError: `multiplier` is not a finite number above 0.
        """
    @staticmethod
    def cpu_cores_with_base(base: "int", multiplier: "float") -> ThreadPolicy:
        """
        Use `base` drain threads and `multiplier` more per core, rounded half up.

        Args:
            base: Drain threads on every machine, 0 or more.
            multiplier: Further drain threads per core that this process may use, above 0.

        Raises:
            ConfigError: `base` is negative, or `multiplier` is not a finite number above 0.
        """
    @staticmethod
    def fixed(count: "int") -> ThreadPolicy:
        """
        Use `count` drain threads on every machine.

        Args:
            count: Drain threads, 1 or more.

        Raises:
            ConfigError: `count` is below 1.
        """
    def resolve(self, /, cores: SupportsIndex | None = None) -> int:
        """
        Return the number of drain threads, at least 1.

        Args:
            cores: Cores to count with. Default: the cores that this process may use.
        """

@final
class TimeBuckets:
    """
    Buckets of time, in seconds. The core of `batchqueue.aggregation.bucket_start`.
    """
    def __new__(cls, /, width: "int", offset: "int", zone: "str | None") -> TimeBuckets:
        """
        Make buckets.

        Args:
            width: Seconds, above 0.
            offset: Where a bucket starts, in seconds after the epoch: from 0 up, and below the
                width.
            zone: The zone whose clock they follow; None for UTC.

        Raises:
            ConfigError: The zone is not known, or a number is out of range.
        """
    def start(self, /, second: SupportsIndex) -> int:
        """
        Return the start of the bucket that an instant is in, in seconds since the epoch.
        """
    def start_on_clock(self, /, second: SupportsIndex) -> int:
        """
        Return the start of the bucket of the instant at which the zone's clock showed a time.

        Args:
            second: The time as seconds since 1970-01-01 00:00 on that clock.
        """

@final
class TimeMeter:
    """
    Sums up the time that one or more threads spend in something.

    A span that has not ended counts as well, so that a call that hangs is seen. `with` counts the
    time of a block.
    """
    def __enter__(self, /) -> None: ...
    def __exit__(self, /, _kind: Any, _error: Any, _traceback: Any) -> None: ...
    def __new__(cls, /, threads: SupportsIndex = 1, clock: Any | None = None) -> TimeMeter:
        """
        Begin with nothing.

        Args:
            threads: How many threads are measured; the share is of the time of all of them.
                Default: 1.
            clock: Returns seconds that never decrease. Default: None, that of the system.
        """
    def enter(self, /) -> None:
        """
        Begin to count the time of this thread.
        """
    @property
    def is_open(self, /) -> bool:
        """
        Whether a thread is inside.
        """
    def leave(self, /) -> None:
        """
        Count the time of this thread no longer.
        """
    @property
    def seconds(self, /) -> float:
        """
        The time in all, of all threads together.
        """
    @property
    def share(self, /) -> float:
        """
        The share of about the last three seconds, 0 to 1; of all the time before that.
        """

def add_handlers(
    queue: Queue, item_type: type | str, handlers: Any, options: Any, wait: bool = True
) -> None:
    """
    Give a type one handler, or several, one for each of as many partitions.

    Args:
        queue: The queue.
        item_type: The class, or the tag.
        handlers: The methods of each handler.
        options: The settings of the type, a `HandlerOptions`.
        wait: Whether to wait until no thread is inside a previous handler of the type.
    """

def close_all() -> None:
    """
    End every queue that is left, in reverse order of creation: the last callback of the exit.
    Accepted items are delivered, within each queue's `shutdown_timeout`.
    """

def close_to_outside(
    queue: Queue, timeout: SupportsFloat | SupportsIndex | timedelta | None
) -> None:
    """
    Refuse threads that do not drain. Drain threads may still produce.

    Args:
        queue: The queue.
        timeout: Seconds until the end of the shutdown that will follow. None: without a limit.
    """

def end(queue: Queue, timeout: SupportsFloat | SupportsIndex | timedelta | None) -> int:
    """
    Shut a queue down, but leave the wait for its log to `wait_logged`. Returns the number of
    abandoned items.
    """

def fill_statics() -> None:
    """
    Fill the lazy statics of the bindings that every part of the package reaches, as soon as the
    core is loaded. A fork during an initialization would leave the child waiting for a thread that
    does not exist there.
    """

def flush_until(
    queue: Queue, timeout: SupportsFloat | SupportsIndex | timedelta | None, stop: Any
) -> bool:
    """
    `Queue.flush`, whose wait also ends when the event `stop` is set.
    """

def forget_parent(in_hook: bool = False) -> None:
    """
    Forget, in a forked child, all queues of the parent: their drain threads do not exist here, and
    their locks may be held forever. Do nothing in any other process, or for the second time.

    Python's hook for forks calls this. In the child of a host written in C that forks without those
    hooks, every entry into the package whose state a parent may have left calls it, and it runs
    them.

    Args:
        in_hook: Whether the hook calls.
    """

def histograms_of(
    queue: Queue, limits_ns: "list[int]", limits_items: "list[int]"
) -> "list[tuple[Any, Any, Any, Any]]":
    """
    Return the histograms of each type: waits, items and times of calls.

    Args:
        queue: The queue.
        limits_ns: Limits of the buckets of times, ascending powers of two, in nanoseconds.
        limits_items: The same for items.

    Returns:
        For each type the type, and for each histogram its count, its sum, and how many of its
        values are at most each limit.
    """

def is_exiting() -> bool:
    """
    Whether the exit of the interpreter has begun to close the queues.
    """

def partition_of_key(key: Any, partitions: SupportsIndex) -> int:
    """
    Return the partition of a key, the same in every process and version.

    Args:
        key: A str, bytes, int or bool, or a tuple of these and None.
        partitions: The number of partitions, 1 or more.

    Raises:
        ConfigError: The key is of another type.
    """

def prepare_for_forks(config: Any, options: Any) -> None:
    """
    Fill the lazy statics of the bindings that need classes of the package, before the first queue.
    The others are filled by `fill_statics`.

    Args:
        config: A `BatchQueueConfig` with a retry policy and a balancer. Reading it fills the
            statics that hold the names of its attributes.
        options: A `HandlerOptions`, likewise.
    """

def produce_arrow_until(
    queue: Queue,
    batch: Any,
    type_column: "str",
    timeout: SupportsFloat | SupportsIndex | timedelta | None,
    stop: Any,
    call: HandlerCall | None,
) -> int:
    """
    `Queue.produce_arrow`, which also ends when the event `stop` is set.

    Args:
        queue: The queue.
        batch: As in `Queue.produce_arrow`.
        type_column: As in `Queue.produce_arrow`.
        timeout: As in `Queue.produce_arrow`.
        stop: A `threading.Event`.
        call: The handler call that the caller belongs to.
    """

def remove_handler_soon(queue: Queue, item_type: type | str) -> bool:
    """
    `Queue.remove_handler` without the wait.
    """

def room(queue: Queue, line: "tuple[int, int]") -> int:
    """
    Return the number of items of a line that there is room for now; `buffer_size` once its
    partition accepts no more items.
    """

def shutdown_until(
    queue: Queue,
    timeout: SupportsFloat | SupportsIndex | timedelta | None,
    stop: Any,
    call: HandlerCall | None,
) -> int:
    """
    `Queue.shutdown`, whose wait also ends when the event `stop` is set.

    Args:
        queue: The queue.
        timeout: As in `Queue.shutdown`.
        stop: A `threading.Event`.
        call: The handler call that the caller belongs to.
    """

def stats_of(queue: Queue) -> "dict[str, Any]":
    """
    Return the core's snapshot, for the facade's `BatchQueueStats`.
    """

def thread_count(threads: ThreadPolicy, partitions: PartitionPolicy) -> int:
    """
    Return the number of drain threads of a queue with these policies.
    """

def try_produce(
    queue: Queue,
    item: Any,
    notifier: RoomNotifier | None,
    turn_at: "tuple[int, int] | None",
    call: HandlerCall | None,
) -> "bool | PendingItem":
    """
    Enqueue one item without waiting.

    Args:
        queue: The queue.
        item: Any object.
        notifier: The lines that tasks of the loop wait in. There the item waits as well, behind
            them.
        turn_at: The line where it is the caller's turn.
        call: The handler call that the caller belongs to.

    Returns:
        True if the item was accepted, False if it was refused, or a `PendingItem` to try again.
    """

def try_produce_many(
    queue: Queue,
    items: "list[Any] | tuple[Any, ...]",
    start: "int",
    notifier: RoomNotifier | None,
    turn_at: "tuple[int, int] | None",
    call: HandlerCall | None,
) -> "tuple[int, bool | PendingItem | None]":
    """
    Enqueue the items of a list or a tuple from `start` on, without waiting.

    Args:
        queue: The queue.
        items: All items of the call.
        start: Index of the first item to enqueue.
        notifier: As in `try_produce`.
        turn_at: As in `try_produce`.
        call: As in `try_produce`.

    Returns:
        The number of items accepted so far, those before `start` included, and the result for the
        next item: True if there is none, None if the loop should get a turn first, else as in
        `try_produce`.
    """

def try_submit(
    queue: Queue,
    item: Any,
    notifier: RoomNotifier | None,
    call: HandlerCall | None,
    mailbox: Any,
    destination: Any,
) -> "tuple[Any, bool | PendingItem]":
    """
    Enqueue one item whose result is wanted, without waiting.

    Args:
        queue: The queue.
        item: Any object.
        notifier: As in `try_produce`.
        call: As in `try_produce`.
        mailbox: Its `deliver` gets a list of pairs when items are done: `destination`, and the
            future of the item.
        destination: Any object.

    Returns:
        The future of the item; and False, or a `PendingItem` to try again. A refused item has its
        error in the future.
    """

def unhandled_types(queue: Queue) -> list[str]:
    """
    Return the names of types without a handler of which the queue got items, the first few.
    """

def wait_logged(
    queues: "list[Queue]", timeout: SupportsFloat | SupportsIndex | timedelta | None
) -> None:
    """
    Wait until the lines of these queues are in the log: for all of them no longer than the shutdown
    of one would.
    """

def watch_forks() -> None:
    """
    Count the forks of this process from now on.
    """

def with_instants(batch: Any, zone: str) -> Any:
    """
    Read timestamps without a zone as times on the clock of a zone, also in lists, structs and maps.

    A time that the clock showed twice is the earlier of the two instants; a time that it skipped is
    as much later as it skipped, as in Spark SQL.

    Args:
        batch: A record batch.
        zone: The zone.

    Returns:
        A `pyarrow.RecordBatch` in which all timestamps are instants.

    Raises:
        ConfigError: The zone is not known.
        BatchQueueError: The data is malformed.
    """
