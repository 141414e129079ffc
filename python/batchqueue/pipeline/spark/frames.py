"""The rows of a source as a DataFrame."""

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyspark

from batchqueue.pipeline.errors import NotOnSparkError
from batchqueue.pipeline.spark.arrow_types import spark_schema
from batchqueue.pipeline.spark.control import Control
from batchqueue.pipeline.spark.epochs import EpochSettings
from batchqueue.pipeline.spark.pickled_source import PickledSource
from batchqueue.pipeline.spark.spark_source import SparkSource
from batchqueue.pipeline.steps import SourceStep

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_NO_LETTER = re.compile(r"[^A-Za-z0-9_-]+")


@dataclass(frozen=True)
class FrameMaker:
    """Makes DataFrames of the rows of one source.

    Attributes:
        step: The source, under its name in the graph.
        pickled: The source as it is sent to Spark's processes; None for a DataFrame.
    """

    step: SourceStep
    pickled: PickledSource | None

    @classmethod
    def of(cls, step: SourceStep) -> "FrameMaker":
        """Check that Spark can read a source.

        Raises:
            NotOnSparkError: This pyspark cannot, or not these columns.
            SourcePickleError: It does not pickle.
        """
        if isinstance(step.source, SparkSource):
            return cls(step, None)
        try:
            from pyspark.sql.streaming.datasource import ReadLimit  # noqa: F401
        except ImportError as error:
            raise NotOnSparkError(
                f"{step} needs pyspark 4.2 or later, and here is {pyspark.__version__}, whose "
                "Python data sources cannot limit an epoch; use Spark's own reader: "
                "SparkSource(spark.readStream...)"
            ) from error
        spark_schema(step.source.schema(), str(step))
        return cls(step, PickledSource.of(step.source, step.name))

    @property
    def text(self) -> str:
        """What the source is on Spark, for `explain`."""
        if isinstance(self.step.source, SparkSource):
            kind = "a stream" if self.step.source.df.isStreaming else "a table"
            return f"DataFrame, {kind}; Spark's own reader and limits"
        return "data source in Python; a task reads one or more splits"

    def frame(
        self, spark: "SparkSession", epochs: EpochSettings, control: Control, *, stream: bool
    ) -> "DataFrame":
        """Return the rows, not yet read.

        Args:
            spark: The session.
            epochs: How to plan epochs; the name of the query is part of the name of the format.
            control: The directory of the run.
            stream: A stream, or else all that is there as one batch.

        Raises:
            NotOnSparkError: It is a DataFrame of the other kind.
        """
        source = self.step.source
        if isinstance(source, SparkSource):
            if source.df.isStreaming != stream:
                raise NotOnSparkError(
                    f"{self.step} is "
                    + (
                        "a table; use run_batch(), or spark.readStream"
                        if stream
                        else "a stream; use start() or run(), or spark.read"
                    )
                )
            return source.df
        from batchqueue.pipeline.spark.reader import ReaderSettings, data_source

        assert self.pickled is not None
        settings = ReaderSettings(
            source=self.pickled,
            struct=spark_schema(source.schema(), str(self.step)),
            epochs=epochs,
            control=control,
        )
        made: Any = data_source(_NO_LETTER.sub("-", f"batchqueue-{epochs.query}"), settings)
        spark.dataSource.register(made)
        reader = spark.readStream if stream else spark.read
        return reader.format(made.name()).load()
