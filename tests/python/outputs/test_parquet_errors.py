"""Faults of a Parquet store's directory, disk and files: the old state is kept."""

import errno
import os
import pickle
import subprocess
import sys
import tempfile
import traceback
from pathlib import Path

import pytest

from batchqueue import ConfigError
from batchqueue.aggregation import CountMetrics, MaxMetrics
from batchqueue.outputs import ParquetStore, StoreError, StoreUnavailableError
from outputs_support.parquet import COUNT, DAY, data_files, merge
from outputs_support.users import give_up_root


@pytest.fixture
def store(open_parquet):
    return open_parquet()


def test_missing_data_file_is_an_error_and_not_an_endless_search(store):
    merge(store, [COUNT("a", 0)])
    store.files(COUNT)[0].unlink()
    with pytest.raises(StoreError, match="No such file"):
        store.read(COUNT)
    with pytest.raises(StoreError, match="No such file"):
        merge(store, [COUNT("a", 0)])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is damaged"),
        (b"[]", "is damaged"),
        (b'{"format": 1, "unknown": 2}', "is damaged"),
        (b'{"format": 99}', "has format 99"),
        (
            b'{"format": 1, "sink": "another", "partition_s": 86400}',
            "not the manifest of 'default'",
        ),
    ],
)
def test_unusable_manifest_is_refused_and_left_alone(store, content, message):
    merge(store, [COUNT("a", 0)])
    (path,) = store.directory.glob("*/manifest.json")
    path.write_bytes(content)
    for attempt in (lambda: store.read(COUNT), lambda: merge(store, [COUNT("a", 0)])):
        with pytest.raises(StoreError, match=message):
            attempt()
    assert path.read_bytes() == content
    assert len(data_files(store)) == 1


def test_damaged_data_file_is_an_error(store):
    merge(store, [COUNT("a", 0)])
    store.files(COUNT)[0].write_bytes(b"PAR1 this is not Parquet")
    with pytest.raises(StoreError, match="restore what is damaged from a copy"):
        store.read(COUNT)


def test_table_with_other_columns_is_refused(store):
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
def test_directory_that_cannot_be_made_is_reported_with_path_reason_and_remedy(
    tmp_path, path, message
):
    (tmp_path / "a-file").touch()
    store = ParquetStore(tmp_path / path)
    for attempt in (store.prepare, lambda: merge(store, [COUNT("a", 0)])):
        with pytest.raises(StoreError, match=message) as raised:
            attempt()
        assert str(store.directory) in str(raised.value)
        assert not isinstance(raised.value, StoreUnavailableError)


def test_reading_a_missing_directory_is_an_error(store):
    for attempt in (lambda: store.read(COUNT), store.summaries, lambda: store.files(COUNT)):
        with pytest.raises(StoreError, match="no such directory; write to it first"):
            attempt()
    assert not store.directory.exists()


@pytest.fixture
def open_folder():
    """A folder that other users can reach."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        yield Path(folder)


def test_unwritable_directory_is_reported_and_can_be_read(open_folder):
    """Root may write everywhere, so a child process gives up its rights first."""
    folder = open_folder
    store = ParquetStore(folder / "metrics")
    merge(store, [COUNT("a", 0)])
    for path in (store.directory, *store.directory.rglob("*")):
        path.chmod(0o555 if path.is_dir() else 0o444)
    child = os.fork()
    if child == 0:
        try:
            give_up_root()
            for attempt in (store.prepare, lambda: merge(store, [COUNT("a", 0)])):
                with pytest.raises(
                    StoreError, match=r"Permission denied.*; let this user write"
                ) as raised:
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
def test_failing_disk_leaves_the_old_state_and_no_litter(
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


def test_full_disk_leaves_the_old_state_and_room_for_others(store):
    """A limit on the size of a file stops the process in the middle of a data file."""
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
        [sys.executable, "-c", script, pickle.dumps(store).hex()],
        capture_output=True,
        text=True,
        check=False,
    )
    assert "StoreError: cannot use the store" in ended.stderr
    assert "File too large" in ended.stderr
    assert len(data_files(store)) == 1
    assert store.read(COUNT) == [COUNT("a", 0)]


@pytest.mark.parametrize(
    "arguments",
    [
        *({"partition_s": wrong} for wrong in (0, 1.5, "d", None)),
        *({"lock_timeout_s": wrong} for wrong in (-1, "x")),
        *({"keep_replaced_s": wrong} for wrong in (-1, "x", float("nan"))),
    ],
)
def test_invalid_arguments_are_rejected(tmp_path, arguments):
    with pytest.raises(ConfigError, match=f"{next(iter(arguments))}="):
        ParquetStore(tmp_path / "metrics", **arguments)


def test_store_without_pyarrow_says_what_to_install():
    script = (
        "import sys; sys.modules['pyarrow'] = None\n"
        "from batchqueue.outputs import ParquetStore\nParquetStore('metrics')"
    )
    ended = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert "MissingPackageError: ParquetStore needs pyarrow" in ended.stderr
    assert "pip install 'batchqueue-rs[parquet]'" in ended.stderr
