"""A source of many files or of large ones opens, and holds in memory, only what it reads."""

import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from batchqueue.pipeline import FileSource, Limit
from batchqueue.pipeline.contract import MAX_POSITION_BYTES, checked_position

FILES = 20_000
MAX_HELD_MB = 64


def opened(source: FileSource) -> int:
    return len(source._reader._footers)


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Many files of three row groups; they are one file under many names."""
    folder = tmp_path_factory.mktemp("many")
    pq.write_table(pa.table({"n": [1, 2, 3]}), folder / ".file", row_group_size=1)
    for number in range(FILES):
        (folder / f"{number:05}.parquet").hardlink_to(folder / ".file")
    return folder


def test_plans_open_no_more_files_than_they_reach(many: Path):
    source = FileSource(many)
    at = source.initial()
    assert opened(source) == 0
    for files in range(1, 5):
        plan = source.plan(at, Limit(3, 1 << 20))
        assert len(plan.splits) == 3
        assert files <= opened(source) <= files + 1
        at = plan.end
    checked_position(at, source.name)


def test_plan_without_a_limit_stays_bounded_and_all_files_are_reached(many: Path):
    source = FileSource(many)
    at, rows = source.initial(), 0
    for _ in range(3):
        plan = source.plan(at, Limit(1 << 31, 1 << 40))
        assert len(plan.splits) == 1_024
        rows += sum(split.rows for split in plan.splits)
        at = plan.end
    assert opened(source) <= 1_024
    late = {"file": FILES - 1, "piece": 0, "at": list(source._listings.current().files[-1])}
    plan = source.plan(at | late, Limit(1 << 31, 1 << 40))
    assert len(plan.splits) == 3
    assert source.plan(plan.end, Limit(1, 1)).splits == ()
    restarted = FileSource(many)
    assert restarted.plan(plan.end, Limit(1, 1)).splits == ()
    assert restarted.plan(at, Limit(3, 1 << 20)).splits[0].start == at
    assert opened(restarted) <= 2


def test_position_of_many_files_with_long_names_stays_small(tmp_path: Path):
    folder = tmp_path.joinpath(*["d" * 250] * 8)
    folder.mkdir(parents=True)
    pq.write_table(pa.table({"n": [1]}), folder / ("x" * 240 + ".parquet"))
    source = FileSource([folder] * 5_000)
    plan = source.plan(source.initial(), Limit(1, 1))
    assert len(checked_position(plan.splits[0].start, source.name)) < MAX_POSITION_BYTES // 8


PAUSED = """
import gc, sys, time
from batchqueue.pipeline import FileSource, Limit

def held_mb():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmRSS:")) / 1024

# What the libraries need is not held by the pause: a small file has loaded them.
small, large = map(FileSource, sys.argv[1:])
[split] = small.plan(small.initial(), Limit(1, 1)).splits
list(small.read(split))
split = large.plan(large.initial(), Limit(1, 1)).splits[0]
gc.collect()
before = held_mb()
batches = large.read(split)
first = next(batches)
peak = 0
for _ in range(20):
    time.sleep(0.05)  # nothing to wait for: an eager reader would read on meanwhile
    peak = max(peak, held_mb() - before)
print(peak)
"""


def numbers(rows: int) -> pa.Table:
    return pa.table({"a": range(rows), "b": [float(number) for number in range(rows)]})


def write_parquet(path: Path) -> None:
    group = numbers(4_000_000)
    with pq.ParquetWriter(path, group.schema, compression="none", use_dictionary=False) as writer:
        for _ in range(4):
            writer.write_table(group, row_group_size=group.num_rows)


def write_arrow(path: Path) -> None:
    batch = numbers(1_000_000)
    with pa.ipc.new_file(path, batch.schema) as writer:
        for _ in range(16):
            writer.write_table(batch)


def write_csv(path: Path) -> None:
    lines = "".join(f"{number},{number / 7}\n" for number in range(1_000_000))
    with path.open("w") as file:
        file.write("a,b\n")
        for _ in range(9):
            file.write(lines)


def write_json(path: Path) -> None:
    lines = "".join(f'{{"a":{number},"b":"{"x" * 80}"}}\n' for number in range(250_000))
    with path.open("w") as file:
        for _ in range(9):
            file.write(lines)


@pytest.mark.matrix(4)
@pytest.mark.parametrize("write", [write_parquet, write_arrow, write_csv, write_json])
def test_paused_reader_of_a_large_file_holds_little(write, tmp_path: Path):
    suffix = write.__name__.removeprefix("write_")
    large, small = tmp_path / f"large.{suffix}", tmp_path / f"small.{suffix}"
    write(large)
    assert large.stat().st_size > 200 << 20
    if suffix in ("csv", "json"):
        small.write_bytes(large.read_bytes()[:1_000].rpartition(b"\n")[0] + b"\n")
    elif suffix == "parquet":
        pq.write_table(numbers(100), small)
    else:
        with pa.ipc.new_file(small, numbers(100).schema) as writer:
            writer.write_table(numbers(100))
    command = [sys.executable, "-c", PAUSED, small, large]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    print(suffix, "holds", output.strip(), "MB")
    assert float(output) < MAX_HELD_MB
