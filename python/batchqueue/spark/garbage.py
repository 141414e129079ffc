"""Keeps Python's cyclic garbage collector from costing more than the work itself."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

_THRESHOLD = 50_000
"""New objects between two collections; Python's own setting is 700.

Items come by the hundred thousand and are hardly ever part of a cycle, yet the collections took half of the
time: 60,000 flights of eleven items each cost 1.65 s of CPU with 700, 0.75 s with this, 0.77 s without any.
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
