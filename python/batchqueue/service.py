"""`run_until_signal`: the main thread of a service."""

import signal
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

from batchqueue import _core
from batchqueue.base.signals import STOP_SIGNALS, AwaitedFlag, Flag, signals
from batchqueue.base.words import a_type
from batchqueue.exceptions import ConfigError
from batchqueue.queues.queue import BatchQueue, Timeout, seconds_of

if TYPE_CHECKING:
    from batchqueue.aio.queue import AsyncBatchQueue

__all__ = ["run_until_signal"]


def run_until_signal(
    *queues: "BatchQueue[Any] | AsyncBatchQueue[Any]",
    signals: tuple[int, ...] = STOP_SIGNALS,
    timeout: Timeout = 30,
) -> int:
    """Wait for a signal in the main thread, then shut queues down and deliver what they accepted.

    Without it, SIGTERM ends a process immediately, and the items that its queues have accepted are
    lost. On the first signal, all queues refuse items from outside; then they are shut down one by
    one, the last created first, so that a stage can still feed an earlier created one. A second
    signal abandons the items that are not handled by then. The former signal handlers are restored
    before the call returns.

    Args:
        queues: The queues to shut down, at least one.
        signals: The signals that end the wait. A signal that the process ignores stays ignored.
            Default: SIGTERM and SIGINT.
        timeout: Seconds in all, or a `timedelta`, for the delivery after the signal. None means no
            limit. Default: 30 s.

    Returns:
        The number of abandoned items of all queues: 0 unless time ran out or a second signal came.

    Raises:
        ConfigError: The caller is not the main thread, or runs an event loop; an argument is
            invalid; or the process ignores all of the signals.
        QueueForkedError: A queue was made before a fork.

    Example:
        >>> from batchqueue import BatchQueue, run_until_signal
        >>> def main() -> None:
        ...     queue = BatchQueue("orders")
        ...     queue.add_handler(dict, print)
        ...     raise SystemExit(1 if run_until_signal(queue) else 0)
    """
    cores = _cores_of(queues)
    _check_signals(signals)
    seconds = seconds_of(timeout)
    _check_thread()
    names = ", ".join(core.name for core in cores)
    return _run(cores, f"shutting down {names}", signals, seconds)


def _run(
    cores: list[_core.Queue], what: str, numbers: tuple[int, ...], seconds: float | None
) -> int:
    stop, give_up = AwaitedFlag(), Flag()
    try:
        with signals(stop, give_up, what, numbers) as handled:
            if not handled:
                ignored = ", ".join(signal.Signals(number).name for number in numbers)
                raise ConfigError(
                    f"the process ignores {ignored}, so that the wait would never end; give "
                    "signals that it does not ignore, or set a handler first"
                )
            stop.wait()
            deadline = None if seconds is None else time.monotonic() + seconds
            for core in cores:
                _core.close_to_outside(core, seconds)
            return sum(_shut_down(core, deadline, give_up) for core in cores)
    finally:
        stop.close()


def _shut_down(core: _core.Queue, deadline: float | None, give_up: Flag) -> int:
    """Shut a queue down and return what it abandoned."""
    left = None if deadline is None else max(0.0, deadline - time.monotonic())
    try:
        return _core.shutdown_until(core, left, _Given(give_up), None)
    except _GivenUpError:
        return _core.Queue.shutdown(core, 0)


class _GivenUpError(Exception):
    """A second signal came during a shutdown."""


class _Given:
    """The flag of the second signal, as an event that the core polls a few times per second."""

    def __init__(self, flag: Flag) -> None:
        self._flag = flag

    def is_set(self) -> bool:
        if self._flag.is_set:
            raise _GivenUpError
        return False


def _cores_of(queues: tuple[Any, ...]) -> list[_core.Queue]:
    """Return the queues of the core, the last created first."""
    if not queues:
        raise ConfigError("run_until_signal got no queue; give at least one: run_until_signal(q)")
    cores: dict[int, _core.Queue] = {}
    for queue in queues:
        core = queue if isinstance(queue, _core.Queue) else getattr(queue, "_queue", None)
        if not isinstance(core, _core.Queue):
            raise ConfigError(
                f"run_until_signal got {queue!r}, {a_type(queue)}; give queues, each "
                "as an argument: run_until_signal(first, second)"
            )
        _ = core.running  # raises for a queue that was made before a fork
        cores[core._number] = core
    return [cores[number] for number in sorted(cores, reverse=True)]


def _check_signals(numbers: object) -> None:
    valid = signal.valid_signals()
    if not isinstance(numbers, tuple) or not numbers or not valid.issuperset(numbers):
        raise ConfigError(
            f"signals is {numbers!r}; give a tuple of signals, for instance "
            "(signal.SIGTERM, signal.SIGINT)"
        )
    never = {signal.SIGKILL, signal.SIGSTOP}.intersection(numbers)
    if never:
        raise ConfigError(
            f"signals has {', '.join(each.name for each in never)}, which no process can handle; "
            "leave it out"
        )


def _check_thread() -> None:
    if threading.current_thread() is not threading.main_thread():
        raise ConfigError(
            f"run_until_signal was called in thread {threading.current_thread().name!r}, and "
            "Python delivers signals to the main thread only; call it there, and run the rest in "
            "other threads"
        )
    asyncio: Any = sys.modules.get("asyncio")  # a program that has not imported it runs no loop
    if asyncio is not None and asyncio._get_running_loop() is not None:
        raise ConfigError(
            "run_until_signal was called in a coroutine and would block its event loop; use "
            "loop.add_signal_handler and `await queue.shutdown()`, or call it outside of the loop"
        )
