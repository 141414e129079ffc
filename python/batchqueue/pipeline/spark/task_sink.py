"""`TaskSink`: functions and sinks of users on Spark, in the tasks."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from batchqueue._words import a_type
from batchqueue.pipeline.contract import Sink
from batchqueue.pipeline.sinks.writing import write_to
from batchqueue.pipeline.spark.stages import Batches, SinkInput, chunks
from batchqueue.spark.task.arrow import map_in_arrow

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True)
class TaskSink:
    """Any other sink: it is pickled into the tasks of `foreachBatch`, at least once.

    Each task has a separate sink. After a failed task or epoch, rows come again.

    Attributes:
        sink: The sink.
        pipeline: The name of the pipeline.
        given: What reaches it.
        chunk_rows: The most rows of a chunk.
    """

    sink: Sink
    pipeline: str
    given: SinkInput
    chunk_rows: int

    @property
    def steps(self) -> tuple[str, ...]:
        """See `SparkSink`."""
        return tuple(map(str, self.given.last.steps)) if self.given.last else ()

    @property
    def text(self) -> str:
        """See `SparkSink`."""
        return f"at least once: foreachBatch, {a_type(self.sink)} in each task"

    def writer(self, df: "DataFrame", checkpoint: str | None) -> Any:
        """See `SparkSink`."""

        def write(epoch_rows: "DataFrame", _: int) -> None:
            self.write(epoch_rows, None)

        return df.writeStream.foreachBatch(write)

    def write(self, df: "DataFrame", txn_id: str | None) -> Mapping[str, Any]:
        """See `SparkSink`."""
        # Not this object, so that only what tasks need is sent to them.
        sink, pipeline, chunk_rows = self.sink, self.pipeline, self.chunk_rows
        schema, last = self.given.schema, self.given.last
        prepare = last.run if last else None

        def run(batches: Batches) -> Batches:
            prepared = batches if prepare is None else prepare(batches)
            rows = write_task(sink, pipeline, chunks(prepared, schema, chunk_rows))
            yield pa.RecordBatch.from_pydict({"rows": pa.array([rows], pa.int64())})

        counts = map_in_arrow(df, run, "rows long").collect()
        return {"guarantee": "at-least-once", "rows": sum(count.rows for count in counts)}


def write_task(sink: Sink, pipeline: str, given: Iterable[pa.RecordBatch]) -> int:
    """Write the chunks of one task, in writes of `batch_rows`; return how many rows there were."""
    rows = waiting_rows = 0
    waiting: list[pa.RecordBatch] = []
    with _opened(sink, pipeline):
        for chunk in given:
            waiting.append(chunk)
            waiting_rows += chunk.num_rows
            rows += chunk.num_rows
            if waiting_rows >= sink.batch_rows:
                write_to(sink, waiting)
                waiting, waiting_rows = [], 0
        if waiting:
            write_to(sink, waiting)
    return rows


@contextmanager
def _opened(sink: Sink, pipeline: str) -> Iterator[None]:
    """Call `open` and `close` of sinks that have them."""
    getattr(sink, "open", lambda _: None)(pipeline)
    try:
        yield
    finally:
        getattr(sink, "close", lambda: None)()
