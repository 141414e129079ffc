"""Metrics in tables of an Iceberg catalog, which the engines of a lakehouse read.

`store` opens transactions and reads; `transaction` changes one sink's partitions in memory;
`table` is the Iceberg table of a sink; `replacement` commits its next snapshot; `ledger` is what a
snapshot says of epochs.
"""

from batchqueue.outputs.iceberg.store import IcebergStore

__all__ = ["IcebergStore"]
