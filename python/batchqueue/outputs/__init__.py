"""Writers to use as handlers, and the stores they write to."""

from batchqueue.outputs.base import (
    BadRow,
    BadRows,
    Changed,
    ChangedKeys,
)
from batchqueue.outputs.iceberg import IcebergStore
from batchqueue.outputs.parquet import ParquetStore
from batchqueue.outputs.postgres import PostgresStore
from batchqueue.outputs.reading import MetricsReader, Selection, StoredMetric
from batchqueue.outputs.sqlite_store import SqliteStore
from batchqueue.outputs.store import (
    CommittingStoreWriter,
    Epoch,
    MetricsStore,
    StoreError,
    StoreTransaction,
    StoreUnavailableError,
    StoreWriter,
)

__all__ = [
    "BadRow",
    "BadRows",
    "Changed",
    "ChangedKeys",
    "CommittingStoreWriter",
    "Epoch",
    "IcebergStore",
    "MetricsReader",
    "MetricsStore",
    "ParquetStore",
    "PostgresStore",
    "Selection",
    "SqliteStore",
    "StoreError",
    "StoreTransaction",
    "StoreUnavailableError",
    "StoreWriter",
    "StoredMetric",
]
