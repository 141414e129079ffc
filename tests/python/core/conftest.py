import faulthandler

import pytest

from batchqueue import BatchQueue, BatchQueueManager
from core_support.queues import config
from core_support.waits import HANG_S


@pytest.fixture(autouse=True)
def _no_test_hangs():
    """A test that hangs past every bounded wait ends the run with the stacks of all threads."""
    faulthandler.dump_traceback_later(HANG_S, exit=True)
    yield
    faulthandler.cancel_dump_traceback_later()


@pytest.fixture
def make_queue():
    """Makes queues, and shuts them down after the test, even if it fails."""
    made = []

    def make(name="queue", settings=None, **options):
        queue = BatchQueue(name, settings if settings is not None else config(**options))
        made.append(queue)
        return queue

    yield make
    for queue in reversed(made):
        queue.shutdown(2)


@pytest.fixture
def manager():
    """The manager, empty before and after the test."""
    assert BatchQueueManager.names() == []
    yield BatchQueueManager
    BatchQueueManager.shutdown_all(5)
