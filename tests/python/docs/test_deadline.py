"""The runner that ends a hanging Rust test, against what libtest prints."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pages import ROOT

DEADLINE = ROOT / "scripts" / "deadline.py"

ALL_END = """
echo 'test quick ... ok'
echo 'test slow has been running for over 60 seconds'
echo 'test slow ... ok'
exit 3
"""
MANY_THREADS = """
echo 'test quick ... ok'
echo 'test room::slow has been running for over 60 seconds'
exec sleep 1000
"""
ONE_THREAD = """
echo 'test quick ... ok'
printf 'test room::slow ... '
exec sleep 1000
"""


def run(tmp_path: Path, script: str, deadline_s: float) -> subprocess.CompletedProcess[str]:
    binary = tmp_path / "binary"
    binary.write_text(f"#!/bin/sh\n{script}")
    binary.chmod(0o755)
    return subprocess.run(
        [sys.executable, DEADLINE, binary],
        env={**os.environ, "BATCHQUEUE_TEST_DEADLINE_S": str(deadline_s)},
        check=False,
        capture_output=True,
        text=True,
    )


@pytest.mark.parametrize(
    ("script", "deadline_s"), [(MANY_THREADS, 61), (ONE_THREAD, 1)], ids=["many", "one"]
)
def test_hanging_test_is_named_and_its_binary_ended(tmp_path, script, deadline_s):
    ended = run(tmp_path, script, deadline_s)
    assert ended.returncode == 1
    assert f"not ended after {deadline_s} s: room::slow\n" in ended.stderr
    assert "test quick ... ok" in ended.stdout


def test_status_and_output_of_a_binary_that_ends_are_kept(tmp_path):
    ended = run(tmp_path, ALL_END, 300)
    assert ended.returncode == 3
    assert ended.stdout == "".join(
        line.removeprefix("echo '").removesuffix("'") + "\n" for line in ALL_END.split("\n")[1:4]
    )
