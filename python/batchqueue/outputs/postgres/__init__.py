"""Metrics in tables of a PostgreSQL database.

`store` connects and opens transactions; `transaction` runs the statements that `schema` writes;
`errors` turns what psycopg raises into store errors with a remedy.
"""

from batchqueue.outputs.postgres.store import PostgresStore

__all__ = ["PostgresStore"]
