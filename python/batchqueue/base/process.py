"""The core in its process: where it may be loaded, what it does in a forked child and at the exit.

The package imports this before all else, because the order of these calls among those of the
application must not depend on the name that is used first.
"""

import atexit
import os
from collections.abc import Callable
from importlib import import_module


def _is_main_interpreter() -> bool:
    """Whether this is the first interpreter of the process."""
    for name in ("_interpreters", "_xxsubinterpreters"):  # from Python 3.13 on, and before
        try:
            interpreters = import_module(name)
        except ImportError:
            continue
        return bool(interpreters.get_current() == interpreters.get_main())
    return True  # this Python has no sub-interpreters


# The core's classes, its threads and its list of queues belong to the process: a sub-interpreter
# would share them, and when it ended, the queues of all other interpreters would be closed.
if not _is_main_interpreter():
    raise ImportError(
        "batchqueue cannot be imported in a sub-interpreter: its drain threads work for the main "
        "interpreter only; import it there, or in a separate process"
    )

from batchqueue import _core  # noqa: E402 - must not be loaded before the check

_before_core: list[Callable[[], object]] = []
_after_core: list[Callable[[], object]] = []


def before_core_in_child(call: Callable[[], object]) -> None:
    """Have a function called in each forked child before the core forgets its parent."""
    _before_core.append(call)


def after_core_at_exit(call: Callable[[], object]) -> None:
    """Have a function called at the exit after the core has ended all queues."""
    _after_core.append(call)


def _enter_child() -> None:
    for call in _before_core:
        call()
    # A forked child has no drain threads: its copies of the queues raise instead of hanging.
    _core.forget_parent(in_hook=True)


def _exit() -> None:
    # Each queue registers a callback, which ends it before anything that is older than the queue is
    # finalized. This runs after those, and ends queues that were made during the exit. All of them
    # run after the threads that the interpreter waits for, whose last items are therefore
    # delivered.
    _core.close_all()
    for call in _after_core:
        call()


_core.fill_statics()
_core.watch_forks()
os.register_at_fork(after_in_child=_enter_child)
atexit.register(_exit)
