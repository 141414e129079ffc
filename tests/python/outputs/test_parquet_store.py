"""The Parquet store: its files and who may read them, its locks, the order of a commit."""

import os
import threading
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet as pq
import pytest

from batchqueue.aggregation import SumMetrics
from batchqueue.base.files import unlock
from batchqueue.outputs import StoreError
from batchqueue.outputs.parquet.manifest import Manifest, acquire
from outputs_support.parquet import COUNT, DAY, OTHER_COUNT, TOTAL, WORST, data_files, merge


@pytest.fixture
def store(open_parquet):
    return open_parquet()


def test_epoch_rewrites_the_files_of_the_days_it_touches(store):
    merge(store, [COUNT("a", bucket) for bucket in (-1, 0, DAY - 1, DAY, 5 * DAY)])
    before = store.files(COUNT)
    assert [pq.read_table(path)["time_bucket"].to_pylist() for path in before] == [
        [-1],
        [0, DAY - 1],
        [DAY],
        [5 * DAY],
    ]
    merge(store, [COUNT("a", DAY - 2), OTHER_COUNT("b", 5 * DAY)])
    after = store.files(COUNT)
    assert [old == new for old, new in zip(before, after, strict=True)] == [
        True,
        False,
        True,
        False,
    ]
    assert [item.time_bucket for item in store.read(COUNT)] == [
        -1,
        0,
        DAY - 2,
        DAY - 1,
        DAY,
        5 * DAY,
    ]


def test_files_can_be_read_by_others(store):
    merge(
        store,
        [COUNT("b", 0, 2), COUNT("a", DAY, 3), TOTAL("a", 0, 7), WORST("a", 0, 9, "x", "label")],
    )
    rows = (
        pyarrow.dataset.dataset([str(path) for path in store.files(COUNT)]).to_table().to_pylist()
    )
    assert rows == [
        {"metric": "test.count", "entity": "b", "time_bucket": 0, "count": 2},
        {"metric": "test.count", "entity": "a", "time_bucket": DAY, "count": 3},
    ]
    (ranking,) = store.files("ranking_metrics")
    assert pq.read_table(ranking).to_pylist() == [
        {
            "metric": "test.worst",
            "entity": "a",
            "time_bucket": 0,
            "rank": 1,
            "score": 9.0,
            "id": "x",
            "label": "label",
        }
    ]
    assert store.files(TOTAL) == store.files("sum_metrics_total_int")
    assert pq.read_schema(store.files(TOTAL)[0]).field("total").type == pa.int64()
    assert (store.files(SumMetrics), store.files(COUNT, "another")) == ([], [])


def test_replaced_files_stay_for_their_readers_and_are_then_removed(open_parquet):
    patient, hasty = open_parquet(), open_parquet(keep_replaced_s=0)
    for _ in range(3):
        merge(patient, [COUNT("a", 0)])
    old = data_files(patient)
    assert len(old) == 3
    merge(patient, [COUNT("b", DAY)])
    assert data_files(patient) > old
    merge(hasty, [COUNT("a", 0)])
    live = set(hasty.files(COUNT))
    replaced_now = data_files(hasty) - live
    assert len(replaced_now) == 1  # by that commit: its readers may still have it open
    merge(hasty, [COUNT("c", DAY)])
    assert not replaced_now & data_files(hasty)
    assert [item.count for item in hasty.read(COUNT)] == [4, 1, 1]


def test_reader_whose_files_vanish_tries_again(open_parquet, monkeypatch):
    store = open_parquet(keep_replaced_s=0)
    merge(store, [COUNT("a", 0)])
    load, rounds = Manifest.load, []

    def load_and_be_overtaken(folder, sink_id):
        manifest = load(folder, sink_id)
        if not rounds:
            rounds.append(manifest)
            for _ in range(2):
                merge(store, [COUNT("a", 0)])
        return manifest

    monkeypatch.setattr(Manifest, "load", load_and_be_overtaken)
    assert store.read(COUNT) == [COUNT("a", 0, 3)]


def test_transaction_that_changes_nothing_writes_nothing(store):
    merge(store, [COUNT("a", 0)])
    before = {path: path.stat().st_mtime_ns for path in store.directory.glob("*/*")}
    with store.transaction() as transaction:
        assert transaction.load(COUNT, [("a", 0)]) == [COUNT("a", 0)]
    assert {path: path.stat().st_mtime_ns for path in store.directory.glob("*/*")} == before


def test_sink_keeps_its_partitions(open_parquet):
    hourly = open_parquet(partition_s=3_600)
    merge(hourly, [COUNT("a", 0), COUNT("a", 3_600)])
    assert len(hourly.files(COUNT)) == 2
    with pytest.raises(StoreError, match="has partition_s=3600, and cannot be written with 86400"):
        merge(open_parquet(), [COUNT("a", 0)])
    assert len(open_parquet().read(COUNT)) == 2


def test_surviving_forked_child_does_not_keep_the_lock(open_parquet):
    store = open_parquet(lock_timeout_s=0)
    end, notified = os.pipe()
    with store.transaction() as transaction:
        transaction.merge([COUNT("a", 0)])
        child = os.fork()
        if child == 0:
            os.read(end, 1)
            os._exit(0)
    try:
        merge(store, [COUNT("a", 0)])
    finally:
        os.write(notified, b".")
        os.waitpid(child, 0)
        os.close(end)
        os.close(notified)
    assert store.read(COUNT) == [COUNT("a", 0, 2)]


def test_files_are_on_disk_before_the_manifest_names_them(store, monkeypatch):
    """A test cannot cut the power, but it can see the order of the calls."""
    fsync, replace, calls = os.fsync, os.replace, []

    def seen_fsync(descriptor):
        calls.append(("fsync", Path(os.readlink(f"/proc/self/fd/{descriptor}"))))
        fsync(descriptor)

    def seen_replace(source, target):
        calls.append(("replace", Path(target)))
        replace(source, target)

    monkeypatch.setattr(os, "fsync", seen_fsync)
    monkeypatch.setattr(os, "replace", seen_replace)
    merge(store, [COUNT("a", 0), COUNT("a", DAY)])
    folder = store.files(COUNT)[0].parent
    assert calls[:2] == [("fsync", store.directory.parent), ("fsync", store.directory)]
    assert {path for name, path in calls[2:4] if name == "fsync"} == set(store.files(COUNT))
    assert calls[4:] == [
        ("fsync", folder),
        ("fsync", folder / "manifest.json.new"),
        ("replace", folder / "manifest.json"),
        ("fsync", folder),
    ]


def test_lock_of_a_file_that_a_restore_has_put_aside_is_not_enough(tmp_path):
    """What is locked is what the path leads to now, or two writers would have a sink."""
    path, taken = tmp_path / "lock", []
    first = acquire(path, 0, "the sink")

    def wait():
        descriptor = acquire(path, 60, "the sink")
        taken.append(os.path.samestat(os.fstat(descriptor), path.stat()))
        unlock(descriptor)

    waiting = threading.Thread(target=wait)
    waiting.start()
    time.sleep(0.1)
    path.rename(tmp_path / "aside")
    second = acquire(path, 0, "the sink")
    unlock(first)
    time.sleep(0.2)
    assert taken == []
    unlock(second)
    waiting.join(60)
    assert taken == [True]
