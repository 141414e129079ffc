"""The check against sub-interpreters, where the core must not be loaded; imported before the core.

The core's classes, its threads and its list of queues belong to the process: a sub-interpreter
would share them, and when it ended, the queues of all other interpreters would be closed.
"""

from importlib import import_module


def _is_main() -> bool:
    """Whether this is the first interpreter of the process."""
    for name in ("_interpreters", "_xxsubinterpreters"):  # from Python 3.13 on, and before
        try:
            interpreters = import_module(name)
        except ImportError:
            continue
        return bool(interpreters.get_current() == interpreters.get_main())
    return True  # this Python has no sub-interpreters


if not _is_main():
    raise ImportError(
        "batchqueue cannot be imported in a sub-interpreter: its drain threads work for the main "
        "interpreter only; import it there, or in a separate process"
    )
