"""The stores that a sink writes to."""

import pytest

from outputs_support.stores import (
    open_iceberg,
    open_parquet,
    open_postgres,
    open_sqlite,
    open_store,
    postgres_server,
)

__all__ = [
    "open_iceberg",
    "open_parquet",
    "open_postgres",
    "open_sqlite",
    "open_store",
    "postgres_server",
]


@pytest.fixture
def store(open_store):
    """A store that can be read before anything is written."""
    store = open_store()
    store.prepare()
    return store
