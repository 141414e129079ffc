"""Final time buckets without Spark: epochs of random rows against a model of a few lines."""

import os
import random
import signal
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from batchqueue import ConfigError
from batchqueue.aggregation import (
    Count,
    CountMetrics,
    Metrics,
    Sum,
    Window,
    bucket_start,
    metric_type,
)
from batchqueue.outputs import SqliteStore, StoreError
from batchqueue.outputs.store import FIRST_BUCKET
from batchqueue.spark import (
    AggregationJob,
    ArrowAggregation,
    DeadLetters,
    SinkError,
    Watermark,
)
from batchqueue.spark.commit.commit import EpochCommit
from batchqueue.spark.options import SinkOptions
from batchqueue.spark.task.attempt import run_attempt
from batchqueue.spark.task.message import EpochId, empty_message

HITS = metric_type("hits", CountMetrics)
TEN = Window("at", 10)
MARK = Watermark(TEN, delay_s=5)
STEP = ArrowAggregation(keys=["key"], time=TEN, metrics={HITS: Count()})
OPTIONS = SinkOptions(sink_id="hits", on_new_query=None, txn_id=None, max_commit_bytes=1_000_000)

Rows = Sequence[tuple[str, int]]
"""Key and time of each."""


def job(store: Any, watermark: Watermark | None = MARK, **changes: Any) -> AggregationJob:
    parts = {"name": "hits", "arrow": [STEP], "store": store, "watermark": watermark} | changes
    return AggregationJob(**parts)


def batch(rows: Rows) -> pa.RecordBatch:
    keys, times = zip(*rows, strict=True)
    return pa.RecordBatch.from_pydict({"key": keys, "at": pa.array(times, pa.int64())})


def apply_epoch(job: AggregationJob, number: int, tasks: Sequence[Rows]) -> dict[str, Any]:
    epoch = EpochId("q", number)
    messages = [run_attempt(job, OPTIONS, [batch(rows)], epoch) for rows in tasks if rows]
    messages = messages or [empty_message(job, epoch)]
    return EpochCommit(job, OPTIONS, messages).apply_epoch(number)


def stored(store: Any, **limits: Any) -> Counter[tuple[str, int]]:
    return Counter({hits.key: hits.count for hits in store.read(HITS, "hits", **limits)})


epochs = st.lists(
    st.lists(st.lists(st.tuples(st.sampled_from("ab"), st.integers(970, 1_090))), max_size=3),
    max_size=6,
)


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(epochs, st.sampled_from([0, 5, 17.5]), st.sampled_from(["drop", "add"]))
def test_buckets_are_final_as_in_the_model_and_exported_once(
    tmp_path_factory: pytest.TempPathFactory,
    epochs: list[list[Rows]],
    delay_s: float,
    late: Any,
) -> None:
    store = SqliteStore(tmp_path_factory.mktemp("final") / "metrics.db")
    marked = job(store, Watermark(TEN, delay_s, late))
    kept: Counter[tuple[str, int]] = Counter()
    exported: Counter[tuple[str, int]] = Counter()
    final: int | None = None
    newest = None
    for number, tasks in enumerate(epochs):
        before, late_keys = final, set()
        for rows in tasks:
            for key, at in rows:
                bucket = at // 10 * 10
                is_late = before is not None and bucket < before
                if is_late:
                    late_keys.add((key, bucket))
                if not is_late or late == "add":
                    kept[key, bucket] += 1
                newest = at if newest is None else max(newest, at)
        if newest is not None:
            final = int((newest - delay_s) // 10 * 10)
        for _ in range(2):  # a replay changes nothing
            summary = apply_epoch(marked, number, tasks)
        assert summary["late"] == len(late_keys)
        assert summary["final_before"] == final
        assert store.final_before("hits") == (FIRST_BUCKET if final is None else final)
        assert stored(store) == kept
        exported += stored(store, since=before, before=store.final_before("hits"))
    if late == "drop" and final is not None:
        assert exported == stored(store, before=final)


def test_empty_epoch_keeps_the_mark(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "metrics.db")
    assert apply_epoch(job(store), 0, [[("a", 27)]])["final_before"] == 20
    for number, tasks in ((1, []), (2, [[("a", 13)]]), (3, [])):
        assert apply_epoch(job(store), number, tasks)["final_before"] == 20
    assert stored(store) == {("a", 20): 1}
    (newest,) = store.summaries("hits", 1)
    assert newest.summary["totals"]["late"] == 1


def test_mark_stays_when_the_job_changes(tmp_path: Path) -> None:
    """A later job may have no watermark, which counts late partials all the same."""
    store = SqliteStore(tmp_path / "metrics.db")
    apply_epoch(job(store), 0, [[("a", 100)]])
    assert apply_epoch(job(store, None), 1, [[("a", 13)]])["late"] == 1
    slower = job(store, replace(MARK, delay_s=1_000))
    assert apply_epoch(slower, 2, [[("a", 110), ("a", 15)]])["late"] == 1
    assert store.final_before("hits") == 90
    assert stored(store) == {("a", 10): 1, ("a", 100): 1, ("a", 110): 1}


def test_mark_outlives_an_epoch_of_another_writer(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "metrics.db")
    apply_epoch(job(store), 0, [[("a", 100)]])
    with store.transaction("hits") as transaction:
        transaction.record("load", 7, {"rows": 2})
    assert store.final_before("hits") == 90
    assert apply_epoch(job(store), 1, [[("a", 13)]])["late"] == 1


def test_window_that_becomes_wider_moves_the_mark_to_its_start(tmp_path: Path) -> None:
    """The wider bucket that has begun is not final, whatever its first parts were."""
    store = SqliteStore(tmp_path / "metrics.db")
    apply_epoch(job(store), 0, [[("a", 147)]])
    assert store.final_before("hits") == 140
    wide = Window("at", 100)
    step = ArrowAggregation(keys=["key"], time=wide, metrics={HITS: Count()})
    wider = job(store, Watermark(wide, delay_s=5), arrow=[step])
    accepting = replace(OPTIONS, on_job_change="accept")
    for number, (at, final) in enumerate(((150, 100), (190, 100), (206, 200)), 1):
        messages = [run_attempt(wider, accepting, [batch([("a", at)])], EpochId("q", number))]
        summary = EpochCommit(wider, accepting, messages).apply_epoch(number)
        assert (summary["late"], summary["final_before"]) == (0, final)
    assert stored(store) == {("a", 100): 2, ("a", 140): 1, ("a", 200): 1}


def by_all_times(rows: pa.RecordBatch) -> Iterator[Metrics]:
    for row in rows.to_pylist():
        yield HITS(row["key"], 0)


def test_results_of_all_times_are_never_late(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "metrics.db")
    total = job(store, arrow=(), items=by_all_times, metrics=[HITS])
    for number in range(3):
        assert apply_epoch(total, number, [[("a", 1_000 * number)]])["late"] == 0
    assert stored(store) == {("a", 0): 3}


def test_dropped_partials_are_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "batchqueue.spark")
    for late, level in (("drop", "WARNING"), ("add", "INFO")):
        store = SqliteStore(tmp_path / f"{late}.db")
        marked = job(store, replace(MARK, late=late))
        for number, at in enumerate((100, 13)):
            caplog.clear()
            apply_epoch(marked, number, [[("a", at)]])
        (record,) = caplog.records
        assert (record.levelname, "1 late partial" in record.message) == (level, True)


def test_time_far_ahead_of_the_clock_moves_no_watermark(tmp_path: Path) -> None:
    """Its row counts, where it says that it belongs."""
    store = SqliteStore(tmp_path / "metrics.db")
    now = int(datetime.now(UTC).timestamp())
    rows = [("a", now), ("a", 4_000_000_000), ("b", 10**15), ("a", -(10**15))]
    summary = apply_epoch(job(store), 0, [rows])
    assert summary["final_before"] == (now - 5) // 10 * 10
    assert sum(stored(store).values()) == 4
    ahead = job(SqliteStore(tmp_path / "ahead.db"), replace(MARK, max_ahead_s=1e9))
    assert apply_epoch(ahead, 0, [[("a", now + 900_000_000)]])["final_before"] > now


def test_sink_of_shards_has_the_marks_of_its_shards(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "metrics.db")
    with store.transaction("hits/0") as transaction:
        transaction.record("q", 0, {"final_before": 90})
    assert store.final_before("hits/0") == 90
    with pytest.raises(StoreError, match=r"'hits' was written in shards, .*: ask for the epochs"):
        store.changed("hits")
    assert store.changed("hits/0") == []
    with pytest.raises(StoreError, match=r"'hits' was written in shards, as sink 'hits/0' shows"):
        store.final_before("hits")


def test_batch_writes_move_no_mark_and_reach_final_buckets(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = SqliteStore(tmp_path / "metrics.db")

    def write(rows: Rows, **options: Any) -> dict[str, Any]:
        given = replace(OPTIONS, **options)
        messages = [run_attempt(job(store), given, [batch(rows)])]
        return EpochCommit(job(store), given, messages).apply_batch(overwrite=False)

    assert write([("a", 500)])["final_before"] is None
    assert store.final_before("hits") == FIRST_BUCKET
    assert stored(store, before=FIRST_BUCKET) == {}
    adding = replace(OPTIONS, on_new_query="append")
    first = [run_attempt(job(store), adding, [batch([("a", 105), ("a", 92)])], EpochId("q", 0))]
    assert EpochCommit(job(store), adding, first).apply_epoch(0)["final_before"] == 100
    again = write([("a", 91), ("a", 92)], replaced=range(90, 100))
    assert caplog.records == []
    assert (again["late"], again["final_before"]) == (0, 100)
    assert stored(store)["a", 90] == 2
    write([("a", 105)], replaced=range(90, 110))
    (record,) = caplog.records
    assert "`replace` ends at 110, and the buckets from 100 on are not final" in record.message


def test_killed_commit_leaves_mark_and_results_of_the_same_epochs(any_store: Any) -> None:
    """The commit, in a child, is killed at any moment, and its epoch comes again."""
    chance = random.Random(11)
    kept: Counter[tuple[str, int]] = Counter()
    states: list[tuple[int, Counter[tuple[str, int]]]] = [(FIRST_BUCKET, Counter())]
    for number in range(12):
        rows = [("a", 1_000 + 10 * number + chance.randrange(-40, 10)) for _ in range(30)]
        final = states[-1][0]
        kept += Counter((key, at // 10 * 10) for key, at in rows if at // 10 * 10 >= final)
        reached = (max(at for _, at in rows) - 5) // 10 * 10
        states.append((max(final, reached), kept.copy()))
        delay_s = chance.uniform(0.001, 0.2)
        child = os.fork()
        if child == 0:
            signal.signal(signal.SIGALRM, lambda *_: os.kill(os.getpid(), signal.SIGKILL))
            signal.setitimer(signal.ITIMER_REAL, delay_s)
            apply_epoch(job(any_store), number, [rows])
            os._exit(0)
        os.waitpid(child, 0)
        found = state(any_store)
        assert found in states[-2:], number
        apply_epoch(job(any_store), number, [rows])
        assert state(any_store) == states[-1], number


def state(store: Any) -> tuple[int, Counter[tuple[str, int]]]:
    try:
        return store.final_before("hits"), stored(store)
    except StoreError:  # not even created
        return FIRST_BUCKET, Counter()


def items(rows: pa.RecordBatch) -> Iterator[Metrics]:
    for row in rows.to_pylist():
        if row["at"] > 1_000:
            raise ValueError("too large")
        yield HITS(row["key"], row["at"] // 10 * 10)


def test_items_and_bad_rows(tmp_path: Path) -> None:
    """A bad row is kept whenever its task began, and its time moves no watermark."""
    store = SqliteStore(tmp_path / "metrics.db")
    by_items = job(store, arrow=(), items=items, metrics=[HITS], on_bad_row=DeadLetters())
    for number, rows in enumerate(([("a", 27), ("a", 5_000)], [("a", 18), ("a", 9_000)])):
        summary = apply_epoch(by_items, number, [rows])
        assert (summary["bad_rows"], summary["final_before"]) == (1, 20)
    assert summary["late"] == 1
    assert stored(store) == {("a", 20): 1}


DAY = Window("at", 86_400, zone="America/New_York")


@pytest.mark.parametrize(
    ("times", "newest"),
    [
        (pa.array([datetime(2024, 3, 10, 12, tzinfo=UTC)], pa.timestamp("us", "UTC")), None),
        (pa.array([datetime(2024, 3, 10, 12, tzinfo=UTC)], pa.timestamp("ns", "Asia/Tokyo")), None),
        (pa.array([1_710_072_000, None], pa.int64()), None),
        (
            pa.array([date(2024, 3, 10), date(2024, 3, 9)]),
            int(datetime(2024, 3, 10, tzinfo=ZoneInfo("America/New_York")).timestamp()),
        ),
        (
            pa.array([datetime(2024, 3, 10), None], pa.timestamp("s")).cast(pa.date64()),
            int(datetime(2024, 3, 10, tzinfo=ZoneInfo("America/New_York")).timestamp()),
        ),
        (pa.array([1_710_072_000_999_999, 10**17, -(10**17)], pa.timestamp("us", "UTC")), None),
    ],
)
def test_latest_time_of_each_type(times: pa.Array, newest: int | None) -> None:
    mark = Watermark(DAY, delay_s=3_600)
    noon = int(datetime(2024, 3, 10, 12, tzinfo=UTC).timestamp())
    assert mark.newest(times) == (newest or noon)
    assert mark.newest(times.slice(0, 0)) is None
    assert mark.final_before(noon) == bucket_start(noon, 86_400, zone="America/New_York")


def test_time_that_a_finer_unit_cannot_hold_moves_no_watermark() -> None:
    mark = Watermark(DAY)
    # 2**64 microseconds later, so that 64 bits of them show the first time again.
    for unit, per_s in (("s", 1), ("ms", 1_000)):
        later = pa.array([2**64 * per_s // 1_000_000 + 1_710_072_000 * per_s], pa.int64())
        times = later.cast(pa.timestamp(unit, "UTC"))
        assert mark.newest(times) is None


def test_weeks_of_dates_end_as_those_of_their_midnights() -> None:
    week = Watermark(Window("at", 7 * 86_400, offset_seconds=4 * 86_400), delay_s=86_400)
    sunday = datetime(2024, 3, 17, tzinfo=UTC)
    times = pa.array([sunday], pa.timestamp("us", "UTC")), pa.array([sunday.date()])
    assert {week.newest(each) for each in times} == {int(sunday.timestamp())}
    years = pa.array([-1_000_000, 6_585_000], pa.date32())  # before 1 and after 9999
    assert week.newest(years) == int(datetime(1, 1, 1, tzinfo=UTC).timestamp())


def test_times_of_another_type_are_named() -> None:
    for times, named in ((pa.array(["noon"]), "a string"), (pa.array([1.5]), "a double")):
        with pytest.raises(SinkError, match=f"of column 'at', {named}: give a timestamp with a z"):
            MARK.newest(times)
    naive = pa.array([datetime(2024, 3, 10, 12)])
    assert MARK.newest(naive) == int(datetime(2024, 3, 10, 12, tzinfo=UTC).timestamp())
    with pytest.raises(SinkError, match=r"timestamp\[us\]: give a timestamp with a zone"):
        Watermark(DAY).newest(naive)


def test_prepare_that_drops_the_column_is_named(tmp_path: Path) -> None:
    dropping = job(
        SqliteStore(tmp_path / "metrics.db"),
        prepare=lambda batches: (rows.select(["key"]) for rows in batches),
    )
    with pytest.raises(
        SinkError, match=r"column 'at', and the rows, behind `prepare` .*, have key: keep"
    ):
        apply_epoch(dropping, 0, [[("a", 1)]])


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"time": "at"}, "time is 'at'; give a Window of whole seconds"),
        ({"time": Window("at", 0.5)}, "give a Window of whole seconds"),
        ({"time": TEN, "delay_s": -1}, "delay_s is -1; give seconds"),
        ({"time": TEN, "max_ahead_s": float("nan")}, "max_ahead_s is nan; give seconds"),
        ({"time": TEN, "delay_s": True}, "delay_s is True; give seconds"),
        ({"time": TEN, "late": "fail"}, "late is 'fail'; give 'drop' or 'add'"),
    ],
)
def test_watermarks_that_cannot_be_are_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Watermark(**settings)


@pytest.mark.parametrize(
    ("window", "words"),
    [
        (None, "declares metrics without time buckets, which would never be final: give"),
        (Window("at", 20), "buckets of 10 s are cut by those of 20 s"),
        (Window("at", 3), "buckets of 10 s are cut by those of 3 s"),
        (Window("at", 5, offset_seconds=1), "with offsets of 0 and 1 s: give the widest window"),
        (Window("at", 10, zone="Europe/Rome"), "in UTC and in Europe/Rome"),
    ],
)
def test_windows_that_cross_the_buckets_are_refused(window: Window | None, words: str) -> None:
    step = ArrowAggregation(keys=["key"], time=window, metrics={"sums": Sum("n")})
    with pytest.raises(ConfigError, match=words):
        job(SqliteStore("metrics.db"), arrow=[step])


def test_job_reads_the_column_and_misses_it_by_name() -> None:
    store = SqliteStore("metrics.db")
    other = job(store, Watermark(Window("seen_at", 10)))
    assert other.columns_read() == ["seen_at", "key", "at"]
    with pytest.raises(ConfigError, match="needs column seen_at"):
        other.check_columns(["key", "at"])
    with pytest.raises(ConfigError, match=r"watermark of job 'hits' is 600; give a Watermark"):
        job(store, 600)  # type: ignore[arg-type]
