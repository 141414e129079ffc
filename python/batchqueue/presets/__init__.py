"""Ready settings for the usual queues: functions that return a config, every size an argument.

A preset returns a plain `BatchQueueConfig`; `dataclasses.replace` changes the settings that have no
argument here.
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
