"""Commits, without Spark: no loss, no duplication, nothing silent."""

import sqlite3
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from batchqueue import ConfigError, RetryPolicy
from batchqueue.aggregation import CountMetrics, metric_type
from batchqueue.outputs import SqliteStore
from batchqueue.spark import SinkError
from batchqueue.spark.commit.commit import EpochCommit
from batchqueue.spark.options import SinkOptions
from batchqueue.spark.task.attempt import run_attempt
from batchqueue.spark.task.message import EpochId
from core_support.held_log import held_log
from core_support.waits import WAIT_S
from spark_support.attempts import OPTIONS, at, attempts, batches, departures, summaries
from spark_support.flight_job import DEPARTURES, FILES, METRICS, ROWS_PER_FILE, flight_job, stored
from spark_support.pyspark_version import needs_stream_sink


def test_epoch_reaches_the_store_and_its_summary_the_ledger(
    flights: Path, store: SqliteStore
) -> None:
    EpochCommit(flight_job(store), OPTIONS, attempts(flights, store)).apply_epoch(0)
    rows = FILES * ROWS_PER_FILE
    assert departures(store) == rows
    ((query_id, batch_id, summary),) = summaries(store)
    assert (query_id, batch_id, summary["batch_id"], summary["rows"]) == ("q1", 0, 0, rows)
    stages = summary["stages"]
    for stage in stages.values():
        assert stage["produced"] == stage["consumed"] > 0
        assert stage["failed"] == stage["refused"] == stage["unhandled"] == stage["abandoned"] == 0
        assert 0 <= stage["peak_used_percent"] <= 100
    assert summary["items"] == stages["l1"]["produced"] == sum(summary["l1_thread_items"])
    assert 5 * rows < summary["items"] <= 6 * rows  # the ranking skips rows without a delay
    assert stages["persist"]["produced"] < stages["l2"]["produced"] < stages["l1"]["produced"]
    assert summary["commit_bytes"] > 0
    walls = summary["attempt_wall_s"]
    assert 0 < walls["min"] <= walls["median"] <= walls["max"]
    for name in (
        "drain_cpu_s",
        "rest_cpu_s",
        "commit_drain_cpu_s",
        "commit_rest_cpu_s",
        "commit_wall_s",
    ):
        assert summary[name] > 0


def test_epoch_is_applied_once_however_often_it_is_committed(
    flights: Path, store: SqliteStore
) -> None:
    first = attempts(flights, store)
    again = attempts(flights, store)
    for messages in (first, first, again):
        EpochCommit(flight_job(store), OPTIONS, messages).apply_epoch(0)
    assert departures(store) == FILES * ROWS_PER_FILE
    assert len(summaries(store)) == 1
    EpochCommit(flight_job(store), OPTIONS, at(again, 1)).apply_epoch(1)
    assert departures(store) == 2 * FILES * ROWS_PER_FILE


def test_epoch_committed_twice_at_the_same_time_is_applied_once(
    flights: Path, store: SqliteStore
) -> None:
    """A commit may outlive its driver, and still run when the next driver replays the epoch."""
    messages = attempts(flights, store)
    together = threading.Barrier(2)

    def commit() -> None:
        together.wait()
        EpochCommit(flight_job(store), OPTIONS, messages).apply_epoch(0)

    with ThreadPoolExecutor() as pool:
        for future in [pool.submit(commit), pool.submit(commit)]:
            future.result()
    assert departures(store) == FILES * ROWS_PER_FILE
    assert len(summaries(store)) == 1


@needs_stream_sink
def test_task_without_a_query_id_is_refused(flights: Path, store: SqliteStore) -> None:
    from batchqueue.spark.driver.stream_writer import StreamSinkWriter

    writer = StreamSinkWriter(flight_job(store), OPTIONS)
    with pytest.raises(SinkError, match=r"did not set the local property sql.streaming.queryId"):
        writer.write(iter(batches(flights, 0)))


def test_results_of_another_epoch_are_refused(flights: Path, store: SqliteStore) -> None:
    messages = attempts(flights, store)
    for wrong in (
        at(messages, 1),
        [*messages[1:], *at(messages[:1], 1)],
        attempts(flights, store, None),
    ):
        with pytest.raises(SinkError, match="Spark commits epoch 0"):
            EpochCommit(flight_job(store), OPTIONS, wrong).apply_epoch(0)
    assert not store.path.exists()


def test_epoch_that_comes_again_with_other_rows_is_refused_unless_the_user_decides(
    flights: Path, store: SqliteStore, caplog: pytest.LogCaptureFixture
) -> None:
    """The checkpoint was copied, and another query has continued the copy."""
    job, messages = flight_job(store), attempts(flights, store)
    EpochCommit(job, OPTIONS, messages).apply_epoch(0)
    EpochCommit(job, OPTIONS, messages).apply_epoch(0)
    with pytest.raises(
        SinkError,
        match=rf"epoch 0 of query q1 is in sink 'flights' with {FILES * ROWS_PER_FILE:,} rows, and "
        rf"comes again with {ROWS_PER_FILE}, .*onChangedEpoch=skip for one start",
    ):
        EpochCommit(job, OPTIONS, messages[:1]).apply_epoch(0)
    skipping = replace(OPTIONS, on_changed_epoch="skip")
    assert not EpochCommit(job, skipping, messages[:1]).apply_epoch(0)["applied"]
    assert [record for record in caplog.records if record.levelname == "WARNING"] == []
    assert departures(store) == FILES * ROWS_PER_FILE


def test_epoch_that_comes_again_with_as_many_other_rows_is_refused(
    flights: Path, any_store: Any
) -> None:
    """An older copy of the checkpoint goes another way, in epochs of the same size."""
    job = flight_job(any_store)
    first, other, *_ = attempts(flights, any_store)
    EpochCommit(job, OPTIONS, [first]).apply_epoch(0)
    assert not EpochCommit(job, OPTIONS, [first]).apply_epoch(0)["applied"]
    with pytest.raises(
        SinkError,
        match=rf"epoch 0 of query q1 is in sink 'flights' with {ROWS_PER_FILE:,} rows, and comes "
        r"again with as many others, so it is not a replay: .*onChangedEpoch=skip for one start",
    ):
        EpochCommit(job, OPTIONS, [other]).apply_epoch(0)
    skipping = replace(OPTIONS, on_changed_epoch="skip")
    assert not EpochCommit(job, skipping, [other]).apply_epoch(0)["applied"]
    assert len(any_store.summaries("flights")) == 1


def test_epoch_that_an_earlier_version_recorded_is_compared_by_its_number_of_rows(
    flights: Path, any_store: Any
) -> None:
    job = flight_job(any_store)
    first, other, *_ = attempts(flights, any_store)
    EpochCommit(job, OPTIONS, [first]).apply_epoch(0)
    (recorded,) = any_store.summaries("flights")
    earlier = {name: value for name, value in recorded.summary.items() if name != "contents"}
    with any_store.transaction("flights") as transaction:
        transaction.record("q1", 1, earlier)
    assert not EpochCommit(job, OPTIONS, at([other], 1)).apply_epoch(1)["applied"]
    with pytest.raises(SinkError, match="comes again with"):
        EpochCommit(job, OPTIONS, at([first, other], 1)).apply_epoch(1)
    EpochCommit(job, OPTIONS, at([other], 2)).apply_epoch(2)
    assert any_store.summaries("flights")[-1].summary["contents"] is not None


def test_epoch_without_rows_has_no_contents_and_comes_again(
    flights: Path, store: SqliteStore
) -> None:
    job = flight_job(store)
    empty = run_attempt(job, OPTIONS, [], EpochId("q1", 0))
    EpochCommit(job, OPTIONS, [empty]).apply_epoch(0)
    assert not EpochCommit(job, OPTIONS, [empty, empty]).apply_epoch(0)["applied"]
    (recorded,) = store.summaries("flights")
    assert recorded.summary["contents"] is None


def test_skipped_epoch_below_the_last_one_is_logged_as_a_warning(
    flights: Path, store: SqliteStore, caplog: pytest.LogCaptureFixture
) -> None:
    """It comes from an older checkpoint: Spark replays the last epoch only."""
    job, messages = flight_job(store), attempts(flights, store)
    for batch_id in (0, 1, 1):
        EpochCommit(job, OPTIONS, at(messages, batch_id)).apply_epoch(batch_id)
    assert [record for record in caplog.records if record.levelname == "WARNING"] == []
    EpochCommit(job, OPTIONS, messages).apply_epoch(0)
    (warning,) = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert "epoch 0 of query q1 is skipped, and the store has epochs up to 1" in warning


def test_replay_in_other_partitions_and_with_other_items_is_skipped(
    flights: Path, store: SqliteStore
) -> None:
    """The rows are the same; functions may have changed, and the tasks may be others."""
    EpochCommit(flight_job(store), OPTIONS, attempts(flights, store)).apply_epoch(0)
    job = flight_job(store, items=no_items)
    rows = [row for file in range(FILES) for row in batches(flights, file)]
    again = run_attempt(job, OPTIONS, rows, EpochId("q1", 0))
    assert not EpochCommit(job, OPTIONS, [again]).apply_epoch(0)["applied"]
    assert departures(store) == FILES * ROWS_PER_FILE


def no_items(batch: pa.RecordBatch) -> Iterator[Any]:
    yield from ()


def test_a_log_that_hangs_holds_no_transaction(flights: Path, store: SqliteStore) -> None:
    job, messages = flight_job(store), attempts(flights, store, query_id=None)
    first, second = (replace(OPTIONS, txn_id=f"load-{number}") for number in (1, 2))
    EpochCommit(job, first, messages).apply_batch(overwrite=False)
    again = EpochCommit(job, first, messages[:1])
    with held_log("comes again with") as handler, ThreadPoolExecutor(1) as pool:
        repeated = pool.submit(again.apply_batch, overwrite=False)
        assert handler.entered.wait(WAIT_S)
        EpochCommit(job, second, messages).apply_batch(overwrite=False)
        assert not repeated.result(WAIT_S)["applied"]
    assert departures(store) == 2 * FILES * ROWS_PER_FILE


def test_repeated_batch_write_with_other_rows_is_skipped_with_a_warning(
    flights: Path, store: SqliteStore, caplog: pytest.LogCaptureFixture
) -> None:
    job, messages = flight_job(store), attempts(flights, store, query_id=None)
    named = replace(OPTIONS, txn_id="load-1")
    for some in (messages, messages, messages[:1]):
        EpochCommit(job, named, some).apply_batch(overwrite=False)
    (warning,) = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert (
        f"'load-1' was applied with {FILES * ROWS_PER_FILE:,} rows and comes again with "
        f"{ROWS_PER_FILE}" in warning
    )
    assert departures(store) == FILES * ROWS_PER_FILE


def test_batch_with_a_txn_id_is_applied_once_and_without_it_each_time(
    flights: Path, store: SqliteStore
) -> None:
    messages = attempts(flights, store, query_id=None)
    named = SinkOptions("flights", None, "load-1", 1_000_000)
    for options, times in ((named, 1), (named, 1), (OPTIONS, 2), (OPTIONS, 3)):
        EpochCommit(flight_job(store), options, messages).apply_batch(overwrite=False)
        assert departures(store) == times * FILES * ROWS_PER_FILE
    EpochCommit(flight_job(store), OPTIONS, messages).apply_batch(overwrite=True)
    assert departures(store) == FILES * ROWS_PER_FILE
    assert len(summaries(store)) == 1


def test_new_query_on_a_sink_with_data_is_refused_unless_the_user_decides(
    flights: Path, store: SqliteStore
) -> None:
    job = flight_job(store)
    EpochCommit(job, OPTIONS, attempts(flights, store, "old")).apply_epoch(0)
    before = stored(store)
    new = attempts(flights, store, "new")
    with pytest.raises(SinkError, match=r"query new is new, but sink 'flights'.*onNewQuery"):
        EpochCommit(job, OPTIONS, new).apply_epoch(0)
    assert stored(store) == before
    EpochCommit(job, SinkOptions("flights", "append", None, 1_000_000), new).apply_epoch(0)
    assert departures(store) == 2 * FILES * ROWS_PER_FILE
    newest = attempts(flights, store, "newest")
    EpochCommit(job, SinkOptions("flights", "replace", None, 1_000_000), newest).apply_epoch(0)
    assert stored(store) == before
    assert [epoch.query_id for epoch in summaries(store)] == ["newest"]


def test_one_new_query_is_accepted_by_its_id_and_no_other(
    flights: Path, store: SqliteStore
) -> None:
    """So the option may stay in the command: a lost checkpoint makes another query."""
    job, options = flight_job(store), replace(OPTIONS, on_new_query="append:new")
    EpochCommit(job, OPTIONS, attempts(flights, store, "old")).apply_epoch(0)
    with pytest.raises(SinkError, match="set option onNewQuery to 'append:new'"):
        EpochCommit(job, OPTIONS, attempts(flights, store, "new")).apply_epoch(0)
    new = attempts(flights, store, "new")
    for batch_id in (0, 0, 1):
        EpochCommit(job, options, at(new, batch_id)).apply_epoch(batch_id)
    assert departures(store) == 3 * FILES * ROWS_PER_FILE
    refused = "query newer is new, .*, and onNewQuery=append:new accepts no other query: .*twice"
    with pytest.raises(SinkError, match=refused):
        EpochCommit(job, options, attempts(flights, store, "newer")).apply_epoch(0)
    with pytest.raises(SinkError, match=refused):
        EpochCommit(job, options, []).check_epoch(EpochId("newer", 0))
    assert departures(store) == 3 * FILES * ROWS_PER_FILE


@pytest.mark.parametrize("txn_id", [None, "load-1"])
def test_stream_on_a_sink_with_results_of_a_batch_write_is_refused(
    flights: Path, store: SqliteStore, txn_id: str | None
) -> None:
    job = flight_job(store)
    options = replace(OPTIONS, txn_id=txn_id)
    EpochCommit(job, options, attempts(flights, store, query_id=None)).apply_batch(overwrite=False)
    with pytest.raises(SinkError, match=r"query q1 is new, but sink 'flights'"):
        EpochCommit(job, OPTIONS, attempts(flights, store)).apply_epoch(0)
    assert departures(store) == FILES * ROWS_PER_FILE
    accepting = replace(OPTIONS, on_new_query="append:q1")
    EpochCommit(job, accepting, attempts(flights, store)).apply_epoch(0)
    assert departures(store) == 2 * FILES * ROWS_PER_FILE


def test_marks_grow_with_names_and_not_with_writes(flights: Path, store: SqliteStore) -> None:
    job = flight_job(store)
    named = replace(OPTIONS, txn_id="load-1")
    for options in (OPTIONS, named, OPTIONS, OPTIONS):
        EpochCommit(job, options, attempts(flights, store, query_id=None)).apply_batch(
            overwrite=False
        )
    with store.transaction("flights") as transaction:
        assert transaction.known_queries() == {"unmarked", "batch:load-1"}
    assert len(summaries(store)) == 4


def test_store_that_lost_epochs_is_refused_unless_the_user_decides(
    flights: Path, store: SqliteStore
) -> None:
    job = flight_job(store)
    messages = attempts(flights, store)
    with pytest.raises(
        SinkError, match=r"epoch 7 of query q1 meets a store that has none.*Restore the store"
    ):
        EpochCommit(job, OPTIONS, at(messages, 7)).apply_epoch(7)
    assert departures(store) == 0
    for on_new_query in (
        "append",
        "replace",
    ):  # it is about another checkpoint, and may stay in the start command
        with pytest.raises(SinkError, match="onMissingEpochs=accept for one start"):
            EpochCommit(
                job, replace(OPTIONS, on_new_query=on_new_query), at(messages, 7)
            ).apply_epoch(7)
    accepting = replace(OPTIONS, on_missing_epochs="accept")
    EpochCommit(job, accepting, at(messages, 7)).apply_epoch(7)
    EpochCommit(job, OPTIONS, at(messages, 8)).apply_epoch(8)
    assert departures(store) == 2 * FILES * ROWS_PER_FILE
    with pytest.raises(SinkError, match=r"epoch 10 .* has the epochs up to 8"):
        EpochCommit(job, OPTIONS, at(messages, 10)).apply_epoch(10)
    # Epochs may be missing, but whether another query may add to these is a separate question.
    with pytest.raises(SinkError, match="query q2 is new"):
        EpochCommit(job, accepting, at(attempts(flights, store, "q2"), 3)).apply_epoch(3)


def test_gap_after_an_epoch_of_the_same_run_names_the_function_that_left_it(
    flights: Path, store: SqliteStore
) -> None:
    """As in `if not df.isEmpty(): write_epoch(...)`."""
    job, messages = flight_job(store), attempts(flights, store)
    EpochCommit(job, OPTIONS, messages).apply_epoch(0)
    skipped = r"the last one from this run: .*if not df.isEmpty\(\).*onMissingEpochs=accept for one"
    with pytest.raises(SinkError, match=skipped):
        EpochCommit(job, OPTIONS, at(messages, 2)).apply_epoch(2, wrote=0)
    with pytest.raises(SinkError, match=skipped):
        EpochCommit(job, OPTIONS, []).check_epoch(EpochId("q1", 2), wrote=0)
    with pytest.raises(SinkError, match=r"if the store was deleted.*did not call write_epoch"):
        EpochCommit(job, OPTIONS, []).check_epoch(EpochId("q1", 2))
    EpochCommit(job, replace(OPTIONS, on_missing_epochs="accept"), at(messages, 2)).apply_epoch(2)
    assert departures(store) == 2 * FILES * ROWS_PER_FILE


def test_two_queries_that_replace_each_other_are_refused_at_their_second_epoch(
    flights: Path, store: SqliteStore
) -> None:
    job, replacing = flight_job(store), replace(OPTIONS, on_new_query="replace")
    first, second = attempts(flights, store, "first"), attempts(flights, store, "second")
    EpochCommit(job, replacing, first).apply_epoch(0)
    EpochCommit(job, replacing, second).apply_epoch(0)
    with pytest.raises(
        SinkError, match="epoch 1 of query first meets a store that has none of this query"
    ):
        EpochCommit(job, replacing, at(first, 1)).apply_epoch(1)
    assert departures(store) == FILES * ROWS_PER_FILE


def test_another_sink_in_the_same_database_is_left_alone(flights: Path, store: SqliteStore) -> None:
    for sink_id in ("flights", "others"):
        options = SinkOptions(sink_id, None, None, 1_000_000)
        EpochCommit(
            flight_job(store), options, attempts(flights, store, f"query of {sink_id}")
        ).apply_epoch(0)
    assert stored(store) == stored(store, "others")
    replacing = SinkOptions("others", "replace", None, 1_000_000)
    EpochCommit(flight_job(store), replacing, attempts(flights, store, "new")[:1]).apply_epoch(0)
    assert departures(store) == FILES * ROWS_PER_FILE
    assert stored(store) != stored(store, "others")


class Elsewhere(CountMetrics):
    """A kind whose table is already there with other columns."""

    __slots__ = ()
    table = "elsewhere"


def test_error_of_the_store_fails_the_commit_and_nothing_is_committed(
    flights: Path, store: SqliteStore
) -> None:
    broken = metric_type("broken", Elsewhere)
    with closing(sqlite3.connect(store.path)) as other:
        other.execute("CREATE TABLE elsewhere (count)")
    metrics = [*METRICS, broken]

    def items(batch: pa.RecordBatch) -> Iterator[Any]:
        yield DEPARTURES("A", 0)
        yield broken("A", 0)

    messages = attempts(flights, store, items=items, metrics=metrics)
    message = r"persist.*failed.*first error: StoreError: .*no such column: stored.entity"
    with pytest.raises(SinkError, match=message):
        EpochCommit(flight_job(store, items=items, metrics=metrics), OPTIONS, messages).apply_epoch(
            0
        )
    assert store.read(DEPARTURES, "flights") == []
    assert summaries(store) == []


def test_table_that_no_store_can_have_is_refused_by_the_job(store: SqliteStore) -> None:
    class Broken(CountMetrics):
        table = "no table's name"

    with pytest.raises(ConfigError, match=r'"no table\'s name" cannot be the name of a table'):
        flight_job(store, metrics=[*METRICS, Broken])


def test_locked_store_fails_the_commit_with_the_reason(flights: Path, tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "metrics.db", busy_timeout_s=0)
    store.prepare()
    messages = attempts(flights, store)
    job = flight_job(store, store_retry=RetryPolicy(attempts=2, backoff_ms=0))
    other = sqlite3.connect(store.path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(SinkError, match=r"failed after 2 attempts: .*locked"):
        EpochCommit(job, OPTIONS, messages).apply_epoch(0)
    other.close()
    EpochCommit(job, OPTIONS, messages).apply_epoch(0)
    assert departures(store) == FILES * ROWS_PER_FILE
