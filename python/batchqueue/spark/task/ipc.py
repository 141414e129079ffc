"""One record batch as a compressed Arrow IPC stream, and back."""

import pyarrow as pa

_WRITE_OPTIONS = pa.ipc.IpcWriteOptions(compression="zstd")


def written(batch: pa.RecordBatch) -> bytes:
    """Return a record batch as a stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema, options=_WRITE_OPTIONS) as writer:
        writer.write_batch(batch)
    return bytes(sink.getvalue())


def read_batch(stream: bytes) -> pa.RecordBatch:
    """Return the record batch of a stream."""
    return pa.ipc.open_stream(stream).read_next_batch()
