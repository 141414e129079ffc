"""The stores that every promise of `MetricsStore` is tested on."""

import pytest

from outputs_support.stores import (
    iceberg_catalog,
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


@pytest.fixture
def lake(tmp_path):
    """The catalog of `open_iceberg`, as another program sees it."""
    from pyiceberg.catalog import load_catalog

    return load_catalog(**iceberg_catalog(tmp_path))
