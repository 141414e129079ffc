"""`foreach_batch` and `for_each_partition`: what they reject, on the driver and in tasks."""

import threading
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from batchqueue import (
    BatchQueueConfig,
    BufferStrategy,
    ConfigError,
    PartitionSelector,
    ThreadPolicy,
)
from batchqueue.spark import TaskInfo, for_each_partition, foreach_batch
from spark_support.deliveries import KINDS, items


def no_handlers(_: TaskInfo) -> dict[str, Any]:
    return {}


@pytest.mark.parametrize(
    ("returned", "arguments", "message"),
    [
        (
            None,
            {"type_column": "kind"},
            r"handlers\(TaskInfo\(.*returned None: return a dict of handlers by tag",
        ),
        ({}, {"type_column": "kind"}, "returned {}: return a dict of handlers by tag"),
        ({int: len}, {"type_column": "kind"}, "return a dict of handlers by tag, a str"),
        ({"a": len}, {"items": items}, "return a dict of handlers by class of the items"),
        (dict.fromkeys(KINDS, 7), {"type_column": "kind"}, "an int cannot be a handler"),
    ],
)
def test_handlers_must_be_a_dict(
    df: DataFrame, returned: Any, arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(PySparkException, match=message):
        for_each_partition(df.coalesce(1), lambda _: returned, **arguments)


def test_rows_without_a_tag_fail_the_job(spark: SparkSession) -> None:
    data = spark.createDataFrame([(1, "a"), (2, None)], "id long, kind string").coalesce(1)
    with pytest.raises(
        PySparkException, match="column 'kind' has a row with None, and there are handlers for 'a'"
    ):
        for_each_partition(data, lambda _: {"a": len}, type_column="kind")


LOCK = threading.Lock()


def holding_a_lock(_: TaskInfo) -> dict[str, Any]:
    with LOCK:
        return {}


BY_KIND = {"type_column": "kind"}
BY_KEY = PartitionSelector.by_key(lambda item: (LOCK, 1)[1])


def config(**changes: Any) -> dict[str, Any]:
    return {**BY_KIND, "config": BatchQueueConfig(threads=ThreadPolicy.fixed(1), **changes)}


@pytest.mark.parametrize(
    ("handlers", "arguments", "message"),
    [
        ({"a": len}, BY_KIND, "handlers is {.*give a function that takes a TaskInfo"),
        (
            holding_a_lock,
            BY_KIND,
            r"handlers cannot be pickled \(.*lock.*inside the function `handlers`",
        ),
        (no_handlers, {}, "neither of items and type_column is given; give one"),
        (
            no_handlers,
            {**BY_KIND, "items": items},
            "both of items and type_column is given; give one",
        ),
        (no_handlers, {"items": "kind"}, "items is 'kind'; give a function"),
        (
            no_handlers,
            {"type_column": items},
            "type_column is <function items.*; give the name of a column",
        ),
        (no_handlers, {"items": lambda _: [LOCK]}, r"items cannot be pickled \(.*lock"),
        (no_handlers, {"items": items, "columns": "id"}, "columns is 'id'; give a list of names"),
        (no_handlers, {**BY_KIND, "query_id": ""}, "query_id is ''; give a str, or leave it out"),
        (no_handlers, {**BY_KIND, "config": {}}, "config is a dict; give a BatchQueueConfig"),
        (
            no_handlers,
            config(strategy=BufferStrategy.IF_POSSIBLE),
            "strategy IF_POSSIBLE.*use BufferStrategy.BLOCKING",
        ),
        (
            no_handlers,
            config(consumer=len),
            "the config has consumer, and here the function `handlers` makes all",
        ),
        (
            no_handlers,
            config(consumer_factory=list),
            "the config has consumer_factory.*leave it out$",
        ),
        (
            no_handlers,
            config(error_handler=print),
            "the config has error_handler.*and give handlers an on_error",
        ),
        (no_handlers, config(selector=BY_KEY), r"config cannot be pickled \(.*lock"),
    ],
)
def test_invalid_argument_is_rejected_on_the_driver(
    handlers: Any, arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        foreach_batch(handlers, **arguments)

    class NoJob:
        mapInArrow = None

    with pytest.raises(ConfigError, match=message):
        for_each_partition(NoJob(), handlers, **arguments)  # type: ignore[arg-type]


def test_further_invalid_arguments_are_rejected_on_the_driver(
    spark: SparkSession, rows: Path, df: DataFrame
) -> None:
    stream = spark.readStream.schema("id long, kind string").parquet(str(rows))
    with pytest.raises(
        ConfigError, match=r"data is a stream; give df.writeStream.foreachBatch\(...\) what"
    ):
        for_each_partition(stream, no_handlers, type_column="kind")
    with pytest.raises(
        ConfigError, match="on_summary is 7; give a function that takes a DeliverySummary"
    ):
        foreach_batch(no_handlers, type_column="kind", on_summary=7)  # type: ignore[arg-type]
    for epoch in (-1, "7", True):
        with pytest.raises(ConfigError, match=f"epoch is {epoch!r}; give a whole number from 0 up"):
            for_each_partition(
                df,
                no_handlers,
                type_column="kind",
                epoch=epoch,  # type: ignore[arg-type]
            )
    with pytest.raises(ConfigError, match="data is a list; give a DataFrame or an RDD"):
        for_each_partition([1], no_handlers)  # type: ignore[arg-type]
    with pytest.raises(
        ConfigError, match="the handlers need column Kind, but the rows have id, kind: select"
    ):
        for_each_partition(df, no_handlers, type_column="Kind")
    for arguments in ({"items": items}, {"type_column": "kind"}, {"columns": ["id"]}):
        with pytest.raises(
            ConfigError, match="data is an RDD: its elements are the items; make them with"
        ):
            for_each_partition(df.rdd, no_handlers, **arguments)  # type: ignore[arg-type]
