"""`FileSink`: a directory of files, which readers see exactly as they were committed.

`commits` is the protocol on the disk, `writer` writes a file in one of the formats.
"""

from batchqueue.pipeline.sinks.files.sink import FileSink

__all__ = ["FileSink"]
