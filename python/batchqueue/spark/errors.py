"""The errors of the Spark sink and of the adapters for handlers."""

from batchqueue import BatchQueueError


class SinkError(BatchQueueError):
    """An epoch cannot be committed, and nothing of it is in the store; with shards, nothing in that shard."""


class DeliveryError(BatchQueueError):
    """An attempt did not bring all of its rows to their handlers; what it brought stays with them."""
