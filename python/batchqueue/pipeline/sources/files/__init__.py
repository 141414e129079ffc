"""`FileSource`: Parquet, Arrow, CSV and JSON files, local or on any filesystem of pyarrow."""

from batchqueue.pipeline.sources.files.source import FileSource

__all__ = ["FileSource"]
