"""A pipeline that reads a table and is killed again and again copies each row once."""

import pickle
from pathlib import Path
from typing import Any

import pytest
from pyarrow import dataset

from batchqueue.pipeline import IcebergSource, LanceSource
from pipeline_support.processes import killed_again_and_again
from pipeline_support.tables import numbers

ROWS = 20_000


def iceberg(folder: Path) -> Any:
    pytest.importorskip("pyiceberg", reason="pyiceberg is not installed")
    pytest.importorskip("sqlalchemy", reason="sqlalchemy is not installed")
    from pyiceberg.catalog import load_catalog

    properties = {
        "name": "tests",
        "uri": f"sqlite:///{folder}/catalog.db",
        "warehouse": f"file://{folder}/warehouse",
    }
    catalog = load_catalog(**properties)
    catalog.create_namespace("shop")
    orders = catalog.create_table("shop.orders", numbers(0, 0).schema)
    for first in range(0, ROWS, 1_000):
        orders.append(numbers(first, first + 1_000))
    return IcebergSource("shop.orders", catalog=properties)


def lance(folder: Path) -> Any:
    lance = pytest.importorskip("lance", reason="pylance is not installed")
    lance.write_dataset(numbers(0, ROWS), str(folder / "orders.lance"), max_rows_per_file=7_000)
    return LanceSource(str(folder / "orders.lance"))


def copied(folder: Path) -> list[int]:
    if not (folder / "copy").exists():
        return []
    table = dataset.dataset(folder / "copy", format="parquet").to_table()
    return table["id"].to_pylist() if table.num_rows else []


@pytest.mark.matrix(2)
@pytest.mark.parametrize("table", [iceberg, lance])
def test_each_row_is_copied_once_although_the_pipeline_is_killed(table: Any, tmp_path: Path):
    (tmp_path / "source.pickle").write_bytes(pickle.dumps(table(tmp_path)))
    killed_again_and_again(tmp_path, lambda: len(copied(tmp_path)), ROWS)
    assert sorted(copied(tmp_path)) == list(range(ROWS))
