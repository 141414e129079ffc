"""The epochs of a Parquet store: few in the manifest, the others in files that never change."""

import json
import shutil
from unittest import mock

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from batchqueue.exceptions import ConfigError
from batchqueue.outputs import ParquetStore, StoreError
from batchqueue.outputs.parquet import copies
from batchqueue.outputs.parquet import manifest as ledger
from batchqueue.outputs.parquet.copies import backup_parquet, check_parquet
from batchqueue.outputs.parquet.manifest import FILE_EPOCHS


@pytest.fixture
def store(open_parquet):
    return open_parquet(keep_replaced_s=0)


def record(store, epochs):
    for epoch in epochs:
        with store.transaction() as transaction:
            transaction.record("query", epoch, {"rows": epoch})


def numbers(store, newest=None):
    return [epoch.batch_id for epoch in store.summaries(newest=newest)]


def epoch_files(store):
    return sorted(path.name for path in store.directory.glob("*/*.epochs.json"))


def manifest_of(store):
    (path,) = store.directory.glob("*/manifest.json")
    return path


@given(
    file_epochs=st.sampled_from([2, 3, FILE_EPOCHS]),
    kept=st.lists(st.sampled_from([1, 5, 31, 32, 33, 64, 70]), min_size=1, max_size=3),
    number=st.integers(1, 60),
)
@example(file_epochs=32, kept=[40, 200], number=60)  # what is forgotten stays so
@example(file_epochs=3, kept=[40, 200], number=60)
@settings(max_examples=25, deadline=None)
def test_newest_epochs_are_those_of_a_list(tmp_path_factory, file_epochs, kept, number):
    with mock.patch.object(ledger, "FILE_EPOCHS", file_epochs):
        check_newest_epochs(tmp_path_factory, kept, number)


def check_newest_epochs(tmp_path_factory, kept, number):
    directory = tmp_path_factory.mktemp("ledger") / "store"
    model = []
    for turn, most in enumerate(kept):
        store = ParquetStore(directory, kept_summaries=most, keep_replaced_s=0)
        epochs = range(turn * number, (turn + 1) * number)
        record(store, epochs)
        model = [*model, *epochs][-most:]
        assert numbers(store) == model
        for newest in (0, 1, 7, 40):
            assert numbers(store, newest) == model[max(0, len(model) - newest) :]


def test_commit_writes_no_more_after_many_epochs_than_after_few(store):
    record(store, range(FILE_EPOCHS))
    files, size = epoch_files(store), manifest_of(store).stat().st_size
    record(store, range(FILE_EPOCHS, 10 * FILE_EPOCHS))
    assert set(files) < set(epoch_files(store))
    assert len(epoch_files(store)) == 10
    assert manifest_of(store).stat().st_size < size + 10 * 100
    assert numbers(store) == list(range(10 * FILE_EPOCHS))


def test_files_of_many_epochs_are_few(store, monkeypatch):
    """Each commit writes their names, and lists the folder to find others."""
    monkeypatch.setattr(ledger, "FILE_EPOCHS", 4)

    def sizes():
        return [number for _, number in json.loads(manifest_of(store).read_text())["older"]]

    record(store, range(15 * 4))
    assert sizes() == 3 * [16] + 3 * [4]
    record(store, range(15 * 4, 16 * 4))
    assert sizes() == 4 * [16]
    record(store, range(16 * 4, 401))
    assert sizes() == 25 * [16]
    assert len(epoch_files(store)) == 25
    assert numbers(store) == list(range(401))
    assert numbers(store, 7) == list(range(394, 401))


def test_damaged_file_of_epochs_stops_no_commit(store, monkeypatch):
    monkeypatch.setattr(ledger, "FILE_EPOCHS", 4)
    record(store, range(4))
    (damaged,) = store.directory.glob("*/*.epochs.json")
    damaged.write_text("[]")
    record(store, range(4, 5 * 4))
    assert numbers(store, 3) == [17, 18, 19]
    with pytest.raises(StoreError, match=damaged.name):
        store.summaries()


def test_files_of_forgotten_epochs_are_removed(open_parquet):
    store = open_parquet(kept_summaries=FILE_EPOCHS, keep_replaced_s=0)
    record(store, range(FILE_EPOCHS))
    (first,) = epoch_files(store)
    record(store, range(FILE_EPOCHS, 2 * FILE_EPOCHS + 1))
    assert first not in epoch_files(store)
    assert numbers(store) == list(range(FILE_EPOCHS + 1, 2 * FILE_EPOCHS + 1))


def test_open_transaction_sees_its_own_epochs_behind_those_of_the_files(store):
    record(store, range(FILE_EPOCHS))
    with store.transaction() as transaction:
        transaction.record("query", FILE_EPOCHS, {})
        found = transaction.summaries(3)
        assert [epoch.batch_id for epoch in found] == [
            FILE_EPOCHS - 2,
            FILE_EPOCHS - 1,
            FILE_EPOCHS,
        ]
        found[-1].summary["changed"] = True
    assert store.summaries(newest=1)[0].summary == {}


def test_store_of_the_first_format_is_converted_by_a_commit(store):
    record(store, range(3))
    manifest = json.loads(manifest_of(store).read_text())
    manifest["format"] = 1
    manifest["summaries"] = [["query", epoch, {"rows": epoch}] for epoch in range(100)]
    manifest["marks"] = {"query": 99}
    for new in ("recent", "older", "forgotten"):
        del manifest[new]
    manifest_of(store).write_text(json.dumps(manifest))
    assert numbers(store) == list(range(100))
    record(store, [100])
    assert numbers(store) == list(range(101))
    assert json.loads(manifest_of(store).read_text())["format"] == 2
    assert len(epoch_files(store)) == 1


def test_sink_that_is_cleared_has_no_epochs(store):
    record(store, range(FILE_EPOCHS + 1))
    with store.transaction() as transaction:
        transaction.clear()
    assert numbers(store) == []
    record(store, [0])
    assert (numbers(store), epoch_files(store)) == ([0], [])


def test_copy_has_the_epochs_of_the_files(store, tmp_path):
    record(store, range(2 * FILE_EPOCHS))
    backup_parquet(store.directory, tmp_path / "copy")
    shutil.rmtree(store.directory)
    assert numbers(ParquetStore(tmp_path / "copy")) == list(range(2 * FILE_EPOCHS))


@pytest.mark.parametrize("damage", ["", "[]", "{}", None])
def test_damaged_or_missing_file_of_epochs_is_named(store, damage):
    record(store, range(FILE_EPOCHS))
    (path,) = store.directory.glob("*/*.epochs.json")
    if damage is None:
        path.unlink()
    else:
        path.write_text(damage)
    with pytest.raises(StoreError, match=path.name):
        store.summaries()
    (problem,) = [text for text in check_parquet(store.directory).problems if path.name in text]
    assert problem.startswith("the epochs of sink 'default' cannot be read")


def test_backup_whose_name_is_taken_meanwhile_is_refused(store, tmp_path, monkeypatch):
    def copy_and_race(directory, target):
        copy(directory, target)
        (tmp_path / "copy" / "sink-1").mkdir(parents=True)

    record(store, [0])
    copy = copies._copy
    monkeypatch.setattr(copies, "_copy", copy_and_race)
    with pytest.raises(ConfigError, match="copy exists; give the copy another name"):
        backup_parquet(store.directory, tmp_path / "copy")
    assert [path.name for path in tmp_path.glob("copy*")] == ["copy"]
