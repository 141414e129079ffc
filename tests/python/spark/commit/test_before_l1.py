"""What the ledger shows is refused before any task runs, and leaves nothing, in every store."""

from dataclasses import replace
from pathlib import Path

import pytest

from batchqueue.aggregation import CountMetrics, metric_type
from batchqueue.outputs import ParquetStore, PostgresStore, SqliteStore
from batchqueue.spark import SinkError
from batchqueue.spark.commit.commit import EpochCommit
from batchqueue.spark.options import SinkOptions
from batchqueue.spark.task.message import EpochId
from spark_support.attempts import OPTIONS, run_attempts
from spark_support.flight_job import DEPARTURES, FILES, METRICS, ROWS_PER_FILE, flight_job

Store = SqliteStore | ParquetStore | PostgresStore
LANDINGS = metric_type("landings", CountMetrics)
UNNAMED = replace(OPTIONS, is_named=False)


def commit(flights: Path, store: Store, options: SinkOptions, epoch: EpochId | None) -> EpochCommit:
    job = flight_job(store)
    return EpochCommit(job, options, run_attempts(flights, job, epoch))


def total(store: Store, sink_id: str = "flights") -> int:
    return sum(item.count for item in store.read(DEPARTURES, sink_id))


ROWS = FILES * ROWS_PER_FILE


def test_epoch_that_the_ledger_refuses_is_refused_without_its_rows(
    flights: Path, any_store: Store
) -> None:
    any_store.prepare()
    job = flight_job(any_store)
    empty = EpochCommit(job, OPTIONS, [])
    empty.check_epoch(EpochId("q", 0))
    commit(flights, any_store, OPTIONS, EpochId("q", 0)).apply_epoch(0)
    empty.check_epoch(EpochId("q", 0))  # a replay
    empty.check_epoch(EpochId("q", 1))
    with pytest.raises(SinkError, match="epoch 2 of query q meets a store that has the epochs up"):
        empty.check_epoch(EpochId("q", 2))
    with pytest.raises(SinkError, match="query other is new, but sink 'flights' has results"):
        empty.check_epoch(EpochId("other", 0))
    changed = replace(job, metrics=[*METRICS, LANDINGS])
    for epoch in (EpochId("q", 1), None):
        with pytest.raises(SinkError, match="another job: metric 'landings' is new"):
            EpochCommit(changed, OPTIONS, []).check_epoch(epoch)
        EpochCommit(changed, replace(OPTIONS, on_job_change="accept"), []).check_epoch(epoch)
    replacing = replace(OPTIONS, on_new_query="replace")
    EpochCommit(changed, replacing, []).check_epoch(EpochId("other", 0))
    EpochCommit(changed, replacing, []).check_epoch(None)
    assert total(any_store) == ROWS
    assert [epoch.batch_id for epoch in any_store.summaries("flights")] == [0]


def test_repeated_batch_write_is_found_without_its_rows(flights: Path, any_store: Store) -> None:
    named = replace(OPTIONS, txn_id="load-1")
    any_store.prepare()
    job = flight_job(any_store)
    assert EpochCommit(job, named, []).check_batch(overwrite=False) is None
    written = commit(flights, any_store, named, None).apply_batch(overwrite=False)
    for overwrite in (False, True):
        found = EpochCommit(job, named, []).check_batch(overwrite=overwrite)
        assert found == {**written, "applied": False}
    other = replace(OPTIONS, txn_id="load-2")
    changed = replace(job, metrics=[*METRICS, LANDINGS])
    assert EpochCommit(job, other, []).check_batch(overwrite=False) is None
    with pytest.raises(SinkError, match="another job: metric 'landings' is new"):
        EpochCommit(changed, other, []).check_batch(overwrite=False)
    assert EpochCommit(changed, other, []).check_batch(overwrite=True) is None


@pytest.mark.parametrize("overwrite", [False, True])
def test_batch_without_a_sink_id_leaves_the_sink_of_a_stream_alone(
    flights: Path, any_store: Store, overwrite: bool
) -> None:
    commit(flights, any_store, OPTIONS, EpochId("q", 0)).apply_epoch(0)
    refused = "sink 'flights' has the results of stream q, and this batch write has no sinkId"
    batch = commit(flights, any_store, UNNAMED, None)
    for write in (batch.check_batch, batch.apply_batch):
        with pytest.raises(SinkError, match=refused):
            write(overwrite=overwrite)
    assert total(any_store) == ROWS
    commit(flights, any_store, replace(UNNAMED, sink_id="nightly"), None).apply_batch(
        overwrite=overwrite
    )
    commit(flights, any_store, OPTIONS, None).apply_batch(overwrite=overwrite)
    assert total(any_store, "nightly") == ROWS
    assert total(any_store) == (ROWS if overwrite else 2 * ROWS)


def test_batches_without_a_sink_id_share_the_sink_of_their_job(
    flights: Path, any_store: Store
) -> None:
    for options in (UNNAMED, replace(UNNAMED, txn_id="load-1")):
        commit(flights, any_store, options, None).apply_batch(overwrite=False)
    assert total(any_store) == 2 * ROWS
