"""`batchqueue demo --groups`: the run on Redis and in memory, its ends, and its options."""

import re
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from subprocess import PIPE

import pytest
from pyspark.sql import SparkSession

from batchqueue.cli import demo_folder as folder
from batchqueue.cli import main
from batchqueue.cli.demo_groups import feed
from batchqueue.cli.demo_groups.command import run
from batchqueue.cli.demo_groups.folder import claimed
from batchqueue.cli.demo_groups.options import GroupsOptions
from batchqueue.cli.demo_groups.processes import ProcessWorkers
from batchqueue.cli.demo_groups.server import ServerMissingError, find_program
from batchqueue.cli.demo_groups.workers import WorkerEndedError
from batchqueue.exceptions import ConfigError
from core_support.waits import eventually
from groups_support.redis_server import skip_without_server

ROWS = 2_000


def options(output: Path) -> GroupsOptions:
    return GroupsOptions(ROWS, scale=1, output=output, spark_master="unused")


def check_report(printed: str, output: Path) -> None:
    """The group ran as promised, and the report says so."""
    lines = printed.splitlines()
    events = [line.split("s  ", 1)[1] for line in lines if re.match(r" +\d+\.\d s  ", line)]
    killed = next(line for line in events if "killed at" in line).split()[0]
    assert events[0] == "3 workers share 8 partitions"
    assert any(line.startswith("the others own all partitions") for line in events)
    assert any(line.startswith("worker-4 owns [") for line in events)
    rows = re.findall(r"^ +(worker-\d) +\d+\.\d s +([\d,]+) ", printed, re.MULTILINE)
    stored = {name: int(flights.replace(",", "")) for name, flights in rows}
    assert stored.keys() == {"worker-1", "worker-2", "worker-3", "worker-4"}
    assert sum(stored.values()) >= ROWS  # on a busy machine the killed one may not have begun
    takeover = rf"^{killed} was killed with \d+ partitions?: all owned again after \d+\.\d\d s"
    assert re.search(takeover, printed, re.MULTILINE)
    assert f"flights: {ROWS:,} in " in printed
    assert (output / "groups/ownership.png").stat().st_size > 10_000
    assert re.fullmatch(r"[\d,]{5,} aggregates: equal to Spark SQL", lines[-1])


@pytest.mark.matrix(5, name="whole programs")
def test_killed_worker_is_replaced_another_one_joins_and_every_aggregate_equals_spark_sql(
    tmp_path: Path, spark: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    skip_without_server()
    assert run(options(tmp_path), spark=spark) == 0
    printed = capsys.readouterr().out
    assert "with a password, for this run only" in printed
    check_report(printed, tmp_path)
    assert not (tmp_path / "groups/redis").exists()
    left = {each.name for each in (tmp_path / "groups").glob("*.log")}
    assert left == {"redis.log", *(f"worker-{number}.log" for number in range(1, 5))}


@pytest.fixture(autouse=True)
def quick_feed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few flights are produced quickly, in this process."""
    monkeypatch.setattr(feed, "_LEAST_S", 1.0)


@pytest.fixture
def without_server(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """A PATH without a server: this empty folder."""
    empty = tmp_path_factory.mktemp("path")
    monkeypatch.setenv("PATH", str(empty))
    return empty


@pytest.mark.matrix(5, name="whole programs")
@pytest.mark.usefixtures("without_server")
def test_without_a_server_it_says_how_to_get_one_and_runs_in_memory(
    tmp_path: Path, spark: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(options(tmp_path), spark=spark) == 0
    printed = capsys.readouterr().out
    assert "no redis-server on the PATH: the stream is in memory" in printed
    assert "to get one: apt install redis-server" in printed
    check_report(printed, tmp_path)


def test_server_that_is_too_old_is_not_used(without_server: Path) -> None:
    program = without_server / "redis-server"
    program.write_text("#!/bin/sh\necho 'Redis server v=6.0.16 sha=00000000:0 malloc=jemalloc'\n")
    program.chmod(0o755)
    with pytest.raises(ServerMissingError, match=r"is version 6\.0\.16, which is too old"):
        find_program()


def descendants(pid: int) -> set[int]:
    found = set()
    with suppress(OSError):  # what has ended meanwhile
        for task in Path(f"/proc/{pid}/task").iterdir():
            with suppress(OSError):
                children = (task / "children").read_text().split()
                found.update(*({int(child), *descendants(int(child))} for child in children))
    return found


def runs(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(") ")[2][0] != "Z"


def holds(pid: int, file: Path) -> bool:
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(OSError):  # closed meanwhile
            if descriptor.readlink() == file:
                return True
    return False


@pytest.mark.matrix(5, name="whole programs")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=["SIGTERM", "SIGKILL"])
def test_workers_and_server_end_with_the_demo_and_it_can_run_again(
    tmp_path: Path, number: signal.Signals
) -> None:
    skip_without_server()
    command = [sys.executable, "-m", "batchqueue", "demo", "--groups", "--rows", str(ROWS)]
    command += ["--output", str(tmp_path)]
    with subprocess.Popen(command, stdout=PIPE, stderr=PIPE, text=True) as process:
        assert process.stdout is not None
        assert any("workers share" in line for line in process.stdout)
        started = descendants(process.pid)
        # Three workers, the server and its keeper; all but the server keep the folder locked.
        assert len(started) >= 5
        assert sum(holds(pid, tmp_path / "groups/lock") for pid in started) == 4
        process.send_signal(number)
        _, errors = process.communicate()
    if number is signal.SIGTERM:
        assert process.returncode == 130
        assert "interrupted: workers and server have ended" in errors
        assert not any(map(runs, started))
    eventually(lambda: not any(map(runs, started)), f"all of {started} end")
    with claimed(tmp_path / "groups") as again:
        assert not again.server.exists()
        assert not again.database.exists()


def test_folder_is_used_by_a_single_run_and_only_its_files_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folder, "_PATIENCE_S", 0.0)
    (tmp_path / "mine.txt").write_text("not the demo's")
    (tmp_path / "metrics.sqlite").write_text("of an earlier run")
    with claimed(tmp_path):
        with pytest.raises(ConfigError, match="another demo runs in"), claimed(tmp_path):
            pass
        assert {each.name for each in tmp_path.iterdir()} == {"lock", "mine.txt"}


def test_worker_that_ends_early_is_named_with_its_last_words(tmp_path: Path) -> None:
    with claimed(tmp_path) as mine, ProcessWorkers(mine, "redis://127.0.0.1:1") as workers:
        workers.start("worker-1")
        last_words = r"worker-1 \(pid \d+\) ended with exit code 1; the last line of .*its server"
        with pytest.raises(WorkerEndedError, match=last_words):
            eventually(lambda: workers.check() is not None, "the worker finds no server")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--groups", "--l1", "rust"], "--l1 rust does not apply with --groups"),
        (["--workers", "4"], "--workers applies only with --groups"),
    ],
)
def test_options_that_do_not_apply_are_refused(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["demo", *arguments, "--output", str(tmp_path / "never")]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "never").exists()


@pytest.mark.parametrize("workers", ["1", "9", "many"])
def test_numbers_of_workers_that_show_nothing_are_refused(
    workers: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(["demo", "--groups", "--workers", workers])
    assert exit_.value.code == 2
    assert "use a whole number from 2 to 8" in capsys.readouterr().err
