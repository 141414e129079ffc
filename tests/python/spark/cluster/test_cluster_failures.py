"""Processes of a cluster die, hang or run twice: every row counts once, as in Spark SQL."""

import shutil
import signal
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from batchqueue.outputs import ParquetStore, SqliteStore
from spark_support.cluster import CHECKOUT, Driver, Processes, Run, conf
from spark_support.flight_job import ROWS_PER_FILE, Results, difference, stored, stored_in_shards
from spark_support.notes import Notes
from spark_support.waits import wait_until

pytestmark = pytest.mark.matrix(12, name="faults on a cluster")

Session = Callable[..., Driver]
EPOCHS = 2
TASKS_PER_EPOCH = 2
SPECULATION = {
    "spark_speculation": "true",
    "spark_speculation_interval": "50ms",
    "spark_speculation_quantile": "0.5",
    "spark_speculation_multiplier": "1.01",
}
"""A task also runs on the other machine as soon as one of two tasks has ended before it."""


def assert_counted_once(run: Run, wanted: Results) -> None:
    """All rows are in the store, in two epochs of two files each."""
    store = SqliteStore(run.database)
    assert difference(stored(store), wanted) == []
    epochs = [(epoch.batch_id, epoch.summary["rows"]) for epoch in store.summaries("flights")]
    assert epochs == [(epoch, TASKS_PER_EPOCH * ROWS_PER_FILE) for epoch in range(EPOCHS)]


def task_of(note: dict[str, Any]) -> dict[str, Any]:
    return {name: note[name] for name in ("epoch", "partition")}


@pytest.mark.parametrize(
    ("fault", "process", "ends"),
    [
        ("ExecutorDiesInMidTask", "executor", 1),
        ("ExecutorDiesAtTheEnd", "executor", 2),  # of write(), after the sink has done its part
        ("WorkerDiesInMidTask", "worker", 1),
    ],
)
def test_task_whose_process_is_killed_is_retried_and_counted_once(
    session: Session,
    processes: Processes,
    run: Run,
    notes: Notes,
    wanted: Results,
    fault: str,
    process: str,
    ends: int,
) -> None:
    session().order("stream", fault=fault, **asdict(run))
    assert_counted_once(run, wanted)
    (killed,) = notes.read("kill")
    assert killed[process] not in processes.alive()
    attempts = notes.read("half", **task_of(killed))
    assert len(attempts) >= 2
    assert any(attempt[process] != killed[process] for attempt in attempts)
    assert len(notes.read("end", **task_of(killed))) >= ends


def test_killed_executor_of_a_local_cluster_is_replaced_and_its_task_counted_once(
    session: Session, run: Run, notes: Notes, wanted: Results
) -> None:
    driver = session(spark_master="local-cluster[2,1,1024]")
    driver.order("stream", fault="ExecutorDiesInMidTask", **asdict(run))
    assert_counted_once(run, wanted)
    (killed,) = notes.read("kill")
    assert {attempt["executor"] for attempt in notes.read("half", **task_of(killed))} > {
        killed["executor"]
    }


def test_task_with_two_finished_attempts_is_counted_once(
    session: Session, run: Run, notes: Notes, wanted: Results
) -> None:
    session(**SPECULATION).order("stream", fault="TwoAttemptsFinish", **asdict(run))
    assert_counted_once(run, wanted)
    first, second = notes.read("end", epoch=0, partition=0)
    assert first["executor"] != second["executor"]


def test_shard_committed_by_two_attempts_of_a_task_is_counted_once(
    session: Session, run: Run, notes: Notes, wanted: Results, tmp_path: Path
) -> None:
    """Spark makes no attempt wait here: each commits its shard itself."""
    store = ParquetStore(tmp_path / "shards")
    places = {
        "flights": run.flights,
        "directory": store.directory,
        "notes_folder": run.notes_folder,
    }
    session(**SPECULATION).order("write_in_shards", **places)
    first, second = notes.read("end")
    assert first["executor"] != second["executor"]
    sink_ids = ["flights/0", "flights/1"]
    assert difference(stored_in_shards(store, sink_ids), wanted) == []
    assert [len(store.summaries(sink_id)) for sink_id in sink_ids] == [1, 1]


def test_workers_that_are_not_reused_count_every_row_once(
    session: Session, run: Run, notes: Notes, wanted: Results
) -> None:
    session(spark_python_worker_reuse="false").order("stream", fault="NoFault", **asdict(run))
    assert_counted_once(run, wanted)
    assert set(Counter(end["worker"] for end in notes.read("end")).values()) == {1}


def test_worker_that_hangs_past_the_idle_timeout_is_killed_and_its_task_counted_once(
    session: Session, processes: Processes, run: Run, notes: Notes, wanted: Results
) -> None:
    """Without `killOnIdleTimeout` Spark only logs the hang, and it lasts for ever."""
    timeout = {
        "spark_python_worker_idleTimeoutSeconds": "5",
        "spark_python_worker_killOnIdleTimeout": "true",
    }
    driver = session(**timeout, spark_task_maxFailures="10")  # may hit others on a slow machine
    driver.order("stream", fault="WorkerHangsInMidTask", **asdict(run))
    assert_counted_once(run, wanted)
    (hung,) = notes.read("hang")
    wait_until(lambda: hung["worker"] not in processes.alive(), "the end of the worker that hung")
    assert len(notes.read("half", **task_of(hung))) >= 2


@pytest.mark.slow
def test_workers_that_spark_ends_after_an_idle_minute_lose_nothing(
    session: Session, processes: Processes, run: Run, notes: Notes, wanted: Results, tmp_path: Path
) -> None:
    """Spark has no option for the minute. The second half of the stream runs in new workers."""
    files = sorted(run.flights.iterdir())
    arrived = tmp_path / "arrived"
    arrived.mkdir()
    places = asdict(replace(run, flights=arrived))
    for file in files[:2]:
        shutil.copy2(file, arrived)
    session().order("stream", fault="NoFault", **places)
    idle = {end["worker"] for end in notes.read("end")}
    wait_until(lambda: not idle & set(processes.alive()), "the end of the idle workers")
    assert {end["executor"] for end in notes.read("end")} <= set(processes.alive())
    for file in files[2:]:
        shutil.copy2(file, arrived)
    session().order("stream", fault="NoFault", **places)
    assert_counted_once(run, wanted)
    assert not idle & {end["worker"] for end in notes.read("end", epoch=1)}


def test_rdd_job_and_stream_in_one_application_use_queues_in_the_same_executors(
    session: Session, run: Run, notes: Notes, wanted: Results
) -> None:
    counted = session().order("stream_and_rdd", **asdict(run))
    assert_counted_once(run, wanted)
    carriers: Counter[str] = Counter()
    for (carrier, _hour), departures in wanted["departures"].items():
        carriers[carrier] += departures
    for rows in counted.values():
        found: Counter[str] = Counter()
        for carrier, number, _executor in rows:
            found[carrier] += number
        assert found == carriers
    # Not in the same processes: Spark forks the workers of RDDs and of DataFrames from separate
    # daemons.
    executors = {end["executor"] for end in notes.read("end")}
    assert executors & {executor for _carrier, _number, executor in counted["after"]}


def test_killed_driver_is_resumed_by_another_and_every_row_counted_once(
    session: Session,
    driver: Driver,
    processes: Processes,
    master: str,
    run: Run,
    notes: Notes,
    wanted: Results,
) -> None:
    driver.stop()
    killed = Driver(processes, "killed driver", PYTHONPATH=CHECKOUT)
    killed.session(conf(master, spark_executorEnv_PYTHONPATH=CHECKOUT))
    killed.send("stream", fault="WaitsInTheSecondEpoch", **asdict(run))
    wait_until(lambda: notes.read("wait") != [], "a task of the second epoch")
    assert killed.kill() == -signal.SIGKILL
    store = SqliteStore(run.database)
    assert [epoch.batch_id for epoch in store.summaries("flights")] == [0]
    session().order("stream", fault="NoFault", **asdict(run))
    assert_counted_once(run, wanted)
    (waiting,) = notes.read("wait")
    wait_until(
        lambda: waiting["executor"] not in processes.alive(),
        "the end of the first driver's executor",
    )
