"""A writer killed at any step of its commit leaves the old or the new state, and no litter."""

import itertools
import pickle
import shutil
import signal
import subprocess
import sys

import pytest

from batchqueue.aggregation import CountMetrics, metric_type

DAY = 86_400
COUNT = metric_type("test.count", CountMetrics)

WRITER = """
import os, pathlib, pickle, signal, sys
from batchqueue.aggregation import CountMetrics, metric_type
count = metric_type("test.count", CountMetrics)
store, fatal = pickle.loads(bytes.fromhex(sys.argv[1])), int(sys.argv[2])
steps = 0

def counted(call):
    def step(*arguments, **options):
        global steps
        if steps == fatal:
            os.kill(os.getpid(), signal.SIGKILL)
        steps += 1
        return call(*arguments, **options)
    return step

def torn(file, content):
    \"\"\"Write half of it first.\"\"\"
    with file.open("wb") as opened:
        opened.write(bytes(content)[: len(content) // 2])
    counted(lambda: None)()
    write(file, content)

from batchqueue.outputs.parquet import manifest, transaction as files
manifest.FILE_EPOCHS = 2  # so that this commit moves both epochs into a file
write = manifest.write_durably
files.write_durably = manifest.write_durably = torn
for name in ("fsync", "replace", "open"):
    setattr(os, name, counted(getattr(os, name)))
pathlib.Path.unlink = counted(pathlib.Path.unlink)
with store.transaction() as transaction:
    transaction.merge([count("a", 0), count("b", 86_400)])
    transaction.record("query", 1, {"rows": 2})
"""


def write(store, fatal):
    return subprocess.run(
        [sys.executable, "-c", WRITER, pickle.dumps(store).hex(), str(fatal)],
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def store(open_parquet):
    """Epoch 0 is applied, and there is a replaced file that the next commit removes."""
    store = open_parquet(keep_replaced_s=0)
    for number in (None, 0):
        with store.transaction() as transaction:
            transaction.merge([COUNT("a", 0), COUNT("b", DAY)])
            if number is not None:
                transaction.record("query", number, {"rows": 2})
    return store


def state(store):
    with store.transaction() as transaction:
        last = transaction.last_batch("query")
    return {item.entity: item.count for item in store.read(COUNT)}, last, len(store.summaries())


OLD = ({"a": 2, "b": 2}, 0, 1)
NEW = ({"a": 3, "b": 3}, 1, 2)


@pytest.mark.timeout(900)  # starts a process for each step of a commit
def test_kill_at_any_step_leaves_the_old_or_the_new_state(store, tmp_path):
    saved = tmp_path / "saved"
    shutil.copytree(store.directory, saved)
    found = []
    for fatal in itertools.count():
        shutil.rmtree(store.directory)
        shutil.copytree(saved, store.directory)
        ended = write(store, fatal)
        found.append(state(store))
        if ended.returncode == 0:
            break
        assert ended.returncode == -signal.SIGKILL, ended.stderr
        assert found[-1] in (OLD, NEW)
        if found[-1] == OLD:
            with store.transaction() as transaction:  # as a replay would
                transaction.merge([COUNT("a", 0), COUNT("b", DAY)])
                transaction.record("query", 1, {"rows": 2})
            assert state(store) == NEW
        with store.transaction() as transaction:
            transaction.describe({"next": "commit"})
        assert set(store.directory.glob("*/*.parquet")) == set(store.files(COUNT))
        assert len(list(store.directory.glob("*/*.epochs.json"))) == (found[-1] == NEW)
    assert found[0] == OLD
    assert found[-1] == NEW
    assert len(found) > 10
    assert found == sorted(found, key=lambda outcome: outcome == NEW)  # exactly one step commits
