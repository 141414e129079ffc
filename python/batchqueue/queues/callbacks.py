"""Functions that the core calls: log lines, tracebacks, balancers, failed parts, dead letters."""

import functools
import inspect
import logging
import operator
import sys
import traceback
from abc import ABCMeta
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from itertools import accumulate
from types import AsyncGeneratorType, GeneratorType
from typing import Any, Generic, TypeVar

from batchqueue import _core
from batchqueue.base.words import a_type, counted, type_name
from batchqueue.exceptions import BatchFailed, ConfigError

_NOT_RESULTS = (str, bytes, bytearray, Mapping)
"""Types with `__getitem__` that are not sequences of results."""

_log = logging.getLogger("batchqueue")


def warn(line: str) -> None:
    """Log a line of the core that may call for action."""
    _log.warning("%s", line)


def inform(line: str) -> None:
    """Log a line of the core that reports an expected event."""
    _log.info("%s", line)


def describe_error(error: BaseException) -> str:
    """Return an exception with its traceback, for the log."""
    return "".join(traceback.format_exception(error)).rstrip()


def virtual_base(item_type: type, handled: list[type]) -> str | None:
    """Return the name of the first abstract class that a class is a virtual subclass of, or None.

    Args:
        item_type: The class; it derives from none of `handled`.
        handled: The classes that have handlers.
    """
    bases = (base for base in handled if isinstance(base, ABCMeta) and issubclass(item_type, base))
    base = next(bases, None)
    return None if base is None else type_name(base)


def assign(
    function: Callable[[list[float], list[int], int], Any],
    load: list[float],
    owner: list[int],
    threads: int,
) -> list[int] | str | None:
    """Call a custom balancer.

    Returns:
        The plan as plain ints, None to leave all partitions where they are, or the reason why the
        plan is invalid.
    """
    plan = function(load, owner, threads)
    if plan is None:
        return None
    try:
        # Clamp to the range of the core's integers; the core rejects invalid thread numbers.
        return [max(-1, min(operator.index(thread), 1 << 31)) for thread in plan]
    except TypeError:
        return (
            f"the custom balancer returned {plan!r}: "
            "give a list with one drain thread per partition, or None"
        )


def check_result(result: object) -> None:
    """Raise if a handler's return value shows that its work failed or never ran.

    Raises:
        ConfigError: The result is a generator, whose body has not run; an awaitable, which nothing
            awaits; or the class `BatchFailed`, which names nothing.
        BaseException: The result is a failed future; this is its error.
    """
    if isinstance(result, (GeneratorType, AsyncGeneratorType)):
        if isinstance(result, GeneratorType):
            result.close()
        raise ConfigError(
            f"the handler returned {a_type(result)}, whose body has not run; write a "
            "function without `yield`, or consume the generator in the handler"
        )
    if isinstance(result, type) and issubclass(result, BatchFailed):
        raise ConfigError(
            f"the handler returned the class {result.__name__}; return an instance that names what "
            "failed, for instance BatchFailed(indexes=[0])"
        )
    futures: Any = sys.modules.get("concurrent.futures")
    if futures is not None and isinstance(result, futures.Future):
        future: Any = result
        if future.done():
            future.result()
        else:
            future.add_done_callback(_report_late_failure)
    elif inspect.isawaitable(result):
        if inspect.iscoroutine(result):
            result.close()  # avoids the warning that it was never awaited
        raise ConfigError(
            f"the handler returned {a_type(result)}, which is never awaited; give an "
            "`async def` to an AsyncBatchQueue, or wait for the result in the handler"
        )


def _report_late_failure(future: Any) -> None:
    error = None if future.cancelled() else future.exception()
    if future.cancelled() or error is not None:
        text = "it was cancelled" if error is None else describe_error(error)
        warn(
            "a future that a handler returned failed after its batch had counted as consumed; wait "
            f"for it in the handler, so that the batch counts as failed: {text}"
        )


def queue_restarted() -> None:
    """Adapt to the host process when a queue starts: a new one, or one restarted after a fork."""
    note_host()


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class DeadLetter(Generic[T]):
    """An item that failed in its last attempt. A `dead_letter` handler gets a list of them.

    Attributes:
        item: The item; for Arrow data, a record batch of rows that failed together.
        error: The exception of the last attempt; if that is a `BatchFailed`, what its `error_of`
            returns for the item: the `BatchFailed`, unless a subclass overrides it.
        attempts: The number of attempts, including the first.
        queue: The name of the queue.
        item_type: The class of the item, or the tag of the rows, empty if they have none. A
            consumer may get rows with several tags together; this is the tag of the first.
    """

    item: T
    error: BaseException
    attempts: int
    queue: str
    item_type: type | str


def add_dead_letters(  # noqa: PLR0917 - the core passes them by position
    letters: list[DeadLetter[Any]],
    items: list[Any],
    types: list[type | str],
    error: BaseException,
    attempts: int,
    queue: str,
) -> None:
    """Append the items of one call that failed for good."""
    error_of = error.error_of if isinstance(error, BatchFailed) else lambda _: error
    letters += [
        DeadLetter(item, error_of(item), attempts, queue, item_type)
        for item, item_type in zip(items, types, strict=True)
    ]


def results_of(name: str, returned: Any, count: int) -> list[Any]:
    """Return the results that a handler returned for a batch with submitted items, as a list.

    Args:
        name: The name of the handler.
        returned: A sequence with one result for each item.
        count: The number of items in the batch.

    Raises:
        ConfigError: `returned` is not such a sequence.
    """
    what = f"an object of class {type(returned).__qualname__}"
    if returned is None:
        what = "None"
    elif not isinstance(returned, _NOT_RESULTS) and hasattr(type(returned), "__getitem__"):
        results = list(returned)
        if len(results) == count:
            return results
        what = counted(len(results), "result")
    raise ConfigError(
        f"handler {name} returned {what} for a batch of {count} with submitted items; return a "
        "list with one result for each item of the batch"
    )


def failed_positions(
    error: BatchFailed,
    batch: list[Any],
    original: list[Any] | None,
    count: int,
    sizes: list[int] | None,
) -> list[int]:
    """Return the positions of the failed items or rows of a batch, in ascending order.

    Args:
        error: What the handler raised or returned.
        batch: The list that the handler got, as the handler left it.
        original: A copy from before the call, or None if the queue has none.
        count: The length of the list before the call.
        sizes: The number of rows of each item, or None for objects.

    Raises:
        ConfigError: The error names something that is not in the batch, or names something twice,
            or the handler changed the length of its list.
    """
    if len(batch) != count:
        raise ConfigError(
            f"BatchFailed is about a list that had {counted(count, 'item')} and has {len(batch)} "
            "now; leave the list as long as it was"
        )
    if error.results is not None and len(error.results) != count:
        raise ConfigError(
            f"BatchFailed has {counted(len(error.results), 'result')} for a list of "
            f"{counted(count, 'item')}; give one for each item of the list, those that failed "
            "included"
        )
    given = batch if original is None else original
    named = error.indexes or []
    most = count if sizes is None else sum(sizes)
    beyond = next((number for number in named if number >= most), None)
    if beyond is not None:
        raise ConfigError(f"BatchFailed has the index {beyond}; give 0 to {most - 1}")
    if len(set(named)) < len(named):
        raise ConfigError("BatchFailed has an index twice; give each once")
    # Find items by identity: the handler may have sorted its list.
    if sizes is None:
        items = [batch[at] for at in named] if error.items is None else error.items
        return sorted(_places(items, given))
    starts = list(accumulate(sizes, initial=0))
    blocks = _places(batch if error.items is None else error.items, given)
    rows = [row for block in blocks for row in range(starts[block], starts[block + 1])]
    return sorted(rows if error.items is not None else (rows[at] for at in named))


def _places(items: list[Any], batch: list[Any]) -> list[int]:
    """Return the positions of objects in a batch, by identity."""
    places: dict[int, list[int]] = {}
    for position in range(len(batch) - 1, -1, -1):
        places.setdefault(id(batch[position]), []).append(position)
    positions = []
    for item in items:
        left = places.get(id(item))
        if not left:
            raise ConfigError(
                f"BatchFailed has an item of class {type(item).__qualname__} that is not in the "
                "batch, or not that often; give objects of the list itself, or indexes"
            )
        positions.append(left.pop())
    return positions


class ItemFuture(_core.FutureBase, Future):  # type: ignore[misc, override, type-arg]
    """A `concurrent.futures.Future` whose methods the core implements."""

    __init__ = object.__init__  # the core has initialized it

    def __repr__(self) -> str:
        if not self.done() or self.cancelled():
            what = self._state.partition("_")[0].lower()
        else:
            error = self.exception()
            what = (
                f"finished returned {type(self.result()).__name__}"
                if error is None
                else f"finished raised {type(error).__name__}"
            )
        return f"<ItemFuture at {id(self):#x} state={what}>"

    def __reduce__(self) -> Any:
        raise TypeError("the future of a queued item cannot be pickled; send its result")


# Adaptations of queues to the program that hosts their process.
#
# | host | adaptation |
# |---|---|
# | `multiprocessing`, `billiard` | a child closes its queues, even if it ends without `atexit` |
# | uWSGI without threads | a warning: the drain threads starve |
# | gevent, if it has patched `threading` | a warning: waits block all greenlets of a thread |


def note_host() -> None:
    """Adapt to the host of this process when a queue starts."""
    _close_with_children()
    for warning, applies in (_STARVED, _is_starved), (_GREENLETS, _has_greenlets):
        if warning not in _given and applies():
            _given.add(warning)
            _log.warning("%s", warning)


def _close_with_children() -> None:
    util: Any = sys.modules.get("multiprocessing.util")  # `billiard` uses its registries
    if util is not None:
        _close_with_later_children(util)
        _close_with_child()


@functools.cache
def _close_with_later_children(util: Any) -> None:
    """Have each child call `_close_with_child` as soon as `multiprocessing` has set it up.

    The child may have made queues before, in the modules that it imported.
    """
    util.register_after_fork(_close_with_child, lambda close: close())


def _close_with_child() -> None:
    """If this is a child of `multiprocessing` or `billiard`, have it close its queues when it ends.

    Unless it was spawned, such a child skips the exit of the interpreter: it runs its finalizers
    and calls `os._exit`. A worker of a `billiard.Pool`, such as those of Celery, runs no finalizers
    either; the last function that it calls is the `on_exit` of its pool.
    """
    # `billiard` sets the current process there as well.
    process: Any = sys.modules["multiprocessing.process"].current_process()
    if process._parent_pid is None:
        return
    library: Any = sys.modules["multiprocessing"]
    billiard: Any = sys.modules.get("billiard")
    if billiard is not None and isinstance(process, billiard.process.BaseProcess):
        library, pools, worker = billiard, sys.modules.get("billiard.pool"), process._target
        if pools is not None and isinstance(worker, pools.Worker):
            if getattr(worker.on_exit, "func", None) is not _end_worker:
                worker.on_exit = functools.partial(_end_worker, worker.on_exit)
            return
    is_spawned = (process._start_method or library.get_start_method()) == "spawn"
    if not is_spawned and not any(finalizer.still_active() for finalizer in _finalizers):
        util: Any = sys.modules["multiprocessing.util"]
        _finalizers[:] = [util.Finalize(None, _core.close_all, exitpriority=_LAST)]


_finalizers: list[Any] = []
"""The finalizer of this process, if it has one. A child clears its parent's."""

_LAST = -100
"""Runs after the finalizers of others, which may produce their last items."""


def _end_worker(on_exit: Callable[[int, int], object] | None, pid: int, exit_code: int) -> None:
    """Call the `on_exit` of a pool, which may produce last items, then close the queues."""
    try:
        if on_exit is not None:
            on_exit(pid, exit_code)
    finally:
        _core.close_all()


def _is_starved() -> bool:
    # The module exists only inside uWSGI.
    return getattr(sys.modules.get("uwsgi"), "has_threads", None) == 0


def _has_greenlets() -> bool:
    monkey: Any = sys.modules.get("gevent.monkey")
    return monkey is not None and bool(monkey.is_module_patched("threading"))


_given: set[str] = set()
"""The warnings already given by this process, or by its parent before the fork."""

_STARVED = (
    "uWSGI runs without --enable-threads: drain threads deliver only while a request runs Python "
    "code; add enable-threads = true, or use uWSGI 2.0.27 or later, which always has threads"
)

_GREENLETS = (
    "gevent has patched threading, but queues wait natively: produce into a full queue, flush, "
    "shutdown and the result of a future stop every greenlet of the thread; wait in gevent's "
    "thread pool, as in gevent.get_hub().threadpool.apply(queue.flush)"
)
