"""Keeps Python's cyclic garbage collector from costing more than the work itself."""

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_THRESHOLD = 50_000
"""New objects between two collections; Python's own setting is 700.

Items come by the hundred thousand and are hardly ever part of a cycle: collections would look at those that wait in
the queue and in the buffers again and again, and find nothing.
"""


class _Setting:
    """The setting of the process, which several threads may want changed at once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._before = gc.get_threshold()

    def change(self) -> None:
        with self._lock:
            if self._users == 0:
                self._before = gc.get_threshold()
                gc.set_threshold(_THRESHOLD, *self._before[1:])
            self._users += 1

    def restore(self) -> None:
        with self._lock:
            self._users -= 1
            if self._users == 0:
                gc.set_threshold(*self._before)


_setting = _Setting()


@contextmanager
def rare_collections() -> Iterator[None]:
    """Collect garbage less often while the context is open, in one thread or in several."""
    _setting.change()
    try:
        yield
    finally:
        _setting.restore()
