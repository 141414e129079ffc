"""Writers to use as handlers, and the stores they write to."""

from batchqueue.outputs.bad_rows import BadRow, BadRows
from batchqueue.outputs.changed_keys import Changed, ChangedKeys
from batchqueue.outputs.iceberg import IcebergStore
from batchqueue.outputs.parquet import ParquetStore
from batchqueue.outputs.postgres import PostgresStore
from batchqueue.outputs.reading import MetricsReader, Selection, StoredMetric
from batchqueue.outputs.sqlite import SqliteStore
from batchqueue.outputs.store import (
    Epoch,
    MetricsStore,
    StoreError,
    StoreTransaction,
    StoreUnavailableError,
)
from batchqueue.outputs.writer import CommittingStoreWriter, StoreWriter

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
