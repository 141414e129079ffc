"""Checks of the objects that functions of this package are given."""

from batchqueue import ConfigError
from batchqueue._words import a_type
from batchqueue.spark.job.aggregation_job import AggregationJob


def check_session(spark: object, where: str, used: str) -> None:
    """Check that it is a session of Spark, or of Spark Connect, by the attribute that is used.

    Raises:
        ConfigError: It is not; the message begins with `where`.
    """
    if isinstance(spark, type) or not hasattr(spark, used):
        raise ConfigError(f"{where} got {a_type(spark)}; give a SparkSession")


def check_dataframe(df: object, where: str) -> None:
    """Check that it is a DataFrame of Spark, or of Spark Connect.

    Raises:
        ConfigError: It is not; the message begins with `where`.
    """
    if isinstance(df, type) or not hasattr(df, "mapInArrow"):
        raise ConfigError(
            f"{where} got {a_type(df)}; give a DataFrame of Spark, for instance "
            "spark.createDataFrame(rows)"
        )


def check_job(job: object, where: str) -> None:
    """Check that it is a job.

    Raises:
        ConfigError: It is not; the message begins with `where`.
    """
    if not isinstance(job, AggregationJob):
        raise ConfigError(f"{where} got {a_type(job)}; give an AggregationJob")
