"""
The Rust core of batchqueue. Use the names of the package `batchqueue` instead.
"""

from typing import Any, SupportsFloat, SupportsIndex, final
from typing_extensions import disjoint_base

__all__ = [
    "Aggregator",
    "Bell",
    "Inside",
    "PartitionPolicy",
    "Queue",
    "ThreadPolicy",
    "Waiting",
    "after_fork_in_child",
    "close_all",
    "flush_until",
    "is_exiting",
    "remove_handler_soon",
    "room",
    "shutdown_until",
    "thread_count",
    "try_produce",
    "try_produce_many",
]

@disjoint_base
class Aggregator:
    """
    The core of `batchqueue.aggregation.Aggregator`.
    """
    def __bool__(self, /) -> bool:
        """
        An aggregator is true, also while it has no groups.
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
        Take in a list of Arrow data: rows, or partials of an equal aggregation. A queue calls this without the interpreter.

        Args:
            batch: Objects with `__arrow_c_array__` or `__arrow_c_stream__`. All of them go in, or none.

        Raises:
            ConfigError: A column is missing or has another type than it can have or had before, or the partials are of
                another aggregation.
            BatchQueueError: There would be more than `max_groups` groups, and there is no next worker; or the data is
                broken.
        """
    @property
    def dropped(self, /) -> int:
        """
        Groups that were given up, because the next worker raised, or refused them at close.
        """
    def flush(self, /) -> None:
        """
        Hand all groups to the next worker now. Without one, nothing happens.
        """
    @property
    def hands_on(self, /) -> bool:
        """
        Whether there is a next worker.
        """
    def on_close(self, /) -> None:
        """
        Hand on everything, for the last time.

        Raises:
            BatchQueueError: The next worker refused some of it.
        """
    def on_idle(self, /) -> None:
        """
        Hand on everything: there is nothing to merge it with.
        """
    def partials(self, /) -> "Any":
        """
        Take all groups out, as a record batch of partials that an equal aggregator can take in, here or elsewhere.

        Returns:
            A `pyarrow.RecordBatch` (without pyarrow: an object with `__arrow_c_array__`), or None if there are no groups.
        """
    def result(self, /) -> "Any":
        """
        The keys and the measures of all groups, in the order in which the groups were met. They stay.

        Returns:
            A `pyarrow.RecordBatch` (without pyarrow: an object with `__arrow_c_array__`), or None if there are no groups.

        Raises:
            OverflowError: A sum of integers does not fit into 64 bits; the partials have it as a decimal.
        """
    def update(self, /, data: "Any") -> None:
        """
        Take in one piece of Arrow data, as `consume` does.
        """

@final
class Bell:
    """
    The partitions of one queue that tasks of one event loop wait for.
    """
    def __new__(cls, /) -> Bell: ...
    def fileno(self, /) -> int:
        """
        The file descriptor that can be read when there is something to hear.
        """
    def heard(self, /) -> list[int]:
        """
        The partitions that have room since the last call, or take nothing more.
        """
    def leave(self, /, partition: SupportsIndex) -> None:
        """
        Hear no more of a partition.
        """
    def listen(self, /, waiting: Waiting) -> None:
        """
        Hear of room in the partition that an item waits for, from now on.
        """

@final
class Inside:
    """
    One call into a handler, from the drain thread that makes it and waits for a coroutine. What the coroutine asks of a queue
    meanwhile is answered as if the drain thread had asked.
    """
    def __new__(cls, /) -> Inside:
        """
        On the drain thread, inside the handler.
        """
    @property
    def active(self, /) -> bool:
        """
        Whether the drain thread still waits.
        """
    def end(self, /) -> None:
        """
        The call has ended.
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
        Partitions that grow with `add_handler`: one for each handler up to `multiplier` per drain thread, then one for
        every two.

        Raises:
            ConfigError: `multiplier` is below 1.
        """
    @staticmethod
    def fixed(count: SupportsIndex) -> PartitionPolicy:
        """
        `count` partitions.

        Raises:
            ConfigError: `count` is below 1.
        """
    def resolve(
        self, /, threads: SupportsIndex, handlers: SupportsFloat | SupportsIndex = 0.0
    ) -> int:
        """
        The number of partitions.

        Args:
            threads: Drain threads.
            handlers: Handlers, by weight.
        """
    @staticmethod
    def thread_multiply(multiplier: SupportsIndex) -> PartitionPolicy:
        """
        `multiplier` partitions per drain thread.

        Raises:
            ConfigError: `multiplier` is below 1.
        """

@disjoint_base
class Queue:
    """
    The core of one queue; `batchqueue.BatchQueue` adds what is said in Python.
    """
    def __new__(
        cls,
        /,
        name: "str",
        config: "Any",
        selector: "str",
        select: "Any",
        consumers: "Any",
        per_thread: "bool",
    ) -> Queue:
        """
        Starts the drain threads. `consumers`: none for handlers, else one, or one per drain thread.
        """
    def __reduce__(self, /) -> "tuple[Any, ...]": ...
    def _add_handlers(
        self, /, item_type: "type | str", handlers: "Any", weight: "float", wait: "bool" = True
    ) -> None:
        """
        One handler for the type, or one for each of as many partitions. `wait`: until no thread is inside one that it had.
        """
    def _close_to_outside(self, /) -> None:
        """
        Refuse outside threads; drain threads may still produce.
        """
    def _stats(self, /) -> "dict[str, Any]":
        """
        The core's snapshot, for the facade's `BatchQueueStats`.
        """
    def flush(self, /, timeout: SupportsFloat | SupportsIndex | None = None) -> bool:
        """
        Wait until all items accepted before the call have been handled.

        Args:
            timeout: Seconds to wait; None waits as long as it takes.

        Returns:
            True: they have. False: time ran out, or a shutdown abandoned some.

        Raises:
            BatchQueueError: Called from a drain thread, which would wait for itself.
            QueueForkedError: The queue was made before a fork.
        """
    @property
    def name(self, /) -> str: ...
    def produce(
        self, /, item: Any, *, timeout: SupportsFloat | SupportsIndex | None = None
    ) -> bool:
        """
        Put one item in.

        Args:
            item: Any object. It goes to the handler of exactly its class.
            timeout: Seconds to wait for space with BLOCKING; None waits as long as it takes.

        Returns:
            True: accepted. False: refused, because the partition is full and the strategy IF_POSSIBLE, or because the
            queue is shut down.

        Raises:
            ProduceTimeoutError: The partition stayed full for the whole time-out.
            ReentrantProduceError: A handler of this queue would wait for itself.
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
        Put the rows of Arrow data in, split by the values of one column, the tags.

        Each tag's rows go to the handler that `add_handler("tag", ...)` registered, as a list of `pyarrow.RecordBatch`,
        in the order that they had; without pyarrow, as objects with `__arrow_c_array__`. The buffer and all counts
        are in rows. Where a tag's rows stand next to each other nothing is copied.

        Args:
            batch: Anything with `__arrow_c_array__` or `__arrow_c_stream__`, like a record batch or a table of pyarrow,
                polars, DuckDB or nanoarrow.
            type_column: Name of the column with the tags: strings, integers (7 is the tag "7"), or a dictionary of
                them. Rows with null, or a tag that has no handler, count as unhandled.
            timeout: Seconds in all, from the call on, after which a full partition is not waited for with BLOCKING; None
                waits as long as it takes.

        Returns:
            Rows accepted: all, unless the strategy is IF_POSSIBLE and a partition full, or the queue is shut down.

        Raises:
            ConfigError: No Arrow data, no such column, one of another type, or a selector by key or by function.
            BatchQueueError: The stream of batches failed.
            ProduceTimeoutError: A partition stayed full. Each error, and an interrupt like KeyboardInterrupt, says in
                `accepted` how many rows are in: those of all batches before the last that was read, and of that one some
                tags' rows, not the first so many.
            ReentrantProduceError: A handler of this queue would wait for itself.
            QueueForkedError: The queue was made before a fork.
        """
    def produce_many(
        self, /, items: Any, *, timeout: SupportsFloat | SupportsIndex | None = None
    ) -> int:
        """
        Put many items in, in order, up to the first that is refused.

        Args:
            items: Any iterable. A list or a tuple is taken in large pieces, which is several times faster.
            timeout: Seconds in all to wait for space with BLOCKING; None waits as long as it takes.

        Returns:
            The number of items accepted: the first so many.

        Raises:
            ProduceTimeoutError: A partition stayed full; `accepted` of the error says how many are in. An interrupt,
                like KeyboardInterrupt, carries `accepted` as well.
            ReentrantProduceError: A handler of this queue would wait for itself.
            QueueForkedError: The queue was made before a fork.
        """
    def rebalance(self, /) -> int:
        """
        Run the balancer now, on the time since its last run.

        Called from a drain thread it asks for a run, does not wait for it, and returns 0.

        Returns:
            Partitions whose wanted drain thread changed; 0 without a balancer. Each moves when its thread has ended the
            cycle it is in.

        Raises:
            QueueForkedError: The queue was made before a fork.
        """
    def remove_handler(self, /, item_type: "type | str") -> bool:
        """
        Take a type's handler away: items of the type are unhandled from now on.

        The handler gets the batch that a drain thread may have in hand, and then `on_close`, unless it serves another
        type of this queue. When the call returns, no thread is inside it and none will enter. Called from a drain
        thread it does not wait for that.

        Args:
            item_type: The class, or the tag.

        Returns:
            False: the type had no handler, or the queue is shut down.

        Raises:
            ConfigError: Neither a class nor a tag.
            QueueForkedError: The queue was made before a fork.
        """
    @property
    def running(self, /) -> bool:
        """
        Whether the queue takes items.
        """
    def shutdown(self, /, timeout: SupportsFloat | SupportsIndex | None = None) -> int:
        """
        Refuse every new item, deliver what was accepted, and end the drain threads.

        Called from a handler of this queue, it closes and returns; the drain threads end by themselves.

        Args:
            timeout: Seconds to wait; None waits as long as it takes.

        Returns:
            Abandoned items: 0 unless time ran out.

        Raises:
            QueueForkedError: The queue was made before a fork.
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
        `multiplier` drain threads per core that this process may use, rounded half up, at least 1.

        Raises:
            ConfigError: `multiplier` is not a finite number above 0.
        """
    @staticmethod
    def cpu_cores_with_base(
        base: SupportsIndex, multiplier: SupportsFloat | SupportsIndex
    ) -> ThreadPolicy:
        """
        `base` drain threads and `multiplier` more per core, rounded half up.

        Raises:
            ConfigError: `base` is negative, or `multiplier` is not a finite number above 0.
        """
    @staticmethod
    def fixed(count: SupportsIndex) -> ThreadPolicy:
        """
        `count` drain threads, whatever the machine.

        Raises:
            ConfigError: `count` is below 1.
        """
    def resolve(self, /, cores: SupportsIndex | None = None) -> int:
        """
        The number of drain threads, at least 1.

        Args:
            cores: Cores of the machine; None asks for those that this process may use.
        """

@final
class Waiting:
    """
    An item whose partition is full. It is refused when it is given up, at the latest with the end of this object.
    """
    def again(self, /, inside: "Inside | None") -> bool | None:
        """
        Put it in, if there is room. True: it is in. False: the queue is shut down. None: it still waits.
        """
    @property
    def partition(self, /) -> int | None:
        """
        The partition that it waits for; None when it is settled.
        """
    def refuse(self, /) -> None:
        """
        Give up. Nothing happens when it is settled.
        """
    def time_out(self, /, accepted: "int") -> "BaseException | None":
        """
        Give up because the time is over: the error to raise.
        """

def after_fork_in_child() -> None:
    """
    In a forked child: the drain threads are not here, and their locks may be held for ever.
    """

def close_all() -> None:
    """
    Closes every live queue, registered or not, the last created first: what was accepted is delivered, within each
    queue's `shutdown_timeout`, counted from now.
    """

def flush_until(queue: "Queue", timeout: "float | None", stop: "Any") -> bool:
    """
    `flush` for a thread whose wait ends when the event `stop` is set.
    """

def is_exiting() -> bool:
    """
    Whether the exit of the interpreter has begun to close the queues.
    """

def remove_handler_soon(queue: "Queue", item_type: "type | str") -> bool:
    """
    `remove_handler` without a wait.
    """

def room(queue: "Queue", partition: "int") -> int:
    """
    How many items find room in a partition; all that may be when the queue is shut down.
    """

def shutdown_until(
    queue: "Queue", timeout: "float | None", stop: "Any", inside: "Inside | None"
) -> int:
    """
    `shutdown` in the same way; `inside`: the handler call that asks for it.
    """

def thread_count(threads: ThreadPolicy, partitions: PartitionPolicy) -> int:
    """
    Drain threads that a queue with these policies gets.
    """

def try_produce(
    queue: "Queue", item: "Any", bell: "Bell | None", ahead: "int | None", inside: "Inside | None"
) -> "bool | Waiting":
    """
    Put one item in without waiting. A `Waiting` may be tried again.

    Args:
        bell: Which partitions tasks of the loop wait for: there the item waits as well, behind them.
        ahead: The partition where it is the caller's turn.
        inside: The handler call that the caller belongs to.
    """

def try_produce_many(
    queue: "Queue",
    items: "list[Any] | tuple[Any, ...]",
    start: "int",
    bell: "Bell | None",
    ahead: "int | None",
    inside: "Inside | None",
) -> "tuple[int, bool | Waiting | None]":
    """
    Put the items of a list or a tuple in from `start` on, without waiting. The rest is as in `try_produce`.

    Returns:
        How many of them all are in then, and what became of the next one: True: there is none, None: its turn is later.
    """
