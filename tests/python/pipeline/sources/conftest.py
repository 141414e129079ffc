"""What the tests of sources share."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from batchqueue.pipeline.contract import Limit, Source
from core_support.kafka_broker import new_kafka_broker

if TYPE_CHECKING:
    from pipeline_support.iceberg_shop import Shop
    from pipeline_support.lance_orders import Orders

__all__ = ["new_kafka_broker"]

EVERYTHING = Limit(1 << 31, 1 << 40)


def read_all(source: Source, limit: Limit = EVERYTHING) -> list[dict[str, Any]]:
    """Returns all rows, as a run would read them."""
    at, rows = source.initial(), []
    while (plan := source.plan(at, limit)).splits:
        for split in plan.splits:
            rows += [row for batch in source.read(split) for row in batch.to_pylist()]
        at = plan.end
    return rows


@pytest.fixture(name="read_all")
def _read_all() -> Callable[..., list[dict[str, Any]]]:
    return read_all


@pytest.fixture
def shop(tmp_path: Path) -> "Iterator[Shop]":
    """An Iceberg table; its packages are imported only for the tests that ask for it."""
    from pipeline_support.iceberg_shop import Shop

    shop = Shop(tmp_path)
    yield shop
    shop.catalog.engine.dispose()


@pytest.fixture
def orders(tmp_path: Path) -> "Orders":
    """A Lance dataset of 1,000 rows."""
    from pipeline_support.lance_orders import Orders

    return Orders(tmp_path / "orders.lance")
