"""Checks of a delivery in the driver, before any task runs."""

from collections.abc import Sequence
from typing import Any

from batchqueue import BatchQueueConfig, BufferStrategy, ConfigError
from batchqueue._words import a_type
from batchqueue.spark.handlers.delivery import Delivery
from batchqueue.spark.job.column_types import (
    Column,
    check_once,
    check_reaches_python,
    check_tags,
)
from batchqueue.spark.job.pickling import check_pickles


def check_delivery(delivery: Delivery, columns: Sequence[str], *, rdd: bool) -> None:
    """Check everything that needs no data.

    Args:
        delivery: What is pickled for the workers.
        columns: Columns that `items` reads.
        rdd: True if the data is an RDD, False if it is a DataFrame.

    Raises:
        ConfigError: A value is invalid, or cannot be pickled.
    """
    if not callable(delivery.handlers):
        raise ConfigError(
            f"handlers is {delivery.handlers!r}; give a function that takes a TaskInfo and returns "
            "a dict of handlers: it is called in the workers, so that handlers and their "
            "connections need not be pickled"
        )
    if rdd:
        _check_rdd(delivery, columns)
    else:
        _check_dataframe(delivery)
    if isinstance(columns, str):
        raise ConfigError(f"columns is {columns!r}; give a list of names")
    if delivery.query_id is not None and not (
        isinstance(delivery.query_id, str) and delivery.query_id
    ):
        raise ConfigError(f"query_id is {delivery.query_id!r}; give a str, or leave it out")
    epoch = delivery.epoch
    if epoch is not None and (not isinstance(epoch, int) or isinstance(epoch, bool) or epoch < 0):
        raise ConfigError(f"epoch is {epoch!r}; give a whole number from 0 up, or leave it out")
    _check_config(delivery.config)
    check_pickles(delivery, "", "the function `handlers`, which runs in the workers")


def check_columns(delivery: Delivery, columns: Sequence[str], rows: list[Column]) -> None:
    """Check that the rows have the columns that are read, and that handlers can get them.

    Raises:
        ConfigError: A column is missing, cannot be handed to Python, or has no tags.
    """
    needed = [*columns, *([] if delivery.type_column is None else [delivery.type_column])]
    available = [column.name for column in rows]
    missing = [column for column in needed if column not in available]
    if missing:
        raise ConfigError(
            f"the handlers need column {', '.join(missing)}, but the rows have "
            f"{', '.join(available)}: select or rename it before (case matters)"
        )
    check_once(rows, needed)
    check_reaches_python(rows, "handlers")
    for column in rows:
        if column.name == delivery.type_column:
            check_tags(column)


def _check_rdd(delivery: Delivery, columns: Sequence[str]) -> None:
    if delivery.items is not None or delivery.type_column is not None or columns:
        raise ConfigError(
            "items, type_column and columns are for a DataFrame, and data is an RDD: its elements "
            "are the items; make them with rdd.flatMap before"
        )


def _check_dataframe(delivery: Delivery) -> None:
    items, type_column = delivery.items, delivery.type_column
    if (items is None) == (type_column is None):
        raise ConfigError(
            f"{'neither' if items is None else 'both'} of items and type_column is given; give one "
            "of them: items, a function that turns record batches into items, or type_column, the "
            "column that the rows are split by"
        )
    if items is not None and not callable(items):
        raise ConfigError(
            f"items is {items!r}; give a function that turns a record batch into items"
        )
    if type_column is not None and not isinstance(type_column, str):
        raise ConfigError(f"type_column is {type_column!r}; give the name of a column")


def _check_config(config: Any) -> None:
    if not isinstance(config, BatchQueueConfig):
        raise ConfigError(f"config is {a_type(config)}; give a BatchQueueConfig")
    for name in ("consumer", "consumer_factory", "error_handler"):
        if getattr(config, name) is not None:
            raise ConfigError(
                f"the config has {name}, and here the function `handlers` makes all that handles "
                "items: leave it out"
                + (", and give handlers an on_error" if name == "error_handler" else "")
            )
    if config.strategy is not BufferStrategy.BLOCKING:
        raise ConfigError(
            f"the config has strategy {config.strategy.name}: what it refuses would reach no "
            "handler; use BufferStrategy.BLOCKING, with which Spark waits"
        )
