"""
The Rust core of batchqueue. Use the names of the package `batchqueue` instead.
"""

from typing import Any, Final, SupportsFloat, SupportsIndex, final
from typing_extensions import disjoint_base

__all__ = [
    "__version__",
    "Aggregator",
    "Entries",
    "HandlerCall",
    "PartitionPolicy",
    "PendingItem",
    "Queue",
    "ReplyReader",
    "RoomNotifier",
    "ThreadPolicy",
    "after_fork_in_child",
    "close_all",
    "flush_until",
    "is_exiting",
    "partition_of_key",
    "prepare_for_forks",
    "remove_handler_soon",
    "room",
    "shutdown_until",
    "thread_count",
    "try_produce",
    "try_produce_many",
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
        window: "tuple[str, str, int] | None",
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
    def update(self, /, data: "Any") -> None:
        """
        Aggregate one piece of Arrow data.

        Args:
            data: An object with `__arrow_c_array__` or `__arrow_c_stream__`.

        Raises:
            ConfigError: As `consume`.
            BatchQueueError: As `consume`.
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
    def records(
        self, /, decode: "Any", plain: "int | None" = None
    ) -> "tuple[list[Any], BaseException | None]":
        """
        Return the records of the entries, up to the first that cannot be decoded.

        Args:
            decode: Takes the bytes of a value and its offset, and returns the value.
            plain: Values of at most so many bytes are not decoded: they stay bytes. Default: None,
                all are decoded.

        Returns:
            The records, and what `decode` raised, or None.

        Raises:
            BaseException: What `decode` raised, if it is not a BatchQueueError.
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
    def __reduce__(self, /) -> tuple[Any, tuple[int]]: ...
    def __repr__(self, /) -> str: ...
    @staticmethod
    def adaptive(multiplier: SupportsIndex = 25) -> PartitionPolicy:
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
    def fixed(count: SupportsIndex) -> PartitionPolicy:
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
    def thread_multiply(multiplier: SupportsIndex) -> PartitionPolicy:
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
    def begin_wait(self, /, call: "HandlerCall | None") -> None:
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
    def try_again(self, /, call: "HandlerCall | None") -> bool | None:
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
        name: "str",
        config: "Any",
        selector: "tuple[str, Any]",
        consumers: "Any",
        per_thread: "bool",
        dead_letter: "Any",
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
        """
    def __reduce__(self, /) -> "tuple[Any, ...]": ...
    def _add_handlers(
        self, /, item_type: "type | str", handlers: "Any", options: "Any", wait: "bool" = True
    ) -> None:
        """
        Give a type one handler, or several, one for each of as many partitions.

        Args:
            item_type: The class, or the tag.
            handlers: The methods of each handler.
            options: The settings of the type, a `HandlerOptions`.
            wait: Whether to wait until no thread is inside a previous handler of the type.
        """
    def _close_to_outside(self, /) -> None:
        """
        Refuse outside threads. Drain threads may still produce.
        """
    def _stats(self, /) -> "dict[str, Any]":
        """
        Return the core's snapshot, for the facade's `BatchQueueStats`.
        """
    def flush(self, /, timeout: SupportsFloat | SupportsIndex | None = None) -> bool:
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
        self, /, item: Any, *, timeout: SupportsFloat | SupportsIndex | None = None
    ) -> bool:
        """
        Enqueue one item.

        Args:
            item: Any object. It goes to the handler of exactly its class.
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
        type_column: str,
        timeout: SupportsFloat | SupportsIndex | None = None,
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
        self, /, items: Any, *, timeout: SupportsFloat | SupportsIndex | None = None
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
    def remove_handler(self, /, item_type: "type | str", *, timeout: "float | None" = None) -> bool:
        """
        Remove the handler of a type. Items of the type are unhandled from now on.

        The handler gets the batch that a drain thread may have in hand, and then `on_close`, unless
        it serves another type of this queue. When the call returns, no thread is inside the handler
        and none will enter it. A call from a drain thread does not wait for that.

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
    def shutdown(self, /, timeout: SupportsFloat | SupportsIndex | None = None) -> int:
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

@final
class ThreadPolicy:
    """
    How many drain threads a queue has. Compares by value and pickles.
    """
    def __eq__(self, value: object, /) -> bool: ...
    def __hash__(self, /) -> int: ...
    def __ne__(self, value: object, /) -> bool: ...
    def __reduce__(self, /) -> tuple[Any, Any]: ...
    def __repr__(self, /) -> str: ...
    @staticmethod
    def cpu_cores(multiplier: SupportsFloat | SupportsIndex) -> ThreadPolicy:
        """
        Use `multiplier` drain threads per core that this process may use: rounded half up, at
        least 1.

        Args:
            multiplier: Drain threads per core, above 0.

        Raises:
            ConfigError: `multiplier` is not a finite number above 0.
        """
    @staticmethod
    def cpu_cores_with_base(
        base: SupportsIndex, multiplier: SupportsFloat | SupportsIndex
    ) -> ThreadPolicy:
        """
        Use `base` drain threads and `multiplier` more per core, rounded half up.

        Args:
            base: Drain threads on every machine, 0 or more.
            multiplier: Further drain threads per core that this process may use, above 0.

        Raises:
            ConfigError: `base` is negative, or `multiplier` is not a finite number above 0.
        """
    @staticmethod
    def fixed(count: SupportsIndex) -> ThreadPolicy:
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

def after_fork_in_child() -> None:
    """
    Forget, in a forked child, all queues of the parent: their drain threads do not exist here, and
    their locks may be held forever.
    """

def close_all() -> None:
    """
    Close every live queue, registered or not, in reverse order of creation. Accepted items are
    delivered, within each queue's `shutdown_timeout`, counted from the call.
    """

def flush_until(queue: "Queue", timeout: "float | None", stop: "Any") -> bool:
    """
    `Queue.flush`, whose wait also ends when the event `stop` is set.
    """

def is_exiting() -> bool:
    """
    Whether the exit of the interpreter has begun to close the queues.
    """

def partition_of_key(key: Any, partitions: SupportsIndex) -> int:
    """
    Return the partition of a key, the same in every process and version.

    Args:
        key: A str, bytes or int.
        partitions: The number of partitions, 1 or more.

    Raises:
        ConfigError: The key is of another type.
    """

def prepare_for_forks() -> None:
    """
    Fill all lazy statics of the bindings before they have threads. A fork during an initialization
    would leave the child waiting for a thread that does not exist there.
    """

def remove_handler_soon(queue: "Queue", item_type: "type | str") -> bool:
    """
    `Queue.remove_handler` without the wait.
    """

def room(queue: "Queue", line: "tuple[int, int]") -> int:
    """
    Return the number of items of a line that there is room for now; `buffer_size` once its
    partition accepts no more items.
    """

def shutdown_until(
    queue: "Queue", timeout: "float | None", stop: "Any", call: "HandlerCall | None"
) -> int:
    """
    `Queue.shutdown`, whose wait also ends when the event `stop` is set.

    Args:
        queue: The queue.
        timeout: As in `Queue.shutdown`.
        stop: A `threading.Event`.
        call: The handler call that the caller belongs to.
    """

def thread_count(threads: ThreadPolicy, partitions: PartitionPolicy) -> int:
    """
    Return the number of drain threads of a queue with these policies.
    """

def try_produce(
    queue: "Queue",
    item: "Any",
    notifier: "RoomNotifier | None",
    turn_at: "tuple[int, int] | None",
    call: "HandlerCall | None",
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
    queue: "Queue",
    items: "list[Any] | tuple[Any, ...]",
    start: "int",
    notifier: "RoomNotifier | None",
    turn_at: "tuple[int, int] | None",
    call: "HandlerCall | None",
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
