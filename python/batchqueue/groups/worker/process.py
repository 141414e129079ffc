"""What a worker has to do at the end of the interpreter."""

import atexit
import os
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from batchqueue.groups.worker.worker import Worker


def leave_at_exit(worker: "Worker") -> Callable[[], None]:
    """Leave when the interpreter ends, unless the worker is garbage then; return what does it."""
    known = weakref.ref(worker)

    def leave() -> None:
        found = known()
        if found is not None and os.getpid() == found._pid:
            found.leave()

    return atexit.register(leave)
