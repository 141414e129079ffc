"""Stores that another job has written: each difference is named and refused, or accepted."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from batchqueue import ConfigError
from batchqueue.aggregation import (
    Aggregation,
    Count,
    Metrics,
    Ranking,
    SumMetrics,
    Window,
    metric_type,
)
from batchqueue.groups import MetricsSink
from batchqueue.outputs import SqliteStore
from batchqueue.spark import AggregationJob, ArrowAggregation, SinkError
from batchqueue.spark.commit.commit import EpochCommit
from batchqueue.spark.options import SinkOptions
from batchqueue.spark.task.message import EpochId
from groups_support.databases import batch
from spark_support.attempts import OPTIONS, departures, run_attempts
from spark_support.flight_job import (
    ARROW,
    DEPARTURES,
    DISTANCE,
    FILES,
    METRICS,
    ROWS_PER_FILE,
    flight_job,
    stored,
)

ROWS = FILES * ROWS_PER_FILE


def write(flights: Path, job: AggregationJob, batch_id: int, **options: Any) -> None:
    messages = run_attempts(flights, job, EpochId("q", batch_id))
    EpochCommit(job, replace(OPTIONS, **options), messages).apply_epoch(batch_id)


NEW = metric_type("new", SumMetrics, columns={"total": int})
AS_FLOAT = metric_type("distance", SumMetrics, columns={"total": float})
LONGER = metric_type("delay.worst", Ranking, limit=5)


def only_departures(batch: Any) -> Iterator[Metrics]:
    for carrier in batch.column("carrier").to_pylist():
        yield DEPARTURES(carrier, 0)


@pytest.mark.parametrize(
    ("metrics", "difference"),
    [
        ((*METRICS, NEW), "metric 'new' is new"),
        (METRICS[:1], "metric 'delay.max' is gone; metric 'delay.mean' is gone"),
        ((*METRICS[:-1], LONGER), r"'delay.worst' was .*limit 3\) and is .*limit 5\)"),
    ],
)
def test_changed_metrics_are_refused_with_the_difference(
    flights: Path, store: SqliteStore, metrics: Any, difference: str
) -> None:
    job = flight_job(store, items=only_departures)
    write(flights, job, 0)
    before = stored(store)
    changed = replace(job, metrics=metrics)
    with pytest.raises(
        SinkError, match=rf"sink 'flights' was written by another job: .*{difference}.*onJobChange"
    ):
        write(flights, changed, 1)
    assert stored(store) == before
    write(flights, changed, 1, on_job_change="accept")
    write(flights, changed, 2)  # this is the job from now on
    assert departures(store) == 3 * ROWS


def test_changed_columns_are_always_refused(flights: Path, store: SqliteStore) -> None:
    """Some stores would merge them, and others would begin a new table."""
    job = flight_job(store, items=only_departures)
    write(flights, job, 0)
    changed = replace(job, metrics=(DEPARTURES, AS_FLOAT, *METRICS[2:]))
    message = (
        r"sink 'flights' has other columns: metric 'distance' was sum_metrics"
        r" \(total int, compensation float\) and is sum_metrics"
        r" \(total float, compensation float\)\. .*give the metric another name"
    )
    with pytest.raises(SinkError, match=message):
        write(flights, changed, 1, on_job_change="accept")
    assert departures(store) == ROWS


@pytest.mark.parametrize(
    "further",
    [ARROW, replace(ARROW, aggregation=Aggregation(keys=["hour"], measures={"n": Count()}))],
)
def test_additional_aggregation_is_refused_and_named(
    flights: Path, store: SqliteStore, further: ArrowAggregation
) -> None:
    """It may add to the same metrics."""
    job = flight_job(store, items=None, arrow=[ARROW])
    write(flights, job, 0)
    more = replace(
        job, arrow=[ARROW, replace(further, type_column=None, tags=(), metrics=lambda _: [])]
    )
    with pytest.raises(SinkError, match="an aggregation is new: "):
        write(flights, more, 1)
    write(flights, more, 1, on_job_change="accept")
    with pytest.raises(SinkError, match="an aggregation is gone: "):
        write(flights, job, 2)


def test_changed_aggregation_is_refused_with_the_difference(
    flights: Path, store: SqliteStore
) -> None:
    job = flight_job(store, items=None, arrow=[ARROW])
    write(flights, job, 0)
    window = replace(
        ARROW,
        aggregation=replace(ARROW.aggregation, keys=["carrier"], window=Window("hour", 86_400)),
    )
    with pytest.raises(
        SinkError, match=r"an aggregation was .*\"window\": null.* and is .*\"seconds\": 86400"
    ):
        write(flights, replace(job, arrow=[window]), 1)
    write(flights, replace(job, arrow=[replace(ARROW, tags=["A", "B", "C", "D"])]), 1)
    assert departures(store) == 2 * ROWS


def test_functions_and_the_way_of_l1_may_change(flights: Path, store: SqliteStore) -> None:
    job = flight_job(store)
    write(flights, job, 0)
    write(flights, replace(job, items=None, arrow=[ARROW]), 1)
    write(flights, replace(job, items=only_departures), 2)
    assert departures(store) == 3 * ROWS
    assert sum(item.total or 0 for item in store.read(DISTANCE, "flights")) > 0


def test_job_of_functions_does_not_make_the_next_one_forget_the_declared_aggregation(
    flights: Path, store: SqliteStore
) -> None:
    """Hourly, then by a function, then daily: numbers of hours and days would be in one sink."""
    hourly = flight_job(store, items=None, arrow=[ARROW])
    daily = replace(
        hourly,
        arrow=[
            replace(
                ARROW,
                aggregation=replace(
                    ARROW.aggregation, keys=["carrier"], window=Window("hour", 86_400)
                ),
            )
        ],
    )
    by_function = flight_job(store)
    write(flights, hourly, 0)
    write(flights, by_function, 1)
    with pytest.raises(SinkError, match=r"an aggregation was .* and is .*\"seconds\": 86400"):
        write(flights, daily, 2)
    write(flights, by_function, 2, on_job_change="accept")  # nothing has changed
    with pytest.raises(SinkError, match="an aggregation was"):
        write(flights, daily, 3)
    write(flights, hourly, 3)
    assert departures(store) == 4 * ROWS
    write(flights, replace(daily, arrow=[replace(ARROW, tags=["A", "B", "C", "D"])]), 4)
    write(flights, replace(daily, items=only_departures), 5, on_job_change="accept")
    write(flights, by_function, 6)
    with pytest.raises(SinkError, match="an aggregation was"):
        write(flights, hourly, 7)


@pytest.mark.parametrize("on_new_query", [None, "append", "replace"])
def test_sink_of_a_group_of_workers_is_always_refused(
    flights: Path, store: SqliteStore, on_new_query: str | None
) -> None:
    """Also by an overwrite, which would delete what the group has counted."""
    group = MetricsSink(store, lambda value: [DEPARTURES("UA", 0)], sink_id="flights")
    group.consume(batch(0, 9))
    job = flight_job(store, items=only_departures)
    message = (
        r"sink 'flights' was written by group \"billing\" on stream \"orders\": .*another sinkId"
    )
    with pytest.raises(SinkError, match=message):
        write(flights, job, 0, on_new_query=on_new_query)
    for overwrite in (True, False):
        with pytest.raises(SinkError, match=message):
            EpochCommit(job, OPTIONS, run_attempts(flights, job, None)).apply_batch(
                overwrite=overwrite
            )
    with pytest.raises(SinkError, match=message):
        EpochCommit(job, OPTIONS, []).check_shards()
    group.consume(batch(5, 14))
    assert departures(store) == 15


def test_group_of_workers_refuses_the_sink_of_a_job(flights: Path, store: SqliteStore) -> None:
    write(flights, flight_job(store, items=only_departures), 0)
    group = MetricsSink(store, lambda value: [DEPARTURES("UA", 0)], sink_id="flights")
    with pytest.raises(ConfigError, match="was written by another kind of job, such as a Spark qu"):
        group.consume(batch(0, 9))
    assert departures(store) == ROWS


def test_ledger_of_a_program_is_refused(flights: Path, store: SqliteStore) -> None:
    with store.transaction("flights") as transaction:
        transaction.describe({"job": "nightly"})
    with pytest.raises(SinkError, match="'flights' was written by a program that is not a Spark j"):
        write(flights, flight_job(store, items=only_departures), 0)


def test_overwrite_and_replace_forget_the_job(flights: Path, store: SqliteStore) -> None:
    job = flight_job(store, items=only_departures)
    write(flights, job, 0)
    changed = replace(job, metrics=METRICS[:1])
    messages = run_attempts(flights, changed, None)
    EpochCommit(changed, OPTIONS, messages).apply_batch(overwrite=True)
    assert departures(store) == ROWS
    messages = run_attempts(flights, job, EpochId("q", 0))
    EpochCommit(job, replace(OPTIONS, on_new_query="replace"), messages).apply_epoch(0)
    assert departures(store) == ROWS


def test_options_of_a_changed_job_are_checked(store: SqliteStore) -> None:
    job = flight_job(store)
    assert SinkOptions.parse({"onjobchange": "accept"}, job, stream=True).on_job_change == "accept"
    with pytest.raises(ConfigError, match="option onJobChange='migrate': use 'accept'"):
        SinkOptions.parse({"onjobchange": "migrate"}, job, stream=False)
