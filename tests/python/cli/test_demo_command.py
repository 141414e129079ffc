"""`batchqueue demo` as users type it: in a new process."""

import importlib.util
import re
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from batchqueue.cli import main

ROWS = 12_000


def command(output: Path, *options: str) -> list[str]:
    return [
        *(sys.executable, "-m", "batchqueue", "demo", "--rows", str(ROWS)),
        *("--output", str(output), "--spark-master", "local[2,4]", *options),
    ]


SPEEDS = re.compile(
    r"L1 alone, \d[\d,]* rows in one process: Python handlers [\d,]+ rows/s,"
    r" Rust aggregators [\d,]+ rows/s, \d+ x"
)


def run(output: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(output, *options), capture_output=True, text=True, check=False)


@contextmanager
def started(output: Path, *options: str) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(command(output, *options), stdout=subprocess.PIPE, text=True) as process:
        yield process


def rows_in_ledger(output: Path) -> int:
    with sqlite3.connect(output / "metrics.sqlite") as connection:
        summaries = connection.execute(
            "SELECT sum(json_extract(summary, '$.rows')) FROM batchqueue_epochs"
        )
        return int(summaries.fetchone()[0])


@pytest.mark.matrix(8, name="whole programs")
def test_same_command_continues_after_a_kill_in_mid_stream_and_counts_nothing_twice(
    tmp_path: Path,
) -> None:
    """With aggregators in Rust; the demos of the other tests have handlers in Python."""
    rust = ("--l1", "rust")
    with started(tmp_path, *rust) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("epoch"):
                break
        process.send_signal(signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL
    resumed = run(tmp_path, *rust)
    assert resumed.returncode == 0, resumed.stderr
    lines = resumed.stdout.splitlines()
    assert any(SPEEDS.fullmatch(line) for line in lines)
    assert lines[-1].endswith("aggregates: equal to Spark SQL")
    assert rows_in_ledger(tmp_path) == ROWS


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The folder of a completed demo, and what the demo printed."""
    output = tmp_path_factory.mktemp("demo")
    finished = run(output)
    assert finished.returncode == 0, finished.stderr
    return output, finished.stdout


def test_demo_shows_progress_results_stages_cpu_and_the_verdict(done: tuple[Path, str]) -> None:
    output, printed = done
    lines = printed.splitlines()
    progress = [line for line in lines if line.startswith("epoch")]
    assert len(progress) == 3
    assert all(
        "rows/s" in line and "queue use l1" in line and "refused 0" in line for line in progress
    )
    assert f"{ROWS:,} of {ROWS:,} rows" in progress[-1]
    assert any(line.split()[:2] == ["l1", f"{11 * ROWS:,}"] for line in lines)
    assert any(line.startswith("CPU of the Python workers: drain threads") for line in lines)
    assert any(line.startswith(f"stream: {ROWS:,} rows in ") and "rows/s" in line for line in lines)
    assert any(SPEEDS.fullmatch(line) for line in lines)
    assert "their partials differ" not in lines
    assert f"database: {output / 'metrics.sqlite'}" in lines
    assert f"picture: {output / 'delays.png'}" in lines
    assert (output / "delays.png").stat().st_size > 10_000
    assert lines[-1].endswith("aggregates: equal to Spark SQL")


@pytest.mark.matrix(8, name="whole programs")
def test_second_run_reports_the_stored_state_and_fails_on_a_wrong_aggregate(
    done: tuple[Path, str],
) -> None:
    output, _ = done
    with sqlite3.connect(output / "metrics.sqlite") as connection:
        connection.execute(
            "UPDATE max_metrics SET value = 1000 WHERE metric = 'max_delay.carrier.HA'"
        )
    again = run(output)
    assert again.returncode == 1
    assert "nothing is new" in again.stdout
    assert "differ from Spark SQL, in max_delay.carrier.HA:" in again.stdout
    assert "max_delay.carrier.HA of HA at 2013-01-01 14:00: stored 1000, Spark SQL" in again.stdout


@pytest.mark.matrix(8, name="whole programs")
def test_other_rows_for_the_same_output_are_refused(done: tuple[Path, str]) -> None:
    output, _ = done
    refused = run(output, "--scale", "2")
    assert refused.returncode == 2
    assert (
        f"holds the demo of --rows {ROWS} --scale 1, not of --rows {ROWS} --scale 2"
        in refused.stderr
    )
    assert "Traceback" not in refused.stderr


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--rows", "0"], "argument --rows: '0' given: use a whole number from 1 to 336776"),
        (
            ["--rows", "336777"],
            "argument --rows: '336777' given: use a whole number from 1 to 336776",
        ),
        (["--rows", "many"], "argument --rows: 'many' given: use a whole number from 1 to 336776"),
        (["--scale", "-1"], "argument --scale: '-1' given: use a whole number of at least 1"),
        (
            ["--spark-master", "foo"],
            "argument --spark-master: 'foo' given: use local[N,F] with N threads",
        ),
        (
            ["--spark-master", "local[0]"],
            "argument --spark-master: 'local[0]' given: use local[N,F] with",
        ),
    ],
)
def test_invalid_values_are_rejected(
    capsys: pytest.CaptureFixture[str], options: list[str], message: str
) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(["demo", *options])
    assert exit_.value.code == 2
    assert message in capsys.readouterr().err


def test_unwritable_output_is_rejected(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("a file")
    assert main(["demo", "--rows", "10", "--output", str(tmp_path / "taken")]) == 2
    assert f"--output {tmp_path / 'taken'} cannot be written" in capsys.readouterr().err


def test_checkpoint_without_its_database_is_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "checkpoint").mkdir()
    assert main(["demo", "--rows", "10", "--output", str(tmp_path)]) == 2
    assert f"remove {tmp_path}, or name another --output" in capsys.readouterr().err


def test_missing_packages_are_named_with_the_remedy(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name: None if name in ("pyspark", "rich") else find_spec(name),
    )
    assert main(["demo", "--output", str(tmp_path / "never")]) == 2
    assert (
        "pyspark, rich not installed: pip install 'batchqueue-rs[demo]'" in capsys.readouterr().err
    )
    assert not (tmp_path / "never").exists()


def test_command_line_starts_without_the_extras() -> None:
    heavy = ["pyspark", "pyarrow", "matplotlib", "rich"]
    script = f"import sys, batchqueue.cli; print([name for name in {heavy} if name in sys.modules])"
    loaded = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert loaded.stdout.strip() == "[]"
