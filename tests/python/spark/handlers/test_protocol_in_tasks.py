"""The protocol of handlers in the tasks of Spark; elsewhere: `test_handler_protocol.py`."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark import cloudpickle
from pyspark.sql import DataFrame

import handler_protocol
from batchqueue import BatchQueueConfig, RetryPolicy, ThreadPolicy
from batchqueue.outputs import SqliteStore
from batchqueue.spark import TaskInfo, for_each_partition, foreach_batch
from handler_protocol import Noted, assert_protocol, calls
from spark_support.attempts import attempts
from spark_support.deliveries import CLASSES, FILES, KINDS, ROWS, items
from spark_support.flight_job import DEPARTURES

cloudpickle.register_pickle_by_value(handler_protocol)

AGAIN: BatchQueueConfig[Any] = BatchQueueConfig(
    threads=ThreadPolicy.fixed(1), retry=RetryPolicy(attempts=4, backoff_ms=0)
)


def by_tag(directory: Path, **failures: int) -> Callable[[TaskInfo], dict[str, Noted]]:
    return lambda task: {kind: Noted(directory, **failures) for kind in KINDS}


def by_class(directory: Path) -> Callable[[TaskInfo], dict[type, Noted]]:
    return lambda task: {CLASSES[kind]: Noted(directory) for kind in KINDS}


def consumed(directory: Path) -> int:
    return sum(call[1] for each in calls(directory) for call in each if call[0] == "consumed")


def test_for_each_partition_opens_and_closes_handlers_of_rows(
    df: DataFrame, tmp_path: Path
) -> None:
    for_each_partition(df, by_tag(tmp_path), type_column="kind")
    assert assert_protocol(tmp_path)["opened"] >= len(KINDS)


def test_for_each_partition_opens_and_closes_handlers_of_items(
    df: DataFrame, tmp_path: Path
) -> None:
    for_each_partition(df, by_class(tmp_path), items=items)
    assert_protocol(tmp_path)
    assert consumed(tmp_path) == len(ROWS)


def test_for_each_partition_opens_and_closes_handlers_of_elements(
    df: DataFrame, tmp_path: Path
) -> None:
    ids = df.repartition(2).rdd.map(lambda row: row.id)
    for_each_partition(ids, lambda task: {int: Noted(tmp_path)})
    assert assert_protocol(tmp_path)["opened"] == 2
    assert consumed(tmp_path) == len(ROWS)


def test_foreach_batch_opens_and_closes_handlers_in_each_epoch(
    each_batch: Callable[..., str], tmp_path: Path
) -> None:
    (tmp_path / "notes").mkdir()
    each_batch(foreach_batch(by_class(tmp_path / "notes"), items=items))
    assert assert_protocol(tmp_path / "notes")["opened"] >= FILES
    assert consumed(tmp_path / "notes") == len(ROWS)


def test_a_handler_that_cannot_be_opened_yet_is_opened_by_the_next_attempt(
    df: DataFrame, tmp_path: Path
) -> None:
    """As its config says; then no task fails."""
    summary = for_each_partition(
        df.coalesce(1), by_tag(tmp_path, closed=2), type_column="kind", config=AGAIN
    )
    total = assert_protocol(tmp_path)
    assert total["open"] == total["opened"] + 2
    assert summary.attempts == summary.partitions


def test_a_handler_that_cannot_be_opened_fails_its_task_and_the_next_one_delivers(
    df: DataFrame, tmp_path: Path
) -> None:
    summary = for_each_partition(df.coalesce(1), by_tag(tmp_path, closed=1), type_column="kind")
    assert assert_protocol(tmp_path)["error"] == 1
    assert summary.attempts == summary.partitions + 1


@pytest.mark.parametrize("closed", [0, 1])
def test_handlers_of_a_job_are_opened_and_closed(
    flights: Path, store: SqliteStore, tmp_path: Path, closed: int
) -> None:
    (tmp_path / "notes").mkdir()
    messages = attempts(
        flights,
        store,
        handlers={DEPARTURES: lambda emit: Noted(tmp_path / "notes", closed=closed)},
        l1=AGAIN,
    )
    total = assert_protocol(tmp_path / "notes")
    assert total["opened"] == len(messages)
    assert total["open"] == total["opened"] + closed
