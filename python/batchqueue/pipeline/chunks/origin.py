"""`ChunkOrigin`: where a chunk of a sink came from, to recognise it when it comes again."""

import json
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from batchqueue.exceptions import ConfigError
from batchqueue.pipeline.contract import Position

if TYPE_CHECKING:
    import pyarrow as pa

_KEY = b"batchqueue.origin"


class ChunkOrigin(NamedTuple):
    """Where a chunk came from.

    A chunk that comes again after a crash has the same pipeline, source, partition, position,
    number and part, and the same rows, if the operators are deterministic and keep nothing back.
    Its cut may be another one. What an operator emitted at a cut, as `aggregate` does, has no
    position, and its rows need not be the same.
    """

    pipeline: str
    """The name of the pipeline."""
    source: str
    """The name of the source."""
    cut: int
    """The number of the cut that the chunk becomes a part of."""
    partition: str
    """The partition of the split; for what was emitted at a cut, the stage and worker."""
    position: Position | None
    """The beginning of the split; None for what was emitted at a cut."""
    number: int
    """The number of the chunk in the split, from 0."""
    part: str
    """Which part of the chunk it is, such as "1.0", if operators made several; else ""."""


class Origin(NamedTuple):
    """What the runner keeps of the origin of a chunk."""

    cut: int
    partition: str
    position: str | None
    number: int
    part: str = ""

    def child(self, number: int) -> "Origin":
        """Return the origin of one of several parts."""
        part = f"{self.part}.{number}" if self.part else str(number)
        return Origin(self.cut, self.partition, self.position, self.number, part)

    def __str__(self) -> str:
        if self.position is None:
            return f"what {self.partition} emitted at cut {self.cut}"
        part = f", part {self.part}" if self.part else ""
        return f"chunk {self.number}{part} of {self.partition!r} at {self.position}"


def with_origin(
    chunk: "pa.RecordBatch", pipeline: str, source: str, origin: Origin
) -> "pa.RecordBatch":
    """Return a chunk with its origin in the metadata of its schema; no data is copied."""
    cut, partition, position, number, part = origin
    # A part consists of digits and dots.
    text = f'{_beginning(pipeline, source, cut, partition, position)}, {number}, "{part}"]'
    return chunk.replace_schema_metadata({**(chunk.schema.metadata or {}), _KEY: text.encode()})


@lru_cache(maxsize=256)
def _beginning(pipeline: str, source: str, cut: int, partition: str, position: str | None) -> str:
    """Return the part of the JSON that all chunks of a split share."""
    return json.dumps([pipeline, source, cut, partition, position])[:-1]


def chunk_origin(chunk: "pa.RecordBatch") -> ChunkOrigin:
    """Return where a chunk that a sink was given came from.

    Args:
        chunk: As `Sink.write` or the function of a `FunctionSink` got it.

    Raises:
        ConfigError: It is not such a chunk.

    Example:
        >>> import pyarrow as pa
        >>> from batchqueue.pipeline import FunctionSink, IterableSource, Pipeline, chunk_origin
        >>> def show(chunks):
        ...     for chunk in chunks:
        ...         origin = chunk_origin(chunk)
        ...         print(origin.position, origin.number, chunk.num_rows)
        >>> orders = IterableSource(lambda: ({"cents": cents} for cents in range(3)), split_rows=2)
        >>> flow = Pipeline("orders")
        >>> flow.source(orders).to(FunctionSink(show, batch_rows=1))
        >>> _ = flow.run()
        {'rows': 0} 0 2
        {'rows': 2} 0 1
    """
    text = (chunk.schema.metadata or {}).get(_KEY)
    if text is None:
        raise ConfigError(
            "the chunk has no origin in the metadata of its schema; give a chunk as the sink got "
            "it, not a batch that was made of it"
        )
    pipeline, source, cut, partition, position, number, part = json.loads(text)
    at: Any = None if position is None else json.loads(position)
    return ChunkOrigin(pipeline, source, cut, partition, at, number, part)
