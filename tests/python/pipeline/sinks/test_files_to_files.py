"""Pipelines from files to files: exact after kills, SIGTERM, failures, and when files are added."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import dataset

from batchqueue.pipeline import FileSink, FileSource, Pipeline, SinkError, StageFailedError

ROWS = 30_000
DEADLINE_S = 120

PROGRAM = """
import sys, time
from batchqueue.pipeline import FileSink, FileSource, Pipeline

def slowly(chunk):
    time.sleep(0.03)
    return chunk

inbox, out, checkpoint, log = sys.argv[1:]
pipeline = Pipeline("copy", checkpoint=checkpoint or None, cut_interval_s=0.1)
source = FileSource(inbox, watch=bool(log), listing=log or None, watch_interval_s=0.02)
pipeline.source(source, name="inbox").map(slowly).to(FileSink(out))
print(pipeline.run().rows_read)
"""


def write(folder: Path, name: str, first: int, count: int) -> None:
    folder.mkdir(exist_ok=True)
    table = pa.table({"n": pa.array(range(first, first + count), pa.int64())})
    pq.write_table(table, folder / f".{name}", row_group_size=700)
    (folder / f".{name}").rename(folder / f"{name}.parquet")


@pytest.fixture
def inbox(tmp_path: Path) -> Path:
    for number in range(3):
        write(tmp_path / "in", str(number), number * ROWS // 3, ROWS // 3)
    return tmp_path / "in"


def start(tmp_path: Path, checkpoint: bool = True, watch: bool = False) -> subprocess.Popen:
    arguments = [
        tmp_path / "in",
        tmp_path / "out",
        tmp_path / "state" if checkpoint else "",
        tmp_path / "listing" if watch else "",
    ]
    return subprocess.Popen([sys.executable, "-c", PROGRAM, *arguments], stdout=subprocess.PIPE)


def cuts(tmp_path: Path) -> int:
    return len(list((tmp_path / "out").glob("cut-*")))


def wait_until(condition) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true"
        time.sleep(0.005)


def copied(tmp_path: Path) -> list[int]:
    """Returns what is visible, in the order of the cuts."""
    files = sorted((tmp_path / "out").glob("cut-*"))
    return [n for file in files for n in pq.read_table(file)["n"].to_pylist()]


@pytest.mark.parametrize("checkpoint", [True, False])
def test_killed_pipeline_continues_and_loses_and_doubles_nothing(
    inbox: Path, tmp_path: Path, checkpoint: bool
):
    in_the_middle = 0
    for _ in range(3):
        before = cuts(tmp_path)
        process = start(tmp_path, checkpoint)
        wait_until(lambda before=before: cuts(tmp_path) >= before + 2)
        process.kill()
        process.communicate()
        seen = copied(tmp_path)
        assert seen == list(range(len(seen)))
        in_the_middle += 0 < len(seen) < ROWS
    assert in_the_middle
    assert start(tmp_path, checkpoint).wait() == 0
    assert copied(tmp_path) == list(range(ROWS))
    assert dataset.dataset(tmp_path / "out").count_rows() == ROWS


def test_watched_directory_is_copied_until_sigterm_and_across_kills(inbox: Path, tmp_path: Path):
    process = start(tmp_path, watch=True)
    wait_until(lambda: cuts(tmp_path) >= 3)
    process.kill()
    process.communicate()
    write(inbox, "0-late", ROWS, 1_000)
    process = start(tmp_path, watch=True)
    wait_until(lambda: len(copied(tmp_path)) == ROWS + 1_000)
    write(inbox, "0-later", ROWS + 1_000, 1_000)
    wait_until(lambda: len(copied(tmp_path)) == ROWS + 2_000)
    process.send_signal(signal.SIGTERM)
    process.communicate()
    assert sorted(copied(tmp_path)) == list(range(ROWS + 2_000))


def test_finished_pipeline_reads_nothing_again_and_names_files_that_came_later(
    inbox: Path, tmp_path: Path, caplog
):
    def run() -> int:
        pipeline = Pipeline("copy", checkpoint=str(tmp_path / "state"))
        pipeline.source(FileSource(inbox)).to(FileSink(tmp_path / "out"))
        return pipeline.run().rows_read

    assert [run(), run()] == [ROWS, 0]
    assert not caplog.text
    write(inbox, "9", ROWS, 1_000)
    assert run() == 0
    assert "1 file came after the position was made and is not read" in caplog.text
    assert copied(tmp_path) == list(range(ROWS))


def test_failed_run_leaves_no_rows_that_the_next_run_would_double(inbox: Path, tmp_path: Path):
    pipeline = Pipeline("copy", cut_interval_s=0.1)
    fails = True

    def fail_in_the_middle(chunk):
        if fails and ROWS // 2 in chunk["n"].to_pylist():
            raise ValueError("as the test wants")
        return chunk

    flow = pipeline.source(FileSource(inbox)).map(fail_in_the_middle)
    flow.to(FileSink(tmp_path / "out"))
    with pytest.raises(StageFailedError, match="as the test wants"):
        pipeline.run()
    seen = copied(tmp_path) if cuts(tmp_path) else []
    assert seen == list(range(len(seen)))
    fails = False
    pipeline.run()
    assert copied(tmp_path) == list(range(ROWS))


def test_corrupt_file_ends_the_run_with_its_name_after_all_before_it(inbox: Path, tmp_path: Path):
    (inbox / "1.parquet").write_bytes(b"PAR1 and then nothing")
    pipeline = Pipeline("copy")
    pipeline.source(FileSource(inbox)).to(FileSink(tmp_path / "out"))
    with pytest.raises(Exception, match=r"1\.parquet cannot be read"):
        pipeline.run()
    seen = copied(tmp_path) if cuts(tmp_path) else []
    assert seen == list(range(len(seen)))


def test_directory_of_another_pipeline_ends_the_run_before_it_begins(inbox: Path, tmp_path: Path):
    for name in ("first", "second"):
        pipeline = Pipeline(name)
        pipeline.source(FileSource(inbox)).to(FileSink(tmp_path / "out"))
        if name == "first":
            pipeline.run()
    with pytest.raises(SinkError, match="belongs to pipeline 'first' and not to 'second'"):
        pipeline.run()
    assert copied(tmp_path) == list(range(ROWS))
