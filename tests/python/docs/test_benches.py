"""The Python benches still run: at a hundredth of their work, whose figures mean nothing."""

import subprocess
import sys

import pytest

from pages import ROOT, TIMEOUT_S
from wheels import local_wheel

ROWS = {str(number) for number in range(1, 13)}


@pytest.mark.matrix(8, name="whole programs")
@pytest.mark.timeout(2 * TIMEOUT_S)
def test_python_benches_run_and_print_their_table(tmp_path):
    page = tmp_path / "python.md"
    command = [
        sys.executable,
        "benches/python/run.py",
        "--quick",
        "--rounds",
        "1",
        "--wheel",
        str(local_wheel()),
        "--page",
        str(page),
    ]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    assert done.returncode == 0, done.stderr
    lines = [line.split("|") for line in done.stdout.splitlines() if line.startswith("| ")]
    assert {cells[1].strip() for cells in lines} == ROWS | {"#"}
    assert "queue.SimpleQueue" in page.read_text()
    assert page.with_suffix(".png").stat().st_size > 10_000
