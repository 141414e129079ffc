"""`BatchQueueManager`: the queues of this process by name, and their common shutdown."""

import concurrent.futures.thread  # noqa: F401 - cannot be imported at exit, as pyarrow would
import logging
import os
import threading
import time
from contextlib import AbstractContextManager
from typing import Any, TypeVar

import batchqueue.base.background_log  # noqa: F401 - its exit hook must follow `close_all`
from batchqueue import _core
from batchqueue.exceptions import ConfigError
from batchqueue.queues.config import BatchQueueConfig
from batchqueue.queues.queue import BatchQueue, Timeout, seconds_of

T = TypeVar("T")

_log = logging.getLogger("batchqueue")
_queues: dict[str, BatchQueue[Any]] = {}  # in order of creation
_lock = threading.RLock()


class BatchQueueManager:
    """The registry of queues, one per process. Its methods may be called from any thread."""

    @staticmethod
    def create(name: str, config: BatchQueueConfig[T]) -> BatchQueue[T]:
        """Make a queue and register it.

        Args:
            name: A name that is not taken by a running queue.
            config: The settings.

        Raises:
            ConfigError: The name is taken, or a setting is invalid.
        """
        with _registry():
            if _running(name) is not None:
                raise ConfigError(
                    f"the name {name!r} is taken by a registered queue; "
                    "choose another, call create_if_absent, or shut that queue down first"
                )
            created = BatchQueue(name, config)
            for ended in [other for other, queue in _queues.items() if not queue.running]:
                del _queues[ended]  # shut down without the manager
            _queues[name] = created
            return created

    @staticmethod
    def create_if_absent(name: str, config: BatchQueueConfig[T]) -> BatchQueue[T]:
        """Return the registered queue of this name, or make and register one.

        Settings that differ from those of the existing queue are ignored, with a warning that names
        both values.

        Args:
            name: The name of the queue.
            config: The settings.

        Raises:
            ConfigError: One of the two configs has a consumer and the other has handlers, or a
                setting is invalid.
        """
        with _registry():
            existing = _running(name)
            if existing is None:
                return BatchQueueManager.create(name, config)
        # Without the lock: a log handler may wait for a thread that asks for a queue.
        _compare(name, existing.config, config)
        return existing

    @staticmethod
    def get(name: str) -> BatchQueue[Any] | None:
        """Return the registered queue of this name, or None if there is no running one."""
        with _registry():
            return _running(name)

    @staticmethod
    def names() -> list[str]:
        """Return the names of the registered queues, in order of creation."""
        with _registry():
            return [name for name in _queues if _running(name) is not None]

    @staticmethod
    def shutdown(name: str, timeout: Timeout = None) -> int:
        """Shut one queue down and free its name.

        Args:
            name: The name of the queue. An unknown name is ignored.
            timeout: Seconds to wait. Default: no limit.

        Returns:
            The number of abandoned items: 0 unless time ran out.
        """
        with _registry():
            queue = _queues.get(name)
        if queue is None:
            return 0
        abandoned = queue.shutdown(timeout)
        _unregister(name, queue)
        return abandoned

    @staticmethod
    def shutdown_all(timeout: Timeout = 30) -> dict[str, int]:
        """Shut all registered queues down, in reverse order of creation.

        A stage thus ends before the stage that it feeds, if the latter was created first. All
        queues refuse outside threads immediately; drain threads may produce into a queue until its
        turn comes, so that items that another stage emits in `on_close` are delivered. Ctrl-C ends
        the wait: the queues continue to deliver, and another call waits for the remaining ones.

        Args:
            timeout: Seconds in all. None means no limit. Default: 30 s.

        Raises:
            ConfigError: The timeout is negative.

        Returns:
            The number of abandoned items by queue name: 0 unless time ran out.
        """
        seconds = seconds_of(timeout)
        with _registry():
            queues = dict(_queues)
        deadline = None if seconds is None else time.monotonic() + seconds
        abandoned = {}
        try:
            for queue in queues.values():
                _core.close_to_outside(queue, seconds)
            for name, queue in reversed(queues.items()):
                left = None if deadline is None else max(0.0, deadline - time.monotonic())
                abandoned[name] = _core.end(queue, left)
                _unregister(name, queue)
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            _core.wait_logged(list(queues.values()), left)
        except BaseException:
            # No shutdown follows: withdraw the deadline for the last attempt of batches that back
            # off.
            for queue in queues.values():
                _core.close_to_outside(queue, None)
            raise
        return abandoned


def _registry() -> AbstractContextManager[object]:
    """Return the lock of the registry; a forked child has its own."""
    _core.forget_parent()
    return _lock


def _running(name: str) -> BatchQueue[Any] | None:
    """Return the registered queue, or None if there is none or it was shut down."""
    queue = _queues.get(name)
    return queue if queue is not None and queue.running else None


def _unregister(name: str, queue: BatchQueue[Any]) -> None:
    with _registry():
        if _queues.get(name) is queue:  # another queue may have got the name meanwhile
            del _queues[name]


def _compare(name: str, existing: BatchQueueConfig[Any], wanted: BatchQueueConfig[Any]) -> None:
    if _mode(existing) != _mode(wanted):
        raise ConfigError(
            f"the queue {name!r} exists with {_mode(existing)} and is now requested with "
            f"{_mode(wanted)}; use another name, or the same mode"
        )
    for setting in ("threads", "partitions", "buffer_size", "strategy"):
        has, asked = getattr(existing, setting), getattr(wanted, setting)
        if has != asked:
            _log.warning(
                "queue %s exists with %s=%s; the requested %s is ignored",
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
    global _lock  # noqa: PLW0603 - a thread that does not exist here may hold the parent's lock
    _lock = threading.RLock()
    for name, queue in list(_queues.items()):
        if not queue.config.restart_after_fork:
            del _queues[name]


os.register_at_fork(after_in_child=_forget_queues)
