"""Metrics in Parquet files of a directory, without a server.

`store` opens transactions and reads; `transaction` changes one sink's partitions in memory, and
reads and writes data files; `manifest` is the small file whose replacement commits them; `copies`
backs stores up and restores them.
"""

from batchqueue.outputs.parquet.store import ParquetStore

__all__ = ["ParquetStore"]
