"""Keeps Python's cyclic garbage collector from costing more than the work itself."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

_THRESHOLD = 50_000
"""New objects between two collections; Python's own setting is 700.

Items come by the hundred thousand and are hardly ever part of a cycle: collections would look at those that wait in
the queue and in the buffers again and again, and find nothing.
"""


@contextmanager
def rare_collections() -> Iterator[None]:
    """Collect garbage less often while the context is open."""
    before = gc.get_threshold()
    gc.set_threshold(_THRESHOLD, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
