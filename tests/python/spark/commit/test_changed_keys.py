"""Jobs with `changed_keys=True`: each epoch lists what it has changed, once, in its transaction."""

import os
import random
import signal
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from batchqueue import ConfigError
from batchqueue.aggregation import CountMetrics, Metrics, SumMetrics, Window, metric_type
from batchqueue.outputs import BadRows, Epoch, SqliteStore
from batchqueue.spark import AggregationJob, DeadLetters, Watermark
from batchqueue.spark.commit import commit as changes
from batchqueue.spark.commit.commit import EpochCommit
from batchqueue.spark.options import SinkOptions
from batchqueue.spark.task.attempt import run_attempt
from batchqueue.spark.task.message import EpochId

HITS = metric_type("hits", CountMetrics)
BYTES = metric_type("bytes", SumMetrics, columns={"total": int})
OPTIONS = SinkOptions(sink_id="pages", on_new_query=None, txn_id=None, max_commit_bytes=1_000_000)

Rows = Sequence[tuple[str, int]]
"""Page and time bucket of each."""


def items(rows: pa.RecordBatch) -> Iterator[Metrics]:
    for page, at in zip(rows["page"].to_pylist(), rows["at"].to_pylist(), strict=True):
        if page == "bad":
            raise ValueError(page)
        yield HITS(page, at)
        if page != "small":
            yield BYTES(page, at, 7)


def hits_only(rows: pa.RecordBatch) -> Iterator[Metrics]:
    return (item for item in items(rows) if type(item) is HITS)


def job(store: Any, **changes: Any) -> AggregationJob:
    settings = {"name": "pages", "items": items, "metrics": [HITS, BYTES], "store": store}
    return AggregationJob(**{**settings, "changed_keys": True, **changes})


def attempt(of: AggregationJob, rows: Rows, epoch: EpochId | None) -> Any:
    pages, times = zip(*rows, strict=True) if rows else ((), ())
    columns = {"page": pa.array(pages, pa.string()), "at": pa.array(times, pa.int64())}
    return run_attempt(of, OPTIONS, [pa.RecordBatch.from_pydict(columns)], epoch)


def apply_epoch(of: AggregationJob, number: int, *tasks: Rows) -> dict[str, Any]:
    epoch = EpochId("q", number)
    messages = [attempt(of, rows, epoch) for rows in tasks]
    return EpochCommit(of, OPTIONS, messages).apply_epoch(number)


def apply_batch(of: AggregationJob, rows: Rows, *, overwrite: bool = False, **options: Any) -> None:
    commit = EpochCommit(of, replace(OPTIONS, **options), [attempt(of, rows, None)])
    commit.apply_batch(overwrite=overwrite)


def listed(store: Any, after: int = 0) -> dict[int, dict[str, list[tuple[str, int]]]]:
    """Returns the keys by metric, by their position."""
    return dict(store.changed("pages", after=after))


def test_exporter_gets_the_keys_of_each_epoch_once(any_store: Any) -> None:
    chance, position = random.Random(3), 0
    copy: dict[tuple[str, str, int], int] = {}
    for number in range(8):
        rows = [(chance.choice(["a", "b", "small"]), chance.randrange(3)) for _ in range(4)]
        tasks = [rows[:2], rows[2:]] if number % 3 else [()]
        for _ in range(2):  # the second one is a replay
            summary = apply_epoch(job(any_store), number, *tasks)
        found = listed(any_store, after=position)
        changed = {key for task in tasks for key in task}
        if changed:
            ((position, keys),) = found.items()
            assert position == summary["changed_at"]
            assert keys["hits"] == sorted(changed)
            assert keys.get("bytes", []) == sorted(key for key in changed if key[0] != "small")
            for metric in (HITS, BYTES):
                for entity, bucket in keys.get(metric.name, []):
                    (item,) = any_store.read(
                        metric, "pages", entities=[entity], since=bucket, before=bucket + 1
                    )
                    copy[metric.name, entity, bucket] = item.to_rows()[0][0]
        else:
            assert found == {}
    assert copy == {
        (metric.name, *item.key): item.to_rows()[0][0]
        for metric in (HITS, BYTES)
        for item in any_store.read(metric, "pages")
    }


def test_lists_are_in_order_however_the_clock_runs(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number, second in enumerate((1_000, 1_000, 950, 900, 1_500)):
        monkeypatch.setattr(changes, "time", SimpleNamespace(time=lambda second=second: second))
        apply_epoch(job(store, changed_keys=number != 2), number, [("a", number)])
    assert list(listed(store)) == [1_000, 1_001, 1_002, 1_500]


def test_bad_rows_and_late_partials_are_not_among_them(store: SqliteStore) -> None:
    settings = {
        "on_bad_row": DeadLetters(),
        "watermark": Watermark(Window("at", 10), delay_s=0),
    }
    apply_epoch(job(store, **settings), 0, [("a", 100), ("bad", 100)])
    summary = apply_epoch(job(store, **settings), 1, [("late", 50), ("a", 110)])
    assert summary["late"] == 2
    assert [keys["hits"] for keys in listed(store).values()] == [[("a", 100)], [("a", 110)]]
    assert len(store.read(BadRows, "pages")) == 1


def test_day_computed_again_lists_what_is_gone_as_well(any_store: Any) -> None:
    apply_batch(job(any_store), [("a", 0), ("gone", 5), ("next", 10)])
    apply_batch(job(any_store), [("a", 0), ("new", 7)], replaced=range(10), txn_id="again")
    first, again = listed(any_store).values()
    assert first["hits"] == [("a", 0), ("gone", 5), ("next", 10)]
    assert again["hits"] == again["bytes"] == [("a", 0), ("gone", 5), ("new", 7)]


def test_first_write_may_replace(any_store: Any) -> None:
    apply_batch(job(any_store), [("a", 0)], replaced=range(10))
    assert [keys["hits"] for keys in listed(any_store).values()] == [[("a", 0)]]


@pytest.mark.parametrize("rows", [[("b", 0)], []])
def test_overwrite_lists_all_that_was_there(any_store: Any, rows: Rows) -> None:
    apply_batch(job(any_store), [("a", 0)])
    (before,) = listed(any_store)
    apply_batch(job(any_store), rows, overwrite=True)
    ((after, keys),) = listed(any_store).items()
    assert after > before
    assert keys["hits"] == [("a", 0), *rows]


def test_metric_of_an_earlier_job_is_listed_when_it_is_replaced(
    store: SqliteStore,
) -> None:
    apply_batch(job(store), [("a", 0)])
    fewer = job(store, items=hits_only, metrics=[HITS])
    apply_batch(fewer, [("a", 0)], replaced=range(10), on_job_change="accept")
    _, again = listed(store).values()
    assert again == {"hits": [("a", 0)], "bytes": [("a", 0)]}


def test_several_epochs_are_returned_in_their_order_with_all_metrics(any_store: Any) -> None:
    """Read as a metric they are in the order of the metrics' names."""
    for number in range(3):
        apply_epoch(job(any_store), number, [("a", number)])
    first, second, third = any_store.changed("pages")
    assert first.position < second.position < third.position
    assert third.keys == {"bytes": [("a", 2)], "hits": [("a", 2)]}
    assert any_store.changed("pages", after=second.position) == [third]


def test_retention_deletes_lists_by_the_time_of_their_commit(any_store: Any) -> None:
    for number in range(3):
        last = apply_epoch(job(any_store), number, [("small", 2**40 + number)])["changed_at"]
    assert any_store.delete(before=last, sink_id="pages") == 2
    assert list(listed(any_store)) == [last]


def test_job_that_does_not_ask_has_no_lists(store: SqliteStore) -> None:
    summary = apply_epoch(job(store, changed_keys=False), 0, [("a", 0)])
    assert summary["changed_at"] is None
    assert listed(store) == {}


@pytest.mark.parametrize("is_listed", [True, False])
def test_commit_reads_no_more_than_the_newest_summary_for_its_position(
    store: SqliteStore, is_listed: bool
) -> None:
    asked: list[int | None] = []

    def summaries(newest: int | None) -> list[Epoch]:
        asked.append(newest)
        return store.summaries("pages", newest)

    for number in range(3):
        apply_epoch(job(store, changed_keys=is_listed), number, [("a", number)])
        changes.Changes(job(store), summaries)
    assert asked == [1, 1, 1]


def test_position_is_kept_through_epochs_that_are_not_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = SqliteStore(tmp_path / "metrics.db", kept_summaries=1)
    for number, is_listed in enumerate((True, False, False, True)):
        second = 1_000 if number else 2_000
        monkeypatch.setattr(changes, "time", SimpleNamespace(time=lambda second=second: second))
        apply_epoch(job(store, changed_keys=is_listed), number, [("a", number)])
    assert list(listed(store)) == [2_000, 2_001]


def test_killed_commit_leaves_results_and_lists_of_the_same_epochs(any_store: Any) -> None:
    """The commit, in a child, is killed at any moment."""
    chance, listing = random.Random(11), job(any_store)
    apply_epoch(listing, 0, [("a", 0)])
    for number in range(1, 9):
        child = os.fork()
        if child == 0:
            signal.setitimer(signal.ITIMER_REAL, chance.random() / 10)
            signal.signal(signal.SIGALRM, lambda *_: os.kill(os.getpid(), signal.SIGKILL))
            try:
                apply_epoch(listing, number, [("a", number), ("small", number)])
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        stored = {item.key for item in any_store.read(HITS, "pages")}
        assert {key for keys in listed(any_store).values() for key in keys["hits"]} == stored
        apply_epoch(listing, number, [("a", number), ("small", number)])
    assert [len(keys["hits"]) for keys in listed(any_store).values()] == [1, *[2] * 8]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"changed_keys": "yes"}, "changed_keys of job 'pages' is 'yes'; give True or False"),
        (
            {"metrics": [metric_type("changed_keys", CountMetrics)]},
            "has a metric named 'changed_keys', under which changed_keys=True lists keys: rename",
        ),
    ],
)
def test_wrong_settings_are_refused(
    store: SqliteStore, settings: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        job(store, **settings)
