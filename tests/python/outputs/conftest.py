"""The stores that every promise of `MetricsStore` is tested on."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from batchqueue.outputs import SqliteStore

OpenStore = Callable[..., Any]


@pytest.fixture(params=["sqlite"])
def open_store(request: pytest.FixtureRequest, tmp_path: Path) -> OpenStore:
    """Returns descriptions of one store, empty at the start, with the given arguments."""

    def sqlite(**arguments: Any) -> SqliteStore:
        return SqliteStore(tmp_path / "metrics.db", **arguments)

    return {"sqlite": sqlite}[request.param]


@pytest.fixture
def store(open_store: OpenStore) -> Any:
    return open_store()
