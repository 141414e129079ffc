"""The stores that every promise of `MetricsStore` is tested on: fixtures for several folders."""

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from batchqueue.outputs import IcebergStore, ParquetStore, PostgresStore, SqliteStore
from outputs_support.postgres_server import PostgresServer, postgres_server

__all__ = [
    "open_iceberg",
    "open_parquet",
    "open_postgres",
    "open_sqlite",
    "open_store",
    "postgres_server",
    "store",
]

OpenStore = Callable[..., Any]

_schemas = itertools.count()


@pytest.fixture
def open_sqlite(tmp_path: Path) -> OpenStore:
    return lambda **arguments: SqliteStore(tmp_path / "metrics.db", **arguments)


@pytest.fixture
def open_postgres(postgres_server: PostgresServer) -> OpenStore:
    schema = f"test_{next(_schemas)}"
    return lambda **arguments: PostgresStore(
        **{"conninfo": postgres_server.conninfo(), "schema": schema, **arguments}
    )


@pytest.fixture
def open_parquet(tmp_path: Path) -> OpenStore:
    return lambda **arguments: ParquetStore(tmp_path / "metrics", **arguments)


@pytest.fixture
def open_iceberg(tmp_path: Path) -> OpenStore:
    pytest.importorskip("pyiceberg", reason="pyiceberg is not installed")
    catalog = iceberg_catalog(tmp_path)
    return lambda **arguments: IcebergStore("metrics", catalog=catalog, **arguments)


def iceberg_catalog(folder: Path) -> dict[str, str]:
    """Returns the properties of a catalog in a file."""
    return {
        "name": "lake",
        "type": "sql",
        "uri": f"sqlite:///{folder}/catalog.db",
        "warehouse": f"file://{folder}/warehouse",
    }


TURNS = pytest.mark.matrix(4, name="stores in Iceberg")
"""A transaction takes tenths of a second."""


@pytest.fixture(params=["sqlite", "postgres", "parquet", pytest.param("iceberg", marks=TURNS)])
def open_store(request: pytest.FixtureRequest) -> OpenStore:
    """Returns a function that describes one store, empty at the start, with the given arguments."""
    return request.getfixturevalue(f"open_{request.param}")


@pytest.fixture
def store(open_store: OpenStore) -> Any:
    return open_store()
