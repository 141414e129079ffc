"""Progress of a running query: exactly its epochs, as lines or above a bar."""

import logging
import sys
from collections.abc import Callable, Iterator
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from rich.console import Console

from batchqueue import ConfigError
from batchqueue.base.background_log import flush_log
from batchqueue.outputs import Epoch, SqliteStore, StoreUnavailableError
from batchqueue.spark import LedgerListener, MissingPackageError, show_progress
from batchqueue.spark.commit.summary import SinkTotals, epoch_summary, latest_totals, with_totals
from batchqueue.spark.driver.progress import EpochWatch, NewEpoch
from batchqueue.spark.driver.progress_display import ProgressDisplay
from batchqueue.spark.options import L1Choice
from batchqueue.spark.stage import CpuSummary, StageSummary
from batchqueue.spark.task.message import AttemptSummary
from core_support.waits import WAIT_S
from spark_support.flight_job import FILES, ROWS_PER_FILE, flight_job
from spark_support.waits import wait_until


def summary(batch_id: int, rows: int, *, failed: int = 0, l1_use: float = 40.0) -> dict[str, Any]:
    def stage(items: int, use: float, failed: int = 0) -> StageSummary:
        return StageSummary(items, items - failed, failed, 0, 0, 0, use)

    cpu = CpuSummary(0.5, 0.5, 1.0)
    return epoch_summary(
        batch_id,
        [AttemptSummary(rows, stage(6 * rows, l1_use, failed), (6 * rows,), cpu)],
        l1=L1Choice("tasks", "a format has its rows in the tasks"),
        commit_bytes=1_000,
        l2=stage(rows, 5.0),
        persist=stage(rows // 2, 100.0),
        commit_cpu=cpu,
        guarantee="exactly-once",
        committed_at=1_000.0,
    )


def record(
    store: SqliteStore, batch_id: int, rows: int, sink: str = "s", query: str = "q", **more: Any
) -> None:
    with store.transaction(sink) as transaction:
        before = latest_totals(transaction.summaries)
        transaction.record(query, batch_id, with_totals(summary(batch_id, rows, **more), before))


class ScriptedQuery:
    """A query that takes its next step at each check whether it is active, and then ends."""

    id = "q"

    def __init__(self, *steps: Callable[[], None], error: Exception | None = None) -> None:
        self._steps = list(steps)
        self._done = 0
        self._error = error
        self.has_ended = False

    @property
    def isActive(self) -> bool:
        if self._done == len(self._steps):
            self.has_ended = True
            return False
        self._steps[self._done]()
        self._done += 1
        return True

    @property
    def lastProgress(self) -> dict[str, Any] | None:
        return {"batchId": self._done - 1} if self._done else None

    def awaitTermination(self) -> None:
        assert self.has_ended
        if self._error is not None:
            raise self._error


def shown(query: Any, store: Any, sink_ids: Any = "s", **options: Any) -> list[str]:
    """The lines of an output that is not a terminal."""
    file = StringIO()
    show_progress(
        query, store, sink_ids, console=Console(file=file), **{"line_interval_s": 0, **options}
    )
    assert "\x1b" not in file.getvalue()
    return file.getvalue().splitlines()


def test_each_epoch_has_a_line_with_the_ledgers_figures(store: SqliteStore) -> None:
    query = ScriptedQuery(
        lambda: record(store, 0, 1_500), lambda: record(store, 1, 500, failed=2, l1_use=90)
    )
    first, second = shown(query, store, total_rows=4_000)
    rows, rest = first.split(" rows/s  ")
    assert rows.split()[:6] == ["epoch", "0", "1,500", "of", "4,000", "rows"]
    assert rest == "L1 ratio 6.0  queue use l1 40 %, l2 5 %, persist 100 %  failed 0  refused 0"
    assert second.split()[:6] == ["epoch", "1", "2,000", "of", "4,000", "rows"]
    assert second.endswith("queue use l1 90 %, l2 5 %, persist 100 %  failed 2  refused 0")


def test_epochs_that_end_together_have_a_line_each(store: SqliteStore) -> None:
    query = ScriptedQuery(lambda: [record(store, batch_id, 10) for batch_id in range(4)])
    assert [line.split()[1] for line in shown(query, store)] == ["0", "1", "2", "3"]


def test_earlier_epochs_and_other_queries_are_not_shown_but_counted(
    store: SqliteStore,
) -> None:
    record(store, 0, 1_000)
    query = ScriptedQuery(
        lambda: record(store, 5, 100, query="other"), lambda: record(store, 1, 10)
    )
    (line,) = shown(query, store)
    assert line.split()[:4] == ["epoch", "1", "1,110", "rows"]


def test_epoch_of_shards_is_shown_once_all_have_it(store: SqliteStore) -> None:
    sinks = ["s/0", "s/1"]

    def ahead() -> None:
        for sink, epochs in zip(sinks, (2, 1), strict=True):
            for batch_id in range(epochs):
                record(store, batch_id, 100, sink, l1_use=50 if sink == "s/1" else 10)

    watch = EpochWatch(store, sinks, "q")
    ahead()
    (epoch,) = watch.poll()
    assert watch.poll() == []
    record(store, 1, 60, "s/1", failed=1)
    (second,) = watch.poll()
    assert (epoch.batch_id, epoch.summary["rows"], epoch.totals.rows) == (0, 200, 200)
    assert epoch.summary["stages"]["l1"]["peak_used_percent"] == 50
    assert epoch.summary["l1_ratio"] == 6.0
    assert (second.batch_id, second.summary["rows"], second.totals.rows) == (1, 160, 360)
    assert second.summary["stages"]["l1"]["failed"] == 1
    assert second.summary["commit_wall_s"] == 1.0  # concurrent
    assert second.summary["commit_bytes"] == 2_000


def test_display_ends_with_the_query_and_raises_its_error(store: SqliteStore) -> None:
    failing = ScriptedQuery(lambda: record(store, 0, 10), error=ArithmeticError("the sky fell"))
    file = StringIO()
    with pytest.raises(ArithmeticError, match="the sky fell"):
        show_progress(failing, store, "s", console=Console(file=file))
    assert file.getvalue().startswith("epoch   0")


class Away(SqliteStore):
    """A store that is out of reach while `is_away`."""

    is_away = True

    def summaries(self, sink_id: str = "default", newest: int | None = None) -> list[Epoch]:
        if self.is_away:
            raise StoreUnavailableError("no route to host")
        return super().summaries(sink_id, newest)


def test_unreadable_ledger_is_reported_once_and_read_again(tmp_path: Path) -> None:
    store = Away(tmp_path / "metrics.db")
    store.is_away = False

    def away(batch_id: int) -> Callable[[], None]:
        def step() -> None:
            store.is_away = False
            record(store, batch_id, 10)
            store.is_away = True

        return step

    def back() -> None:
        store.is_away = False
        record(store, 2, 10)

    lines = shown(ScriptedQuery(away(0), away(1), back), store)
    assert lines[0] == "the ledger cannot be read: no route to host"
    assert [line.split()[:2] for line in lines[1:]] == [
        ["epoch", str(number)] for number in range(3)
    ]


def test_ledger_that_is_away_at_the_start_does_not_make_old_epochs_new(tmp_path: Path) -> None:
    store = Away(tmp_path / "metrics.db")
    store.is_away = False
    record(store, 0, 1_000)
    store.is_away = True

    def back() -> None:
        store.is_away = False

    (line,) = shown(ScriptedQuery(back, lambda: record(store, 1, 10)), store)
    assert line.split()[:3] == ["epoch", "1", "1,010"]


def test_missing_store_is_waited_for(store: SqliteStore) -> None:
    assert not store.path.exists()
    (line,) = shown(ScriptedQuery(lambda: record(store, 0, 10)), store)
    assert line.split()[:2] == ["epoch", "0"]


class Clock:
    def __init__(self) -> None:
        self.seconds = 100.0

    def __call__(self) -> float:
        return self.seconds


def new_epoch(batch_id: int, rows_so_far: int, rows: int) -> NewEpoch:
    return NewEpoch(
        batch_id, summary(batch_id, rows), SinkTotals(epochs=batch_id + 1, rows=rows_so_far)
    )


def test_lines_are_written_at_an_interval_and_for_the_last_epoch() -> None:
    clock, file = Clock(), StringIO()
    with ProgressDisplay(Console(file=file), line_interval_s=10, clock=clock) as display:
        for number in range(10):
            clock.seconds += 4
            display.show(new_epoch(number, 10 * number, 10))
    # Epoch 0, then the first epoch at least 10 s later, and so on; 9 is among these.
    assert [line.split()[1] for line in file.getvalue().splitlines()] == ["0", "3", "6", "9"]
    file = StringIO()
    with ProgressDisplay(Console(file=file), line_interval_s=10, clock=clock) as display:
        for number in range(3):
            clock.seconds += 4
            display.show(new_epoch(number, 10 * number, 10))
    assert [line.split()[1] for line in file.getvalue().splitlines()] == ["0", "2"]


def test_rate_is_that_of_the_last_minute_without_earlier_runs() -> None:
    clock, file = Clock(), StringIO()
    with ProgressDisplay(Console(file=file), line_interval_s=0, clock=clock) as display:
        for rows_so_far, rows, after_s in (
            (1_000_100, 100, 10),  # 100 rows in 10 s, after a million of an earlier run
            (1_000_200, 100, 40),
            (
                1_000_200,
                0,
                30,
            ),  # the start is 80 s ago, the first epoch 70 s: the window begins there
            (1_000_500, 300, 60),
        ):
            clock.seconds += after_s
            display.show(new_epoch(0, rows_so_far, rows))
    rates = [line.split(" rows/s")[0].split()[-1] for line in file.getvalue().splitlines()]
    assert rates == ["10", "4", "1", "5"]


def test_newest_line_stands_above_a_bar_in_a_terminal(store: SqliteStore) -> None:
    file = StringIO()
    console = Console(force_terminal=True, file=file, width=200)
    query = ScriptedQuery(lambda: record(store, 0, 1_000), lambda: record(store, 1, 2_000))
    show_progress(query, store, "s", total_rows=4_000, console=console)
    text = file.getvalue()
    assert "waiting for the first epoch" in text
    assert "\x1b[2K" in text  # the bar is drawn over itself
    assert "━" in text
    assert " 25 %" in text
    last = text.rpartition("\x1b[2K")[2]  # what remains after the bar is erased
    assert last.startswith("epoch   1      3,000 of 4,000 rows")
    assert last.count("\n") == 1
    assert text.count("epoch   1") >= 2  # the line stood above the bar


@pytest.mark.parametrize(
    ("totals", "expected"),
    [({"total_epochs": 4}, " 50 %"), ({}, "3,000 rows")],
    ids=["epochs", "nothing"],
)
def test_bar_counts_the_known_epochs(
    store: SqliteStore, totals: dict[str, int], expected: str
) -> None:
    file = StringIO()
    query = ScriptedQuery(
        lambda: record(store, 0, 1_000), lambda: record(store, 1, 2_000), lambda: None, lambda: None
    )
    console = Console(force_terminal=True, file=file, width=200, color_system=None)
    show_progress(query, store, "s", console=console, **totals)
    bars = [line for line in file.getvalue().splitlines() if ":" in line]
    assert any(expected in line for line in bars)
    assert any("━" in line for line in bars) == bool(totals)


def test_invalid_sink_ids_are_rejected(store: SqliteStore) -> None:
    for watching in (
        lambda: show_progress(ScriptedQuery(), store, []),
        lambda: LedgerListener(store, ["s", "s"]),
    ):
        with pytest.raises(ConfigError, match="give at least one sink id, each once"):
            watching()


def test_missing_package_is_named_with_the_remedy(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "batchqueue.spark.driver.progress_display")
    monkeypatch.setitem(sys.modules, "rich.console", None)
    with pytest.raises(MissingPackageError, match=r"rich.*pip install 'batchqueue-rs\[progress\]'"):
        show_progress(ScriptedQuery(), store, "s")


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> Iterator[list[tuple[str, str]]]:
    """Level and text of each line of the driver's log."""
    caplog.set_level(logging.INFO, "batchqueue.spark")
    lines: list[tuple[str, str]] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(  # type: ignore[method-assign]
        (record.levelname, record.getMessage())
    )
    logger = logging.getLogger("batchqueue.spark")
    logger.addHandler(handler)
    yield lines
    logger.removeHandler(handler)


def progress_event(query: str, batch_id: int) -> Any:
    return SimpleNamespace(progress=SimpleNamespace(id=query, batchId=batch_id))


def test_listener_logs_each_epoch_of_its_sink_once_and_the_end(
    store: SqliteStore, log: list[tuple[str, str]]
) -> None:
    record(store, 0, 100)
    record(store, 1, 100)
    listener = LedgerListener(store, "s")
    listener.onQueryProgress(progress_event("q", 1))
    listener.onQueryProgress(progress_event("q", 1))
    listener.onQueryProgress(progress_event("of another sink", 5))
    record(store, 2, 1_200)
    record(store, 3, 100)
    listener.onQueryProgress(progress_event("q", 2))
    assert flush_log(WAIT_S)
    assert [(level, text[:33]) for level, text in log] == [
        ("INFO", f"sink s: epoch {number} of query q: {rows}"[:33])
        for number, rows in ((1, "100 rows"), (2, "1,200 rows"), (3, "100 rows"))
    ]
    log.clear()
    listener.onQueryTerminated(SimpleNamespace(id="of another sink", exception="not ours"))
    listener.onQueryTerminated(SimpleNamespace(id="q", exception="the sky fell"))
    assert flush_log(WAIT_S)
    assert log == [("ERROR", "sink s: query q has failed: the sky fell")]


def test_listener_reports_an_unreadable_ledger(tmp_path: Path, log: list[tuple[str, str]]) -> None:
    listener = LedgerListener(Away(tmp_path / "metrics.db"), ["s/0", "s/1"])
    listener.onQueryProgress(progress_event("q", 0))
    assert flush_log(WAIT_S)
    assert log == [("WARNING", "sink s: its ledger cannot be read: no route to host")]


def fail(_batch: Any) -> Iterator[Any]:
    raise ArithmeticError("the sky fell on our heads")


def test_stream_is_shown_and_logged_on_the_driver_and_its_failure_raised(
    spark: SparkSession, store: SqliteStore, start: Any, log: list[tuple[str, str]]
) -> None:
    listener = LedgerListener(store, "flights")
    spark.streams.addListener(listener)
    try:
        query = start(flight_job(store))
        lines = shown(query, store, "flights", total_rows=FILES * ROWS_PER_FILE)
        assert [line.split()[:3] for line in lines] == [
            ["epoch", str(number), f"{(number + 1) * ROWS_PER_FILE:,}"] for number in range(FILES)
        ]
        wait_until(lambda: len(log) == FILES + 1)
        assert [level for level, _ in log] == ["INFO"] * (FILES + 1)
        for number, (_, text) in enumerate(log[:FILES]):
            assert text.startswith(f"sink flights: epoch {number} of query {query.id}: 500 rows, ")
        assert log[-1][1] == f"sink flights: query {query.id} has ended"
        broken = start(
            flight_job(store, items=fail), store.path.parent / "another checkpoint", sinkId="other"
        )
        with pytest.raises(StreamingQueryException, match="the sky fell on our heads"):
            show_progress(broken, store, "other", console=Console(file=StringIO()))
    finally:
        spark.streams.removeListener(listener)
