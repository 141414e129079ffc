"""A crash or a failing disk at any step leaves the cut before or the whole new cut."""

import errno
import itertools
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import traceback
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import dataset

from batchqueue.pipeline import FileSink, SinkError
from batchqueue.pipeline import file_sink as commits
from core_support.scripts import run_script
from outputs_support.users import give_up_root


def write(directory: Path, cut: int, count: int, step=lambda: None, sink=None) -> None:
    """Commits a cut of some chunks, as a run would."""
    sink = sink or FileSink(directory)
    sink.open("orders")
    for _ in range(count):
        sink.write([pa.record_batch({"n": [cut]})])
        step()
    sink.commit(cut, {"orders": {"cut": cut}})
    sink.close()


def test_sink_is_in_use_until_a_call_that_hangs_returns(tmp_path, monkeypatch):
    """As when a run is given up while the disk hangs, and the next one begins."""
    entered, hang = threading.Event(), threading.Event()
    sync = commits.sync

    def slow_sync(path):
        entered.set()
        assert hang.wait(60)
        sync(path)

    sink = FileSink(tmp_path / "out")
    left_behind = threading.Thread(
        target=write, args=(tmp_path / "out", 1, 1), kwargs={"sink": sink}
    )
    with monkeypatch.context() as patched:
        patched.setattr(commits, "sync", slow_sync)
        left_behind.start()
        assert entered.wait(60)
        with pytest.raises(SinkError, match="in use by a former run, which was given up while it"):
            sink.open("orders")
        hang.set()
        left_behind.join(60)
    sink.open("orders")
    assert sink.last_cut() == (1, {"orders": {"cut": 1}})
    late = threading.Thread(target=sink.close)
    late.start()
    late.join(60)
    sink.write([pa.record_batch({"n": [2]})])
    sink.commit(2, {"orders": {"cut": 2}})
    sink.close()
    assert dataset.dataset(str(tmp_path / "out")).count_rows() == 2


def test_forked_child_that_ends_leaves_the_lock_to_its_parent(tmp_path):
    exit_code, out, err = run_script(f"""
import subprocess
from batchqueue.pipeline import FileSink

sink = FileSink({str(tmp_path / "out")!r})
sink.open("orders")
pid = os.fork()
if pid == 0:
    sys.exit(0)  # with all finalizers
os.waitpid(pid, 0)
other = "import sys; from batchqueue.pipeline import FileSink; FileSink(sys.argv[1]).open('orders')"
command = [sys.executable, "-c", other, sink.directory]
say(b"is in use" in subprocess.run(command, capture_output=True).stderr)
""")
    assert (exit_code, out) == (0, ["True"]), err


def write_and_die(directory: Path, cut: int, count: int, fatal: int) -> bool:
    """The same in a process that is killed before one of its steps; returns whether it was."""
    child = os.fork()
    if child == 0:
        steps = itertools.count()

        def counted(call):
            def step(*arguments, **options):
                if next(steps) == fatal:
                    os.kill(os.getpid(), signal.SIGKILL)
                return call(*arguments, **options)

            return step

        try:
            for name in ("fsync", "rename", "open"):
                setattr(os, name, counted(getattr(os, name)))
            write(directory, cut, count, counted(lambda: None))
            os._exit(0)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)
    status = os.waitpid(child, 0)[1]
    assert status in (0, signal.SIGKILL)
    return status != 0


def state(directory: Path) -> tuple[int, int]:
    """Returns the last cut and the rows that are visible."""
    visible = dataset.dataset(directory).count_rows()
    sink = FileSink(directory)
    sink.open("orders")
    cut, positions = sink.last_cut()
    sink.close()
    assert positions == {"orders": {"cut": cut}}
    assert dataset.dataset(directory).count_rows() == visible
    left = {path.name for path in (directory / "_batchqueue").iterdir()}
    assert left == {"cut.json", "lock"}
    return cut, visible


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    sink = FileSink(tmp_path / "out")
    sink.open("orders")
    sink.write([pa.record_batch({"n": [1, 1]})])
    sink.commit(1, {"orders": {"cut": 1}})
    sink.close()
    return tmp_path / "out"


@pytest.mark.parametrize("count", [3, 0])
def test_kill_at_any_step_leaves_the_old_or_the_new_cut(
    directory: Path, count: int, tmp_path: Path
):
    saved = shutil.copytree(directory, tmp_path / "saved")
    old, new = (1, 2), (2, 2 + count)
    found, is_killed = [], True
    for fatal in itertools.count():
        shutil.rmtree(directory)
        shutil.copytree(saved, directory)
        is_killed = write_and_die(directory, 2, count, fatal)
        found.append(state(directory))
        if not is_killed:
            break
        if found[-1] == old:  # as a replay would
            write(directory, 2, count)
            assert state(directory) == new
        write(directory, 3, 1)
        assert state(directory) == (3, 3 + count)
    assert found[0] == old
    assert found[-1] == new
    assert len(found) > (10 if count else 5)
    assert found == sorted(found)  # exactly one step commits
    assert set(found) == {old, new}


@pytest.mark.parametrize("step", ["fsync", "rename"])
@pytest.mark.parametrize(
    ("number", "message"),
    [
        (errno.ENOSPC, "No space left on device; make room on the disk and start a new run"),
        (errno.EIO, "Input/output error; correct the cause and start a new run"),
    ],
)
def test_failing_disk_is_an_error_and_a_new_run_continues(
    directory: Path, monkeypatch: pytest.MonkeyPatch, step: str, number: int, message: str
):
    def fail(*_):
        raise OSError(number, os.strerror(number))

    sink = FileSink(directory)
    sink.open("orders")
    sink.write([pa.record_batch({"n": [2]})])
    with monkeypatch.context() as patch:
        patch.setattr(os, step, fail)
        with pytest.raises(SinkError, match=message):
            sink.commit(2, {"orders": {"cut": 2}})
    with pytest.raises(SinkError, match="failed before"):
        sink.commit(2, {"orders": {"cut": 2}})
    sink.close()
    assert state(directory) == (1, 2)
    sink.open("orders")
    sink.write([pa.record_batch({"n": [2]})])
    sink.commit(2, {"orders": {"cut": 2}})
    sink.close()
    assert state(directory) == (2, 3)


def test_full_disk_in_the_middle_of_a_file_leaves_the_old_cut(directory: Path):
    """A limit on the size of a file stops the process in the middle of it."""
    script = (
        "import resource, sys\n"
        "import pyarrow as pa\n"
        "from batchqueue.pipeline import FileSink\n"
        "sink = FileSink(sys.argv[1], compression='none')\n"
        "sink.open('orders')\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))\n"
        "for start in range(0, 1_000_000, 1_000):\n"
        "    sink.write([pa.record_batch({'n': range(start, start + 1_000)})])\n"
        "sink.commit(2, {})\n"
    )
    command = [sys.executable, "-c", script, directory]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "SinkError" in ended.stderr
    assert "File too large" in ended.stderr
    assert state(directory) == (1, 2)


@pytest.fixture
def open_folder():
    """A folder that other users can reach."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        yield Path(folder)


def test_unwritable_directory_is_reported_with_the_remedy(open_folder: Path):
    """Root may write everywhere, so a child process gives up its rights first."""
    child = os.fork()
    if child == 0:
        try:
            give_up_root()
            with pytest.raises(SinkError, match=r"Permission denied.*; let this user write"):
                FileSink(open_folder / "out").last_cut()
            os._exit(0)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0


def test_missing_parent_and_file_in_the_way_are_reported_with_the_remedy(tmp_path: Path):
    (tmp_path / "file").touch()
    with pytest.raises(SinkError, match="its parent directory must exist"):
        FileSink(tmp_path / "missing" / "out").last_cut()
    with pytest.raises(SinkError, match="belongs to a file: use another directory"):
        FileSink(tmp_path / "file").last_cut()
