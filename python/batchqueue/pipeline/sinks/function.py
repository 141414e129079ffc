"""`FunctionSink`: calls a function with chunks, at least once for each."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from batchqueue.exceptions import ConfigError
from batchqueue.pipeline.sinks.writing import check_written, is_deferred

if TYPE_CHECKING:
    import pyarrow as pa

_MOST_ROWS = 1_000_000


class FunctionSink:
    """A sink that calls a function with a list of chunks.

    After a crash, chunks since the last cut come again. `chunk_origin` says where a chunk came
    from, so that the function can recognise it.

    Attributes:
        batch_rows: The rows that a call should have, if they are there.

    Example:
        >>> from batchqueue.pipeline import FunctionSink, IterableSource, Pipeline
        >>> def show(chunks):
        ...     for chunk in chunks:
        ...         print(chunk.to_pylist())
        >>> flow = Pipeline("cities")
        >>> cities = IterableSource(lambda: [{"city": "Rome"}, {"city": "Oslo"}])
        >>> flow.source(cities).to(FunctionSink(show))
        >>> _ = flow.run()
        [{'city': 'Rome'}, {'city': 'Oslo'}]
    """

    def __init__(
        self, function: "Callable[[list[pa.RecordBatch]], Any]", batch_rows: int = 500
    ) -> None:
        """Make a sink.

        Args:
            function: Gets one or more chunks, in order. Calls are never concurrent. What it raises
                ends the run.
            batch_rows: The rows that a call gets if they are there already, 1 to 1,000,000. A call
                never waits for them. Default: 500.

        Raises:
            ConfigError: An argument is invalid.
        """
        if not callable(function):
            raise ConfigError(
                f"function is {function!r}; give a function that takes a list of record batches"
            )
        if is_deferred(function):
            raise ConfigError(
                f"function is {function!r}, and a call of it would write nothing; give a plain "
                "function, for instance one that calls asyncio.run"
            )
        if not isinstance(batch_rows, int) or not 1 <= batch_rows <= _MOST_ROWS:
            raise ConfigError(f"batch_rows is {batch_rows!r}; give an int from 1 to {_MOST_ROWS:,}")
        self.batch_rows = batch_rows
        self._function = function

    def write(self, chunks: "list[pa.RecordBatch]") -> None:
        """Call the function."""
        if chunks:
            check_written(self._function(chunks))

    def __repr__(self) -> str:
        name = getattr(self._function, "__name__", type(self._function).__name__)
        return f"FunctionSink({name}, batch_rows={self.batch_rows})"
