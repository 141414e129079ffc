"""`SparkFileSink`: `FileSink` on Spark, by Spark's own writer of files."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from batchqueue.pipeline.errors import NotOnSparkError, SinkError
from batchqueue.pipeline.sinks.files import FileSink
from batchqueue.pipeline.sinks.files.writer import check_types
from batchqueue.pipeline.steps import SinkStep

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

_FORMATS = ("parquet", "csv")
_CUTS = "_batchqueue"


def spark_file_sink(step: SinkStep, sink: FileSink, schema: "pa.Schema") -> "SparkFileSink":
    """Return what a `FileSink` is on Spark.

    Args:
        step: The sink in the graph.
        sink: The sink.
        schema: The columns that reach it.

    Raises:
        NotOnSparkError: Spark does not write its format, or the format has no type for a column.
    """
    if sink.format not in _FORMATS:
        raise NotOnSparkError(
            f"{step} writes {sink.format!r}, and Spark writes {' and '.join(_FORMATS)}; use one of "
            "these"
        )
    try:
        check_types(schema, sink.format, str(sink.directory))
    except SinkError as error:
        raise NotOnSparkError(f"{step}: {error}") from error
    return SparkFileSink(str(step), sink.directory, sink.format, sink.compression)


@dataclass(frozen=True)
class SparkFileSink:
    """Files that Spark writes.

    A stream is exactly-once for readers that go by Spark's log in the directory; Spark itself does.

    Attributes:
        name: The sink in the graph, for errors.
        directory: Where the files go.
        format: Their format.
        compression: Their compression, or None for that of Spark.
        steps: None.
    """

    name: str
    directory: Path
    format: str
    compression: str | None
    steps: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """See `SparkSink`."""
        return f"exactly once for Spark's readers: {self.format} files in {self.directory}"

    def writer(self, df: "DataFrame", checkpoint: str | None) -> Any:
        """See `SparkSink`."""
        self._check_directory()
        writer = df.writeStream.format(self.format).option("path", self.directory.as_uri())
        return writer if self._codec is None else writer.option("compression", self._codec)

    def write(self, df: "DataFrame", txn_id: str | None) -> Mapping[str, Any]:
        """Add files to the directory. A `txn_id` changes nothing: a repeated write is added again.

        Raises:
            NotOnSparkError: A run in one process has written to the directory.
        """
        self._check_directory()
        writer = df.write.format(self.format).mode("append")
        if self._codec is not None:
            writer = writer.option("compression", self._codec)
        writer.save(self.directory.as_uri())
        return {"guarantee": "at-least-once"}

    @property
    def _codec(self) -> str | None:
        return None if self.compression is None else self.compression.lower()

    def _check_directory(self) -> None:
        if (self.directory / _CUTS).exists():
            raise NotOnSparkError(
                f"{self.name}: {self.directory} belongs to a pipeline that ran in one process, "
                "whose cuts Spark cannot continue; use another directory"
            )
