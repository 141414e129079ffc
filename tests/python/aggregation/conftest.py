import pytest

from aggregation_support import WAIT_S
from batchqueue import BatchQueue, BatchQueueConfig, ThreadPolicy


@pytest.fixture
def make_queue():
    """Makes queues that are shut down after the test."""
    queues = []

    def make(threads=1, **settings):
        config = BatchQueueConfig(
            threads=ThreadPolicy.fixed(threads), max_idle_ms=60_000, **settings
        )
        queues.append(BatchQueue(f"aggregators-{len(queues)}", config))
        return queues[-1]

    yield make
    for queue in queues:
        queue.shutdown(WAIT_S)
