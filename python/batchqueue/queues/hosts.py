"""Adaptations of queues to the program that hosts their process.

| host | adaptation |
|---|---|
| `multiprocessing`, `billiard` | a child closes its queues, even if it ends without `atexit` |
| uWSGI without threads | a warning: the drain threads starve |
| gevent, if it has patched `threading` | a warning: waits block all greenlets of a thread |
"""

import functools
import logging
import sys
from collections.abc import Callable
from typing import Any

from batchqueue import _core

_log = logging.getLogger("batchqueue")


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
