"""What a format knows of the session that it is registered in: Spark shows it to no data source."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from pyspark.errors import PySparkException

from batchqueue.spark.task.session_zone import SESSION_ZONE

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, kw_only=True)
class SessionSettings:
    """Settings of the session, as they are when the format is registered.

    Attributes:
        zone: Its zone. Default: UTC.
        tasks: How many tasks it runs concurrently. Default, and with Spark Connect: 8.
    """

    zone: str = "UTC"
    tasks: int = 8

    @classmethod
    def of(cls, spark: "SparkSession") -> Self:
        """Return those of a session."""
        try:
            tasks = spark.sparkContext.defaultParallelism
        except PySparkException:  # Spark Connect has no context
            tasks = cls.tasks
        return cls(zone=str(spark.conf.get(SESSION_ZONE)), tasks=tasks)
