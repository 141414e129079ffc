"""What a run has to do with its process: other runs, forks, the end of the interpreter."""

import atexit
import os
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from batchqueue import _core
from batchqueue._background_log import BackgroundLog
from batchqueue.pipeline.errors import PipelineError, StageFailedError

if TYPE_CHECKING:
    from batchqueue.pipeline.pipeline import Pipeline
    from batchqueue.pipeline.runner.run import PipelineRun

_log = BackgroundLog("batchqueue.pipeline")

_over: "weakref.WeakKeyDictionary[Pipeline, threading.Event]" = weakref.WeakKeyDictionary()
"""By pipeline, what is set when its last run is over. Read and written under `_lock`."""

_lock = threading.RLock()


@contextmanager
def sole_run(pipeline: "Pipeline") -> Iterator[Callable[[threading.Event], None]]:
    """Refuse to run a pipeline twice: its sources and sinks would be called concurrently.

    Args:
        pipeline: What is to run.

    Yields:
        A function that takes the event which is set when the run is over.

    Raises:
        PipelineError: A run of the pipeline is not over.
    """
    _core.forget_parent()
    starting = threading.Event()
    with _lock:
        before = _over.get(pipeline)
        if before is not None and not before.is_set():
            raise PipelineError(
                f"pipeline {pipeline.name!r} runs already; stop that run first, or make another "
                "pipeline with its own sources and sinks"
            )
        _over[pipeline] = starting

    def admit(over: threading.Event) -> None:
        with _lock:
            _over[pipeline] = over

    # Without the lock: to start calls sinks and operators, which may wait for another pipeline.
    try:
        yield admit
    finally:
        starting.set()


def stop_at_exit(run: "PipelineRun") -> Callable[[], None]:
    """Stop when the interpreter ends, unless the run has ended; return what does it."""
    known = weakref.ref(run)

    def stop() -> None:
        found = known()
        if found is not None and os.getpid() == found._pid and found.running:
            try:
                found.stop()
            except StageFailedError as error:
                _log.warning("%s", error)
            except BaseException:  # Ctrl-C: the user does not want to wait
                found.abandon()
                raise

    return atexit.register(stop)


def _forget() -> None:
    global _lock  # noqa: PLW0603 - a thread that does not exist here may hold the parent's lock
    _lock = threading.RLock()
    _over.clear()


os.register_at_fork(after_in_child=_forget)
