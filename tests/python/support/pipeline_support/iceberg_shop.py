"""An Iceberg table in a catalog in a file, and what is done to it."""

from itertools import pairwise
from pathlib import Path
from typing import Any

from pyiceberg.catalog import load_catalog
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.types import LongType, NestedField, StringType

from batchqueue.pipeline.sources.iceberg import IcebergSource
from pipeline_support.tables import numbers

COLUMNS = Schema(
    NestedField(1, "id", LongType(), required=False),
    NestedField(2, "text", StringType(), required=False),
)


class Shop:
    """A catalog in a file, with the table `shop.orders`."""

    def __init__(self, folder: Path) -> None:
        folder.joinpath("warehouse").mkdir()
        self.properties = {
            "name": "tests",
            "uri": f"sqlite:///{folder}/catalog.db",
            "warehouse": f"file://{folder}/warehouse",
        }
        self.catalog = load_catalog(**self.properties)
        self.catalog.create_namespace("shop")
        self.create()

    def create(self, **settings: Any) -> None:
        self.orders: Table = self.catalog.create_table("shop.orders", COLUMNS, **settings)

    def append(self, *bounds: int) -> None:
        """Append the rows between each two bounds, each in a separate snapshot and file."""
        for first, behind in pairwise(bounds):
            self.orders.append(numbers(first, behind))

    def source(self, **settings: Any) -> IcebergSource:
        return IcebergSource("shop.orders", catalog=self.properties, **settings)

    def expire(self, *positions: int) -> None:
        """Expire snapshots by their places in the history."""
        history = self.orders.refresh().snapshots()
        chosen = [history[position].snapshot_id for position in positions]
        self.orders.maintenance.expire_snapshots().by_ids(chosen).commit()
        self.orders.refresh()
