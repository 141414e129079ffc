"""A group as Prometheus metrics."""

import re

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from batchqueue.base.background_log import flush_log
from batchqueue.groups import GroupMonitor, MemoryStreams
from batchqueue.groups.prometheus import GroupCollector, GroupMetric
from core_support.waits import WAIT_S, eventually
from groups_support.workers import Collected, owns, running, send, worker_of


@pytest.fixture
def streams():
    return MemoryStreams("orders", partitions=2)


@pytest.fixture
def scrape(streams):
    registry = CollectorRegistry()
    registry.register(GroupCollector(GroupMonitor("g", streams)))
    return lambda: generate_latest(registry).decode()


def test_a_scrape_has_workers_and_partitions(streams, scrape):
    send(streams, 6, partition=1)
    with running(worker := worker_of(streams, Collected(), name="a")):
        owns(worker, 2)
        labels = 'group="g",outcome="handled",stream="orders",worker="a"'
        wanted = f"batchqueue_group_worker_records_total{{{labels}}} 6.0"
        eventually(lambda: wanted in scrape(), "the records are counted")
        lag = 'batchqueue_group_partition_lag{group="g",partition="1",stream="orders"} 0.0'
        eventually(lambda: lag in scrape(), "the records are committed")
        text = scrape()
        assert 'batchqueue_group_members{group="g",stream="orders"} 1.0' in text
        labels = 'group="g",partition="1",stream="orders"'
        assert f"batchqueue_group_partition_owned{{{labels}}} 1.0" in text


def test_lag_without_any_worker(streams, scrape):
    send(streams, 6, partition=1)
    labels = 'group="g",partition="1",stream="orders"'
    assert f"batchqueue_group_partition_lag{{{labels}}} 6.0" in scrape()
    assert f"batchqueue_group_partition_owned{{{labels}}} 0.0" in scrape()
    assert f"batchqueue_group_partition_lag_seconds{{{labels}}}" not in scrape()


def test_a_group_that_cannot_be_read_is_down_and_logged_once(streams, scrape, monkeypatch, caplog):
    def fail(self):
        raise ConnectionError("no server")

    monkeypatch.setattr(GroupMonitor, "metrics", fail)
    for _ in range(3):
        text = scrape()
    assert 'batchqueue_group_up{group="g",stream="orders"} 0.0' in text
    assert "batchqueue_group_members{" not in text
    assert flush_log(WAIT_S)
    assert caplog.text.count("group g cannot be read: no server") == 1


def test_names_are_those_of_prometheus():
    for metric in GroupMetric:
        assert re.fullmatch(r"batchqueue_group(_[a-z]+)+", metric.value.name)
