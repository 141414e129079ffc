"""Prometheus gets the ledger's figures: over restarts, pruned summaries, shards and outages."""

import json
import logging
import sqlite3
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.parser import text_string_to_metric_families

from batchqueue import ConfigError
from batchqueue.aggregation import Window
from batchqueue.base.background_log import flush_log
from batchqueue.outputs import Epoch, SqliteStore, StoreError, StoreUnavailableError
from batchqueue.spark import LedgerCollector, MissingPackageError, Watermark
from batchqueue.spark.commit.commit import EpochCommit
from batchqueue.spark.driver.prometheus import SinkMetric
from batchqueue.spark.options import SinkOptions
from batchqueue.spark.task.attempt import run_attempt
from batchqueue.spark.task.message import EpochId
from core_support.waits import WAIT_S
from pages import ROOT
from spark_support.flight_job import FILES, ROWS_PER_FILE, flight_job

PAGE = ROOT / "docs" / "spark" / "monitoring.md"
OPTIONS = SinkOptions(sink_id="flights", on_new_query=None, txn_id=None, max_commit_bytes=1_000_000)

Scrape = Callable[..., float | None]


def commit_epoch(
    store: SqliteStore, flights: Path, batch_id: int, query_id: str = "q1", **options: Any
) -> None:
    watermark = Watermark(Window("hour", 86_400), delay_s=30 * 86_400)
    job = flight_job(store, watermark=watermark)
    rows = pq.read_table(flights / f"part-{batch_id % FILES}.parquet").to_batches()
    chosen = replace(OPTIONS, **options)
    message = run_attempt(job, chosen, rows, EpochId(query_id, batch_id))
    EpochCommit(job, chosen, [message]).apply_epoch(batch_id)


def commit_batch(store: SqliteStore, flights: Path, *, overwrite: bool) -> None:
    job = flight_job(store)
    message = run_attempt(job, OPTIONS, pq.read_table(flights / "part-0.parquet").to_batches())
    EpochCommit(job, OPTIONS, [message]).apply_batch(overwrite=overwrite)


def scraped(collector: LedgerCollector) -> Scrape:
    """Scrape once; return a function that finds a value by name and labels."""
    registry = CollectorRegistry()
    registry.register(collector)
    registry.collect()
    found = {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in registry.collect()
        for sample in family.samples
    }

    def value(name: str, sink: str = "flights", **labels: str) -> float | None:
        return found.get(
            (f"batchqueue_sink_{name}", tuple(sorted({"sink": sink, **labels}.items())))
        )

    return value


def scrape(store: Any, sink_ids: Any = "flights") -> Scrape:
    """The same in a process that has just started."""
    return scraped(LedgerCollector(store, sink_ids))


def test_counters_add_up_and_gauges_are_those_of_the_last_epoch(
    store: SqliteStore, flights: Path
) -> None:
    before = time.time()
    for batch_id in range(3):
        commit_epoch(store, flights, batch_id)
    value = scrape(store)
    summaries = [epoch.summary for epoch in store.summaries("flights")]

    def total(name: str) -> float:
        return pytest.approx(sum(summary[name] for summary in summaries))

    assert value("up") == 1
    assert value("epochs_total") == 3
    assert value("rows_total") == 3 * ROWS_PER_FILE
    assert value("items_total") == total("items")
    assert value("partials_total") == total("partials")
    assert value("commit_bytes_total") == total("commit_bytes")
    assert value("commit_seconds_total") == total("commit_wall_s")
    for place, prefix in (("tasks", ""), ("commit", "commit_")):
        for threads in ("drain", "rest"):
            assert value("cpu_seconds_total", place=place, threads=threads) == total(
                f"{prefix}{threads}_cpu_s"
            )
    for stage in ("l1", "l2", "persist"):
        for outcome in ("consumed", "failed", "refused", "unhandled", "abandoned"):
            items = sum(summary["stages"][stage][outcome] for summary in summaries)
            assert value("stage_items_total", stage=stage, outcome=outcome) == items
        last_use = summaries[-1]["stages"][stage]["peak_used_percent"] / 100
        assert value("last_queue_use_ratio", stage=stage) == last_use
    assert value("last_batch_id") == 2
    assert value("last_l1_ratio") == summaries[-1]["l1_ratio"] > 1
    assert value("last_commit_seconds") == summaries[-1]["commit_wall_s"] > 0
    assert before - 0.001 <= value("last_commit_timestamp_seconds") <= time.time() + 0.001


def test_epoch_that_is_committed_again_counts_once(store: SqliteStore, flights: Path) -> None:
    for _ in range(2):
        commit_epoch(store, flights, 0)
    assert scrape(store)("rows_total") == ROWS_PER_FILE
    assert scrape(store)("epochs_total") == 1


def test_counters_continue_when_old_summaries_are_deleted(tmp_path: Path, flights: Path) -> None:
    store = SqliteStore(tmp_path / "metrics.db", kept_summaries=2)
    collector = LedgerCollector(store, "flights")
    seen = []
    for batch_id in range(5):
        commit_epoch(store, flights, batch_id)
        assert scraped(collector)("rows_total") == scrape(store)("rows_total")
        seen.append(scrape(store)("rows_total"))
    assert len(store.summaries("flights")) == 2
    assert seen == [ROWS_PER_FILE * number for number in (1, 2, 3, 4, 5)]


def test_counters_continue_when_an_overwrite_deletes_the_store(
    store: SqliteStore, flights: Path
) -> None:
    commit_epoch(store, flights, 0)
    commit_batch(store, flights, overwrite=False)
    commit_batch(store, flights, overwrite=True)
    assert len(store.summaries("flights")) == 1
    commit_epoch(store, flights, 0, "another query", on_new_query="replace")
    assert len(store.summaries("flights")) == 1
    assert scrape(store)("rows_total") == 4 * ROWS_PER_FILE
    assert scrape(store)("epochs_total") == 4


def test_ledger_without_totals_counts_its_summaries_and_continues(
    tmp_path: Path, flights: Path
) -> None:
    store = SqliteStore(tmp_path / "metrics.db", kept_summaries=3)
    for batch_id in range(3):
        commit_epoch(store, flights, batch_id)
    with sqlite3.connect(store.path) as connection:
        connection.execute(
            "UPDATE batchqueue_epochs"
            " SET summary = json_remove(summary, '$.totals', '$.committed_at')"
        )
        connection.execute(
            "UPDATE batchqueue_epochs SET summary = json_remove(summary, '$.partials')"
        )
    connection.close()
    old = scrape(store)
    assert old("rows_total") == 3 * ROWS_PER_FILE
    assert old("last_commit_timestamp_seconds") is None
    for batch_id in (3, 4):
        commit_epoch(store, flights, batch_id)
    assert scrape(store)("rows_total") == 5 * ROWS_PER_FILE


def test_writer_without_totals_in_between_does_not_reset_them(
    store: SqliteStore, flights: Path
) -> None:
    for batch_id in range(2):
        commit_epoch(store, flights, batch_id)
    with store.transaction("flights") as transaction:
        transaction.record("q1", 2, {"rows": 7})
    assert scrape(store)("rows_total") == 2 * ROWS_PER_FILE + 7
    commit_epoch(store, flights, 3)
    assert scrape(store)("rows_total") == 3 * ROWS_PER_FILE + 7
    assert scrape(store)("epochs_total") == 4


def test_sink_without_epochs_has_counters_at_0_and_no_gauges(store: SqliteStore) -> None:
    store.prepare()
    value = scrape(store)
    assert (value("up"), value("epochs_total"), value("rows_total")) == (1, 0, 0)
    assert value("stage_items_total", stage="persist", outcome="failed") == 0
    assert value("cpu_seconds_total", place="tasks", threads="drain") == 0
    assert value("last_batch_id") is None


def test_each_shard_is_a_separate_sink(store: SqliteStore, flights: Path) -> None:
    sinks = ["flights/0", "flights/1"]
    for number, sink_id in enumerate(sinks):
        for batch_id in range(number + 1):
            commit_epoch(store, flights, batch_id, sink_id=sink_id)
    value = scrape(store, sinks)
    assert [value("epochs_total", sink) for sink in sinks] == [1, 2]
    assert [value("rows_total", sink) for sink in sinks] == [ROWS_PER_FILE, 2 * ROWS_PER_FILE]
    assert value("up", "flights") is None


@pytest.fixture
def get() -> Iterator[Callable[[Any], str]]:
    """Serve a collector on loopback, and fetch it as Prometheus does."""
    servers = []

    def fetch(collector: LedgerCollector) -> str:
        registry = CollectorRegistry()
        registry.register(collector)
        server, thread = start_http_server(0, addr="127.0.0.1", registry=registry)
        servers.append((server, thread))
        with urllib.request.urlopen(
            f"http://127.0.0.1:{server.server_port}/metrics", timeout=30
        ) as answer:
            return answer.read().decode()

    yield fetch
    for server, thread in servers:
        server.shutdown()
        server.server_close()
        thread.join()


def test_scrape_over_http_has_every_metric_with_its_type(
    store: SqliteStore, flights: Path, get: Callable[[Any], str]
) -> None:
    commit_epoch(store, flights, 0)
    text = get(LedgerCollector(store, ["flights"]))
    found = {
        (sample.name, family.type, tuple(sorted(sample.labels.keys() - {"sink"})))
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    specs = [metric.value for metric in SinkMetric]
    assert found == {(spec.name, spec.kind, tuple(sorted(spec.labels))) for spec in specs}
    assert (
        f'batchqueue_sink_rows_total{{sink="flights"}} {float(ROWS_PER_FILE)}' in text.splitlines()
    )


def test_unreadable_store_is_down_for_the_scrape_and_logged_once(
    store: SqliteStore, flights: Path, get: Callable[[Any], str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "batchqueue.spark")
    collector = LedgerCollector(store, "flights")
    for _ in range(2):
        assert [line for line in get(collector).splitlines() if not line.startswith("#")] == [
            'batchqueue_sink_up{sink="flights"} 0.0'
        ]
    assert flush_log(WAIT_S)
    assert [
        (record.levelname, "there is no such file" in record.message) for record in caplog.records
    ] == [("WARNING", True)]
    commit_epoch(store, flights, 0)
    caplog.clear()
    assert scraped(collector)("up") == 1
    assert scraped(collector)("rows_total") == ROWS_PER_FILE
    assert flush_log(WAIT_S)
    assert [record.message for record in caplog.records] == [
        "sink flights: its metrics can be read again"
    ]


class PartlyBroken:
    """A store in which some sinks cannot be read."""

    def __init__(self, errors: dict[str, Exception]) -> None:
        self.errors = errors
        self.asked: list[str] = []

    def summaries(self, sink_id: str, newest: int | None) -> list[Epoch]:
        self.asked.append(sink_id)
        if sink_id in self.errors:
            raise self.errors[sink_id]
        return []


@pytest.mark.parametrize("error", [StoreError("damaged"), KeyError("rows")])
def test_damaged_sink_does_not_affect_the_others(error: Exception) -> None:
    value = scrape(PartlyBroken({"b": error}), ["a", "b", "c"])
    assert [value("up", sink) for sink in "abc"] == [1, 0, 1]
    assert [value("rows_total", sink) for sink in "abc"] == [0, None, 0]


def test_server_that_is_away_is_waited_for_once_per_scrape() -> None:
    store = PartlyBroken({"b": StoreUnavailableError("no route to host")})
    collector = LedgerCollector(store, ["a", "b", "c", "d"])
    registry = CollectorRegistry()
    registry.register(collector)
    (up, *_) = registry.collect()
    assert [sample.value for sample in up.samples] == [1, 0, 0, 0]
    assert store.asked == ["a", "b"]


def test_registration_reads_nothing_and_a_second_collector_is_refused(store: SqliteStore) -> None:
    registry = CollectorRegistry(auto_describe=True)
    nothing = PartlyBroken({})
    registry.register(LedgerCollector(nothing, "flights"))
    assert nothing.asked == []
    with pytest.raises(ValueError, match="Duplicated timeseries"):
        registry.register(LedgerCollector(store, "flights"))


@pytest.mark.parametrize("sink_ids", [[], ["a", "b", "a"]])
def test_invalid_sink_ids_are_rejected(store: SqliteStore, sink_ids: list[str]) -> None:
    with pytest.raises(ConfigError, match="give at least one sink id, each once"):
        LedgerCollector(store, sink_ids)


def test_missing_package_is_named_with_the_remedy(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client.core", None)
    with pytest.raises(
        MissingPackageError, match=r"prometheus_client.*pip install 'batchqueue-rs\[metrics\]'"
    ):
        LedgerCollector(store, "flights")


def test_summaries_with_totals_are_json_and_have_a_time(store: SqliteStore, flights: Path) -> None:
    commit_epoch(store, flights, 0)
    (epoch,) = store.summaries("flights")
    assert json.loads(json.dumps(epoch.summary)) == epoch.summary
    assert epoch.summary["totals"]["rows"] == epoch.summary["rows"]
    assert abs(time.time() - epoch.summary["committed_at"]) < 600


def test_page_lists_exactly_these_metrics() -> None:
    """A row per metric, in their order: name, type, labels, unit, meaning, when it changes."""
    rows = [
        line.strip("| ").split(" | ")
        for line in PAGE.read_text().splitlines()
        if "| `batchqueue_sink_" in line
    ]
    specs = [metric.value for metric in SinkMetric]
    assert [[cell.strip() for cell in row] for row in rows] == [
        [
            f"`{spec.name}`",
            spec.kind,
            ", ".join(f"`{label}`" for label in spec.labels),
            spec.unit,
            spec.what,
            spec.changes,
        ]
        for spec in specs
    ]


def test_scrape_after_a_stream_has_the_fed_rows(store: SqliteStore, stream: Any) -> None:
    rows = FILES * ROWS_PER_FILE
    stream(flight_job(store))
    value = scrape(store)
    assert (value("up"), value("rows_total"), value("epochs_total")) == (1, rows, FILES)
    assert value("last_batch_id") == FILES - 1
    assert (
        value("stage_items_total", stage="l1", outcome="consumed")
        == value("items_total")
        > 5 * rows
    )
    assert value("stage_items_total", stage="l2", outcome="consumed") == value("partials_total") > 0
