"""The error of the Spark sink."""

from batchqueue import BatchQueueError


class SinkError(BatchQueueError):
    """An epoch cannot be committed, and nothing of it is in the store."""
