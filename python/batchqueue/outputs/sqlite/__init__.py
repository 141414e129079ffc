"""Metrics in one SQLite file, without a server.

`store` connects and opens transactions; `transaction` runs the statements that `schema` writes.
"""

from batchqueue.outputs.sqlite.store import SqliteStore

__all__ = ["SqliteStore"]
