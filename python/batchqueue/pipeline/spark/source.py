"""`SparkSource`: a DataFrame as the source of a pipeline that runs on Spark."""

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, NoReturn

from batchqueue.exceptions import ConfigError
from batchqueue.pipeline.contract import Lag, Limit, Plan, Position, Split
from batchqueue.pipeline.errors import PipelineError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame


class SparkSource:
    """Any DataFrame of Spark as a source, batch or streaming.

    Spark's own reader plans and reads it, with its own limits, such as `maxFilesPerTrigger`:
    `pause` and the size of epochs do not apply to it. It runs with pyspark 3.5 and later.

    Times without a zone (TIMESTAMP_NTZ) become instants in the session's zone, as Spark's cast to
    TIMESTAMP reads them.

    Example:
        orders = SparkSource(spark.readStream.schema("city string, cents long").json("orders"))
        pipeline.source(orders).aggregate(by_city).to(sink)
        pipeline.on_spark(spark).start().awaitTermination()
    """

    def __init__(self, df: "DataFrame", *, name: str = "dataframe") -> None:
        """Describe a source; nothing is read.

        Args:
            df: The rows.
            name: Its name in statistics and errors. Default: "dataframe".

        Raises:
            ConfigError: `df` is not a DataFrame.
        """
        if not hasattr(df, "mapInArrow"):
            raise ConfigError(f"SparkSource got {df!r}; give a DataFrame of pyspark")
        self._given = df
        self._name = name

    @cached_property
    def df(self) -> "DataFrame":
        """The rows, without times that have no zone."""
        from batchqueue.spark.task.arrow import cast_to_instants

        return cast_to_instants(self._given)

    @property
    def name(self) -> str:
        """Its name in statistics and errors."""
        return self._name

    @property
    def bounded(self) -> bool:
        """Whether it ends: not if it is a stream."""
        return not self._given.isStreaming

    def schema(self) -> "pa.Schema":
        """Return the schema of its rows."""
        from batchqueue.pipeline.spark.stages import arrow_schema

        return arrow_schema(self.df.schema)

    def initial(self) -> Position:
        """Refuse: Spark plans this source."""
        self._refuse()

    def plan(self, start: Position, limit: Limit) -> Plan:
        """Refuse: Spark plans this source."""
        self._refuse()

    def between(self, start: Position, end: Position) -> Sequence[Split]:
        """Refuse: Spark plans this source."""
        self._refuse()

    def read(self, split: Split) -> "Iterator[pa.RecordBatch]":
        """Refuse: Spark reads this source."""
        self._refuse()

    def lag(self, at: Position) -> dict[str, Lag]:
        """Return nothing: Spark knows the lag of its readers."""
        return {}

    def commit(self, end: Position) -> None:
        """Do nothing: Spark keeps the position."""

    def _refuse(self) -> NoReturn:
        raise PipelineError(
            f"source {self._name!r} is a DataFrame, which only Spark can read; run the pipeline "
            "with pipeline.on_spark(spark)"
        )
