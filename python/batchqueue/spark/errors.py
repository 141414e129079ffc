"""The errors of the Spark sink and of the adapters for handlers."""

from batchqueue import BatchQueueError


class SinkError(BatchQueueError):
    """An epoch cannot be committed. The store, or with shards that shard, has nothing of it."""


class DeliveryError(BatchQueueError):
    """An attempt did not deliver all of its rows. What it delivered stays with the handlers."""
