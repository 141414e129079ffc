"""Orders with columns of many types, some of them null."""

from pyspark.sql import DataFrame, SparkSession


def orders_of(spark: SparkSession) -> DataFrame:
    """Return 900 orders of seven cities in 15 hours."""
    return (
        spark.range(900)
        .selectExpr(
            "concat('city ', id % 7) AS city",
            "timestamp_seconds(1700000000 + id * 61) AS at",
            "IF(id % 4 = 0, NULL, id / 3) AS weight",
            "id * 10000000000 AS cents",
            "CAST(IF(id % 5 = 0, NULL, id / 100) AS decimal(12, 2)) AS price",
            "concat('order ', id % 90) AS name",
            "IF(id % 3 = 0, NULL, id > 800) AS late",
        )
        .repartition(3)
    )
