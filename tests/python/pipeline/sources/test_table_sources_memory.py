"""A paused reader of a table holds one split, however large the table is."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from batchqueue.pipeline.sources.iceberg import IcebergSource
from batchqueue.pipeline.sources.lance import LanceSource
from pipeline_support.processes import paused

FILES = 4
ROWS_PER_FILE = 6_000_000
FILE_BYTES = 16 * ROWS_PER_FILE
ALLOWED_BYTES = 64 << 20


def random_rows(number: int) -> pa.Table:
    """Rows that do not compress, 96 MB."""
    values = np.random.default_rng(number).random((2, ROWS_PER_FILE))
    return pa.table({"x": values[0], "y": values[1]})


def iceberg(folder: Path) -> Any:
    pytest.importorskip("pyiceberg", reason="pyiceberg is not installed")
    pytest.importorskip("sqlalchemy", reason="sqlalchemy is not installed")
    from pyiceberg.catalog import load_catalog

    properties = {
        "name": "tests",
        "uri": f"sqlite:///{folder}/catalog.db",
        "warehouse": f"file://{folder}",
    }
    catalog = load_catalog(**properties)
    catalog.create_namespace("shop")
    orders = catalog.create_table("shop.orders", random_rows(0).schema)
    for number in range(FILES):
        orders.append(random_rows(number))
    return IcebergSource("shop.orders", catalog=properties)


def lance(folder: Path) -> Any:
    lance = pytest.importorskip("lance", reason="pylance is not installed")
    uri = str(folder / "orders.lance")
    for number in range(FILES):
        lance.write_dataset(random_rows(number), uri, mode="append" if number else "create")
    return LanceSource(uri)


@pytest.mark.matrix(2)
@pytest.mark.parametrize("table", [iceberg, lance])
def test_paused_reader_holds_at_most_64_mb_above_one_split(table: Any, tmp_path: Path):
    found = paused(table(tmp_path), tmp_path)
    held = found["paused"] - found["before"]
    print(f"{table.__name__}: split {found['split'] >> 20} MB, held {held >> 20} MB")
    allowed = found["split"] + ALLOWED_BYTES
    assert held <= allowed
    assert 2 * allowed < FILES * FILE_BYTES, "to read on would be noticed"
