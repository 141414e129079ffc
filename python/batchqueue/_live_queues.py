"""The queues of this process that exist, whether the manager knows them or not."""

import weakref

from batchqueue import _core
from batchqueue.exceptions import QueueForkedError
from batchqueue.stats import BatchQueueStats

# In order of creation. Every access is one atomic step, without a lock: a queue may be made or
# collected anywhere, also in the middle of an access.
_references: dict[int, weakref.ref[_core.Queue]] = {}


def note_queue(queue: _core.Queue) -> None:
    """Add a queue, which is forgotten when it no longer exists."""
    reference = weakref.ref(queue, lambda gone: _references.pop(id(gone), None))
    _references[id(reference)] = reference


def live_queues() -> list[_core.Queue]:
    """Return the queues that exist, in order of creation, those that are shut down included."""
    queues = [reference() for reference in list(_references.values())]
    return [queue for queue in queues if queue is not None]


def live_stats() -> list[tuple[_core.Queue, BatchQueueStats]]:
    """Return the queues with a snapshot of each. Those made before a fork have none."""
    found = []
    for queue in live_queues():
        try:
            found.append((queue, BatchQueueStats.from_snapshot(_core.stats_of(queue))))
        except QueueForkedError:
            continue
    return found
