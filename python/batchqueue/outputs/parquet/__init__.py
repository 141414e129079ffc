"""Metrics in Parquet files of a directory, without a server.

`store` opens transactions and reads; `transaction` changes one sink's partitions in memory;
`manifest` is the small file whose replacement commits them; `files` reads and writes the data.
"""

from batchqueue.outputs.parquet.store import ParquetStore

__all__ = ["ParquetStore"]
