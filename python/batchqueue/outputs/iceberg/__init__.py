"""Metrics in tables of an Iceberg catalog, which the engines of a lakehouse read.

`store` opens transactions and reads; `transaction` changes one sink's partitions in memory, and
commits its next snapshot; `table` is the Iceberg table of a sink, with the ledger in its snapshots;
`errors` turns errors into store errors.
"""

from batchqueue.outputs.iceberg.store import IcebergStore

__all__ = ["IcebergStore"]
