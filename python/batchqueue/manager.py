"""`BatchQueueManager`: the queues of this process, by name, and their common end."""

import atexit
import logging
import os
import threading
import time
from typing import Any, TypeVar

from batchqueue import _core
from batchqueue.config import BatchQueueConfig
from batchqueue.exceptions import ConfigError
from batchqueue.queue import BatchQueue

T = TypeVar("T")

_log = logging.getLogger("batchqueue")
_queues: dict[str, BatchQueue[Any]] = {}  # in order of creation
_lock = threading.RLock()


class BatchQueueManager:
    """One registry per process. Its methods may be called from any thread."""

    @staticmethod
    def create(name: str, config: BatchQueueConfig[T]) -> BatchQueue[T]:
        """Make a queue and register it.

        Raises:
            ConfigError: The name is taken, or a setting cannot be used.
        """
        with _lock:
            if _running(name) is not None:
                raise ConfigError(
                    f"the name {name!r} is taken by a registered queue; "
                    "choose another, call create_if_absent, or shut that queue down first"
                )
            queue = BatchQueue(name, config)
            for ended in [other for other, one in _queues.items() if not one.running]:
                del _queues[ended]  # shut down by itself
            _queues[name] = queue
            return queue

    @staticmethod
    def create_if_absent(name: str, config: BatchQueueConfig[T]) -> BatchQueue[T]:
        """Return the registered queue of this name, or make it.

        Settings that differ from those of the existing queue are logged as a warning that names
        both values.

        Raises:
            ConfigError: One of the two has a consumer and the other has handlers, or a setting
                cannot be used.
        """
        with _lock:
            existing = _running(name)
            if existing is None:
                return BatchQueueManager.create(name, config)
            _compare(name, existing.config, config)
            return existing

    @staticmethod
    def get(name: str) -> BatchQueue[Any] | None:
        """Return the registered queue of this name, or None."""
        with _lock:
            return _running(name)

    @staticmethod
    def names() -> list[str]:
        """Return the registered names, in order of creation."""
        with _lock:
            return [name for name in _queues if _running(name) is not None]

    @staticmethod
    def shutdown(name: str, timeout: float | None = None) -> int:
        """Shut one queue down and free its name.

        Args:
            name: A registered name; an unknown one is nothing to do.
            timeout: Seconds to wait; None waits as long as it takes.

        Returns:
            Abandoned items: 0 unless time ran out.
        """
        with _lock:
            queue = _queues.get(name)
        if queue is None:
            return 0
        abandoned = queue.shutdown(timeout)
        with _lock:
            if _queues.get(name) is queue:
                del _queues[name]
        return abandoned

    @staticmethod
    def shutdown_all(timeout: float | None = 30) -> dict[str, int]:
        """Shut all registered queues down, the last created first, so that a stage ends before the one it feeds.

        Every queue refuses outside threads at once; drain threads may produce into a queue until
        its turn comes, so that what an earlier stage hands on in `on_close` is delivered.

        Args:
            timeout: Seconds in all; None waits as long as it takes.

        Raises:
            ConfigError: The time-out is negative.

        Returns:
            Abandoned items by queue name: 0 unless time ran out.
        """
        if timeout is not None and not timeout >= 0:
            raise ConfigError(f"timeout is {timeout}; give seconds from 0 up, or None to wait")
        with _lock:
            queues = dict(_queues)
            _queues.clear()
        deadline = None if timeout is None else time.monotonic() + timeout
        for queue in queues.values():
            queue._close_to_outside()
        abandoned = {}
        for name, queue in reversed(queues.items()):
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            abandoned[name] = queue.shutdown(left)
        return abandoned


def _running(name: str) -> BatchQueue[Any] | None:
    """Return the registered queue; one that was shut down is as good as none."""
    queue = _queues.get(name)
    return queue if queue is not None and queue.running else None


def _compare(name: str, existing: BatchQueueConfig[Any], wanted: BatchQueueConfig[Any]) -> None:
    if _mode(existing) != _mode(wanted):
        raise ConfigError(
            f"the queue {name!r} exists with {_mode(existing)} and is now asked for with {_mode(wanted)}; "
            "use another name, or the same mode"
        )
    for setting in ("threads", "partitions", "buffer_size", "strategy"):
        has, asked = getattr(existing, setting), getattr(wanted, setting)
        if has != asked:
            _log.warning(
                "queue %s exists with %s=%s; the %s asked for now is ignored",
                name,
                setting,
                has,
                asked,
            )


def _mode(config: BatchQueueConfig[Any]) -> str:
    return (
        "handlers" if config.consumer is None and config.consumer_factory is None else "a consumer"
    )


def _forget_queues() -> None:
    global _lock  # noqa: PLW0603 - the parent's lock may have been held by a thread that is not here
    _lock = threading.RLock()
    _queues.clear()


os.register_at_fork(after_in_child=_forget_queues)

# After threads that the interpreter waits for have ended: their last items are delivered, too.
atexit.register(_core.close_all)
