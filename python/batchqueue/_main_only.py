"""Refuses a sub-interpreter. The package imports it before the core, which must not be loaded there at all.

The core's classes, its threads and its list of queues are those of the process: a sub-interpreter
would share them, and its end would close the queues of all others.
"""

from importlib import import_module


def _is_main() -> bool:
    """Whether this is the interpreter that the process began with."""
    for name in ("_interpreters", "_xxsubinterpreters"):  # from Python 3.13 on, and before
        try:
            interpreters = import_module(name)
        except ImportError:
            continue
        return bool(interpreters.get_current() == interpreters.get_main())
    return True  # this Python has no others


if not _is_main():
    raise ImportError(
        "batchqueue cannot be imported in a sub-interpreter: its drain threads work for the main interpreter only; "
        "import it there, or in a process of its own"
    )
