"""Sinks that only count rows: the cost of Spark and its Python boundary without batchqueue."""

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType


@dataclass
class Counted(WriterCommitMessage):
    """The number of rows of a task."""

    rows: int


def counted(batches: Iterator[pa.RecordBatch]) -> Counted:
    return Counted(sum(batch.num_rows for batch in batches))


class CountingWriter(DataSourceArrowWriter):
    """Counts the rows of a batch."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return counted(iterator)


class CountingStreamWriter(DataSourceStreamArrowWriter):
    """Counts the rows of a stream."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return counted(iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        pass


class CountingSource(DataSource):
    """A sink that only counts rows."""

    @classmethod
    def name(cls) -> str:
        return "counting"

    def writer(self, schema: StructType, overwrite: bool) -> CountingWriter:
        return CountingWriter()

    def streamWriter(self, schema: StructType, overwrite: bool) -> CountingStreamWriter:
        return CountingStreamWriter()
