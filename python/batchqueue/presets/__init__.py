"""Ready settings for common queues, as functions that return a `BatchQueueConfig`.

An argument of a preset sets the field of `BatchQueueConfig` with the same name, and means what is
documented there; a preset has defaults that suit its purpose. Its docstring describes only what the
config does not: arguments of the preset alone, and why a default differs. All of them take
`max_batch_items`, `max_delay_ms`, `retry`, `error_handler` and `dead_letter` as well;
`dataclasses.replace` changes the settings without an argument.

Example:
    >>> from batchqueue import BufferStrategy
    >>> from batchqueue.presets import l1_aggregation
    >>> config = l1_aggregation(strategy=BufferStrategy.BLOCKING)
    >>> config.buffer_size, config.max_idle_ms
    (20000, 50)
"""

from batchqueue.presets.aggregation import (
    METRICS_L1_AGGREGATION,
    METRICS_L2_PERSISTENCE,
    TOPN_WORKER,
    l1_aggregation,
    l2_persistence,
    top_n,
)
from batchqueue.presets.database import sql_batch
from batchqueue.presets.network import IO_POOL, exporter, remote_client

__all__ = [
    "IO_POOL",
    "METRICS_L1_AGGREGATION",
    "METRICS_L2_PERSISTENCE",
    "TOPN_WORKER",
    "exporter",
    "l1_aggregation",
    "l2_persistence",
    "remote_client",
    "sql_batch",
    "top_n",
]
