"""The Parquet store by itself: its files and who may read them, its manifest, its errors."""

import errno
import os
import pickle
import pwd
import subprocess
import sys
import tempfile
import traceback
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet as pq
import pytest

from batchqueue import ConfigError
from batchqueue.aggregation import CountMetrics, MaxMetrics, Ranking, SumMetrics, metric_type
from batchqueue.outputs import ParquetStore, StoreError, StoreUnavailableError, parquet

DAY = 86_400
COUNT = metric_type("test.count", CountMetrics)
OTHER_COUNT = metric_type("test.other_count", CountMetrics)
TOTAL = metric_type("test.total", SumMetrics, columns={"total": int})
WORST = metric_type("test.worst", Ranking, limit=3)


@pytest.fixture
def store(open_parquet):
    return open_parquet()


def merge(store, metrics, sink_id="default"):
    with store.transaction(sink_id) as transaction:
        transaction.merge(metrics)


def data_files(store):
    return set(store.directory.glob("*/*.parquet"))


def test_an_epoch_rewrites_the_files_of_the_days_it_touches(store):
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
    assert [old == new for old, new in zip(before, after, strict=True)] == [True, False, True, False]
    assert [item.time_bucket for item in store.read(COUNT)] == [-1, 0, DAY - 2, DAY - 1, DAY, 5 * DAY]


def test_the_files_can_be_read_by_others(store):
    merge(store, [COUNT("b", 0, 2), COUNT("a", DAY, 3), TOTAL("a", 0, 7), WORST("a", 0, 9, "x", "label")])
    rows = pyarrow.dataset.dataset([str(path) for path in store.files(COUNT)]).to_table().to_pylist()
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


def test_replaced_files_stay_for_their_readers_and_then_go(open_parquet):
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
    assert len(replaced_now) == 1  # by that commit itself: its readers may still be at it
    merge(hasty, [COUNT("c", DAY)])
    assert not replaced_now & data_files(hasty)
    assert [item.count for item in hasty.read(COUNT)] == [4, 1, 1]


def test_a_reader_whose_files_vanish_looks_again(open_parquet, monkeypatch):
    store = open_parquet(keep_replaced_s=0)
    merge(store, [COUNT("a", 0)])
    load, rounds = parquet.Manifest.load, []

    def load_and_be_overtaken(folder, sink_id):
        manifest = load(folder, sink_id)
        if not rounds:
            rounds.append(manifest)
            for _ in range(2):
                merge(store, [COUNT("a", 0)])
        return manifest

    monkeypatch.setattr(parquet.Manifest, "load", load_and_be_overtaken)
    assert store.read(COUNT) == [COUNT("a", 0, 3)]


def test_a_data_file_that_is_gone_is_an_error_and_not_an_endless_search(store):
    merge(store, [COUNT("a", 0)])
    store.files(COUNT)[0].unlink()
    with pytest.raises(StoreError, match="No such file"):
        store.read(COUNT)
    with pytest.raises(StoreError, match="No such file"):
        merge(store, [COUNT("a", 0)])


def test_a_transaction_that_changes_nothing_writes_nothing(store):
    merge(store, [COUNT("a", 0)])
    before = {path: path.stat().st_mtime_ns for path in store.directory.glob("*/*")}
    with store.transaction() as transaction:
        assert transaction.load(COUNT, [("a", 0)]) == [COUNT("a", 0)]
    assert {path: path.stat().st_mtime_ns for path in store.directory.glob("*/*")} == before


def test_a_sink_keeps_its_partitions(open_parquet):
    hourly = open_parquet(partition_s=3_600)
    merge(hourly, [COUNT("a", 0), COUNT("a", 3_600)])
    assert len(hourly.files(COUNT)) == 2
    with pytest.raises(StoreError, match="has partition_s=3600, and cannot be written with 86400"):
        merge(open_parquet(), [COUNT("a", 0)])
    assert len(open_parquet().read(COUNT)) == 2


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is damaged"),
        (b"[]", "is damaged"),
        (b'{"format": 1, "unknown": 2}', "is damaged"),
        (b'{"format": 99}', "has format 99"),
        (b'{"format": 1, "sink": "another", "partition_s": 86400}', "not the manifest of 'default'"),
    ],
)
def test_a_manifest_that_cannot_be_used_is_refused_and_left_alone(store, content, message):
    merge(store, [COUNT("a", 0)])
    (path,) = store.directory.glob("*/manifest.json")
    path.write_bytes(content)
    for attempt in (lambda: store.read(COUNT), lambda: merge(store, [COUNT("a", 0)])):
        with pytest.raises(StoreError, match=message):
            attempt()
    assert path.read_bytes() == content
    assert len(data_files(store)) == 1


def test_a_damaged_data_file_is_an_error(store):
    merge(store, [COUNT("a", 0)])
    store.files(COUNT)[0].write_bytes(b"PAR1 this is not Parquet")
    with pytest.raises(StoreError, match="restore what is damaged from a copy"):
        store.read(COUNT)


def test_a_table_of_another_shape_is_refused(store):
    class Kind(CountMetrics):
        table = "same"
        columns = {"count": int}  # noqa: RUF012

    class OtherKind(MaxMetrics):
        table = "same"

    merge(store, [Kind("a", 0)])
    with pytest.raises(
        StoreError, match=r"count int64, and not .*value double: give the kind of metrics another"
    ):
        merge(store, [OtherKind("a", 0, 1.0)])


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("absent/metrics", "No such file or directory.*; its parent directory must exist"),
        ("a-file", "File exists.*; the path belongs to something else"),
        ("a-file/metrics", "Not a directory.*; the path belongs to something else"),
    ],
)
def test_a_directory_that_cannot_be_made_says_path_reason_and_remedy(tmp_path, path, message):
    (tmp_path / "a-file").touch()
    store = ParquetStore(tmp_path / path)
    for attempt in (store.prepare, lambda: merge(store, [COUNT("a", 0)])):
        with pytest.raises(StoreError, match=message) as raised:
            attempt()
        assert str(store.directory) in str(raised.value)
        assert not isinstance(raised.value, StoreUnavailableError)


def test_reading_what_is_not_there(store):
    for attempt in (lambda: store.read(COUNT), store.summaries, lambda: store.files(COUNT)):
        with pytest.raises(StoreError, match="no such directory; write to it first"):
            attempt()
    assert not store.directory.exists()


def test_a_forked_child_that_lives_on_does_not_keep_the_lock(open_parquet):
    store = open_parquet(lock_timeout_s=0)
    end, told = os.pipe()
    with store.transaction() as transaction:
        transaction.merge([COUNT("a", 0)])
        child = os.fork()
        if child == 0:
            os.read(end, 1)
            os._exit(0)
    try:
        merge(store, [COUNT("a", 0)])
    finally:
        os.write(told, b".")
        os.waitpid(child, 0)
        os.close(end)
        os.close(told)
    assert store.read(COUNT) == [COUNT("a", 0, 2)]


@pytest.fixture
def open_folder():
    """A folder that other users can reach."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        yield Path(folder)


def test_a_directory_that_this_user_may_not_write_says_so_and_can_be_read(open_folder):
    """Root may write everywhere: a child process becomes somebody else first."""
    folder = open_folder
    store = ParquetStore(folder / "metrics")
    merge(store, [COUNT("a", 0)])
    for path in (store.directory, *store.directory.rglob("*")):
        path.chmod(0o555 if path.is_dir() else 0o444)
    child = os.fork()
    if child == 0:
        try:
            if os.getuid() == 0:
                os.setgroups([])
                os.setgid(pwd.getpwnam("nobody").pw_gid)
                os.setuid(pwd.getpwnam("nobody").pw_uid)
            for attempt in (store.prepare, lambda: merge(store, [COUNT("a", 0)])):
                with pytest.raises(StoreError, match=r"Permission denied.*; let this user write") as raised:
                    attempt()
                assert not isinstance(raised.value, StoreUnavailableError)
            assert store.read(COUNT) == [COUNT("a", 0)]
            os._exit(0)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0


@pytest.mark.parametrize(
    ("number", "unavailable", "message"),
    [
        (errno.ENOSPC, False, "make room on the disk"),
        (errno.EROFS, False, "read-only file system"),
        (errno.EIO, False, "check the disk"),
        (errno.ESTALE, True, "Stale file handle"),
    ],
)
@pytest.mark.parametrize("place", ["fsync", "replace"])
def test_a_disk_that_fails_leaves_the_old_state_and_no_litter(
    store, monkeypatch, number, unavailable, message, place
):
    merge(store, [COUNT("a", 0)])
    before = data_files(store)

    def fail(*_):
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        patch.setattr(os, place, fail)
        with pytest.raises(StoreError, match=message) as raised:
            merge(store, [COUNT("a", 0), COUNT("a", DAY)])
    assert isinstance(raised.value, StoreUnavailableError) == unavailable
    assert data_files(store) == before
    merge(store, [COUNT("a", 0)])
    assert store.read(COUNT) == [COUNT("a", 0, 2)]


def test_a_full_disk_leaves_the_old_state_and_room_for_others(store):
    """A real one: what a process may write to one file is limited, and it stops in the middle of a data file."""
    merge(store, [COUNT("a", 0)])
    script = (
        "import pickle, resource, signal, sys\n"
        "from batchqueue.aggregation import CountMetrics, metric_type\n"
        "store = pickle.loads(bytes.fromhex(sys.argv[1]))\n"
        "count = metric_type('test.count', CountMetrics)\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))\n"
        "with store.transaction() as transaction:\n"
        "    transaction.merge([count(str(number), 0) for number in range(100_000)])\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", script, pickle.dumps(store).hex()], capture_output=True, text=True, check=False
    )
    assert "StoreError: cannot use the store" in ended.stderr
    assert "File too large" in ended.stderr
    assert len(data_files(store)) == 1
    assert store.read(COUNT) == [COUNT("a", 0)]


def test_everything_is_on_the_disk_before_the_manifest_names_it(store, monkeypatch):
    """A power cut cannot be tried here; the order of the calls can be seen."""
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


@pytest.mark.parametrize("arguments", [{"partition_s": 0}, {"lock_timeout_s": -1}, {"keep_replaced_s": -1}])
def test_arguments_that_cannot_work_are_refused(tmp_path, arguments):
    with pytest.raises(ConfigError, match=f"{next(iter(arguments))}="):
        ParquetStore(tmp_path / "metrics", **arguments)


def test_without_pyarrow_the_store_says_what_to_install():
    script = (
        "import sys; sys.modules['pyarrow'] = None\n"
        "from batchqueue.outputs import ParquetStore\nParquetStore('metrics')"
    )
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert "MissingPackageError: ParquetStore needs pyarrow" in ended.stderr
    assert "pip install 'batchqueue[parquet]'" in ended.stderr
