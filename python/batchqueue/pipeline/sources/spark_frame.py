"""`SparkFrameSource`: a DataFrame of Spark, by partitions, read in the driver's process."""

from collections.abc import Iterator
from hashlib import sha256
from typing import TYPE_CHECKING, Any, NoReturn

import pyarrow as pa

from batchqueue.base.checks import require
from batchqueue.base.exact_cast import exact_cast_batch
from batchqueue.exceptions import ConfigError
from batchqueue.pipeline.contract import (
    Lag,
    Position,
    PositionError,
    SourceChangedError,
    SourceDataError,
    SourcePickleError,
    Split,
)
from batchqueue.pipeline.sources.splits import Step, SteppedSource, check_position

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_FIELDS: dict[str, tuple[type, ...]] = {
    "columns": (str,),
    "partitions": (int,),
    "partition": (int,),
}


class SparkFrameSource(SteppedSource):
    """The rows of a DataFrame, for a pipeline that runs in the driver's process.

    A split is one partition of the DataFrame. A separate Spark job computes it, and its rows arrive
    as Arrow record batches; a partition that is not read is not computed. A partition is held in
    memory as a whole, here and in the driver's JVM: `repartition` the DataFrame where that is too
    much.

    A partition that is read again, after a crash or by a restarted pipeline, must have the same
    rows, so the DataFrame must be built the same way each time, from input that does not change,
    and without `rand()`, `uuid()` and the like. After a shuffle the rows of a partition stay the
    same, but their order may differ; `sortWithinPartitions` keeps that the same, too.

    It belongs to a session, so it does not pickle; `Pipeline.on_spark` takes a DataFrame as
    `SparkSource`.

    Example:
        ```python
        orders = spark.read.parquet("orders").repartition(200, "city")
        pipeline.source(SparkFrameSource(orders))
        ```
    """

    bounded = True

    def __init__(self, df: "DataFrame", *, name: str = "frame") -> None:
        """Describe what to read. Nothing is computed yet.

        Args:
            df: A batch DataFrame of a classic session.
            name: The name in statistics, errors and checkpoints. Default: `"frame"`.

        Raises:
            ConfigError: `df` is not a DataFrame, belongs to Spark Connect, is a stream, or yields
                different rows each time it is computed.
            MissingPackageError: pyspark is not installed.
        """
        require("pyspark", "SparkFrameSource", "spark")
        _check_frame(df)
        if not isinstance(name, str) or not name:
            raise ConfigError(f"name is {name!r}; give a str of at least one character")
        self._df = df
        self.name = name
        self._arrow_schema: pa.Schema | None = None
        self._streams: Any = None

    def __reduce__(self) -> NoReturn:
        raise SourcePickleError(
            f"source {self.name!r} cannot be sent to another process: its DataFrame belongs to "
            "the Spark session of this one; write the rows to files and read these with "
            "FileSource, or run the pipeline with on_spark and SparkSource"
        )

    def __repr__(self) -> str:
        return f"SparkFrameSource({self._df!r})"

    def schema(self) -> pa.Schema:
        """Return the columns of the DataFrame in the types of Arrow."""
        if self._arrow_schema is None:
            schema = _arrow_schema(self._df)
            self._arrow_schema = pa.schema([field.remove_metadata() for field in schema])
        return self._arrow_schema

    def initial(self) -> Position:
        """Compute the shuffles needed, and return the position before the first partition."""
        return self._position(0)

    def read(self, split: Split) -> Iterator[pa.RecordBatch]:
        """Compute one partition, and no other."""
        schema = self.schema()
        try:
            context = self._df.sparkSession.sparkContext
            streams = context.runJob(
                self._rdd(), lambda rows: [row[0] for row in rows], [split.what]
            )
        except Exception as error:  # Spark raises errors of py4j as well as its own
            first_line = str(error).partition("\n")[0]
            raise SourceDataError(
                f"source {self.name!r}: partition {split.what} of the DataFrame cannot be "
                f"computed ({first_line}); see the log of Spark"
            ) from error
        streams.reverse()
        while streams:  # each is released before the next
            with pa.ipc.open_stream(pa.py_buffer(streams.pop())) as batches:
                for batch in batches:
                    yield exact_cast_batch(batch, schema)

    def lag(self, at: Position) -> dict[str, Lag]:
        """Return 0 rows at the end; before it, the number of following rows is unknown."""
        check_position(at, self.name, _FIELDS)  # the DataFrame belongs to the thread that reads
        ended = at["partition"] == at["partitions"]
        return {self.name: Lag(0, 0.0) if ended else Lag(None, None)}

    def commit(self, end: Position) -> None:
        """Do nothing: a DataFrame keeps nothing for its readers."""

    def _rdd(self) -> Any:
        if self._streams is None:
            from batchqueue.spark.task.arrow import map_in_arrow

            # One RDD for all partitions, so that the shuffle for the first serves the others.
            self._streams = map_in_arrow(self._df, _as_streams(), "stream binary").rdd
        return self._streams

    def _position(self, partition: int) -> Position:
        return {
            "columns": sha256(self._df.schema.json().encode()).hexdigest()[:16],
            "partitions": self._rdd().getNumPartitions(),
            "partition": partition,
        }

    def _check(self, position: Position) -> None:
        check_position(position, self.name, _FIELDS)
        now = self._position(position["partition"])
        if position != now:
            raise SourceChangedError(
                f"source {self.name!r}: the position {position!r} is of a DataFrame with other "
                f"columns or partitions; this one has {now['partitions']} partitions of "
                f"({', '.join(self._df.columns)}); build it in the same way as before, or begin "
                "with a new checkpoint"
            )
        if not 0 <= position["partition"] <= position["partitions"]:
            raise PositionError(
                f"source {self.name!r}: {position!r} is not one of its positions: partition is 0 "
                f"to {position['partitions']}; use the checkpoint of this source"
            )

    def _steps(self, start: Position) -> Iterator[Step]:
        at = start
        for partition in range(start["partition"], start["partitions"]):
            end = {**start, "partition": partition + 1}
            yield Split(self.name, at, end, None, None, partition)
            at = end


def _check_frame(df: Any) -> None:
    if type(df).__module__.startswith("pyspark.sql.connect"):
        raise ConfigError(
            "df is of Spark Connect, which cannot compute a single partition; give a DataFrame of "
            "a classic session, or write it to files and read them with FileSource"
        )
    from pyspark.sql import DataFrame

    if not isinstance(df, DataFrame):
        raise ConfigError(f"df is {df!r}; give a DataFrame of Spark")
    if df.isStreaming:
        raise ConfigError("df is a stream; give a batch DataFrame, or SparkSource and on_spark")
    frame: Any = df._jdf
    plan = frame.queryExecution().analyzed()
    if not plan.deterministic():
        raise ConfigError(
            "df gives other rows each time it is computed, because it uses a function as rand() or "
            "uuid(); write it to files first, and read these"
        )


def _arrow_schema(df: "DataFrame") -> pa.Schema:
    if hasattr(df, "toArrow"):  # since Spark 4.0
        return df.limit(0).toArrow().schema
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(df.schema)


def _as_streams() -> Any:
    """Return a function that tasks run; as a closure, it need not be installed there."""

    def as_streams(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        for batch in batches:
            sink = pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, batch.schema) as writer:
                writer.write_batch(batch)
            stream = pa.array([sink.getvalue().to_pybytes()], pa.binary())
            yield pa.RecordBatch.from_arrays([stream], names=["stream"])

    return as_streams
