"""A Lance dataset, and what is done to it."""

from pathlib import Path
from typing import Any

import lance
import pyarrow as pa

from batchqueue.pipeline.sources.lance import LanceSource
from pipeline_support.tables import numbers


class Orders:
    """A dataset of 1,000 rows in three fragments of one version, and what is done to it."""

    def __init__(self, path: Path) -> None:
        self.uri = str(path)
        lance.write_dataset(numbers(0, 1_000), self.uri, max_rows_per_file=400)

    @property
    def now(self) -> Any:
        return lance.dataset(self.uri)

    def append(self, table: pa.Table) -> None:
        lance.write_dataset(table, self.uri, mode="append")

    def source(self, **settings: Any) -> LanceSource:
        return LanceSource(self.uri, **{"split_rows": 150, **settings})

    @property
    def data_files(self) -> list[Path]:
        return list(Path(self.uri, "data").iterdir())
