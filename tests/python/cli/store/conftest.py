"""The stores that the commands are tested on."""

from outputs_support.stores import (
    open_parquet,
    open_postgres,
    open_sqlite,
    open_store,
    postgres_server,
)

__all__ = ["open_parquet", "open_postgres", "open_sqlite", "open_store", "postgres_server"]
