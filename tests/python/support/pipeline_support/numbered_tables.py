"""Sources of the numbers 0, 1, 2 and so on: files, an Iceberg table, a Lance dataset.

Each split has `SPLIT_ROWS` rows. What is not installed is skipped.
"""

from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from batchqueue.pipeline import FileSource, IcebergSource, LanceSource, Source
from pipeline_support.tables import numbers

SPLIT_ROWS = 500


def files(folder: Path, rows: int) -> Source:
    """Four Parquet files."""
    each = -(-rows // 4)
    for number, first in enumerate(range(0, rows, each)):
        table = numbers(first, min(rows, first + each))
        pq.write_table(table, folder / f"{number}.parquet", row_group_size=SPLIT_ROWS)
    return FileSource(f"{folder}/*.parquet", name="numbers")


def iceberg(folder: Path, rows: int) -> Source:
    """A table of one snapshot, with a data file for each split."""
    pytest.importorskip("pyiceberg", reason="pyiceberg is not installed")
    pytest.importorskip("sqlalchemy", reason="sqlalchemy is not installed")
    from pipeline_support.iceberg_shop import Shop

    shop, paths = Shop(folder), []
    for first in range(0, rows, SPLIT_ROWS):
        paths.append(f"{folder}/warehouse/{first:09}.parquet")
        pq.write_table(numbers(first, min(rows, first + SPLIT_ROWS)), paths[-1])
    shop.orders.add_files(paths)
    shop.catalog.engine.dispose()
    return IcebergSource("shop.orders", catalog=shop.properties, name="numbers")


def lance(folder: Path, rows: int) -> Source:
    """A dataset of a few fragments."""
    dataset = pytest.importorskip("lance", reason="pylance is not installed")
    uri = f"{folder}/numbers.lance"
    dataset.write_dataset(numbers(0, rows), uri, max_rows_per_file=20 * SPLIT_ROWS)
    return LanceSource(uri, split_rows=SPLIT_ROWS, name="numbers")


KINDS: dict[str, Callable[[Path, int], Source]] = {
    "files": files,
    "iceberg": iceberg,
    "lance": lance,
}


def numbered(kind: str, folder: Path, rows: int) -> Source:
    """Make a source of one kind in a new folder."""
    folder.mkdir()
    return KINDS[kind](folder, rows)
