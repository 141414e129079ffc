"""The stores that every promise of `MetricsStore` is tested on."""

from outputs_support.stores import (
    open_iceberg,
    open_parquet,
    open_postgres,
    open_sqlite,
    open_store,
    postgres_server,
    store,
)

__all__ = [
    "open_iceberg",
    "open_parquet",
    "open_postgres",
    "open_sqlite",
    "open_store",
    "postgres_server",
    "store",
]
