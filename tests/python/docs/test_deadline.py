"""The runner of Rust tests, against a binary that behaves as libtest does."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pages import ROOT

DEADLINE = ROOT / "scripts" / "deadline.py"

BINARY = """#!/bin/sh
case "$*" in
    *nothing*--list*) ;;
    nothing) echo doctest ;;
    *--list*) echo "$@" > listed; printf 'a::quick: test\\na::other: test\\ngroup: bench\\n' ;;
    *a::quick) echo 'quick was here' ;;
    *a::other) {other} ;;
    *) exit 99 ;;
esac
"""


@pytest.fixture
def run(tmp_path):
    def run(
        other: str, deadline_s: float = 300, options: tuple[str, ...] = ()
    ) -> subprocess.CompletedProcess[str]:
        binary = tmp_path / "binary"
        binary.write_text(BINARY.format(other=other))
        binary.chmod(0o755)
        return subprocess.run(
            [sys.executable, DEADLINE, binary, *options],
            env={**os.environ, "BATCHQUEUE_TEST_DEADLINE_S": str(deadline_s)},
            cwd=tmp_path,
            check=False,
            capture_output=True,
            text=True,
        )

    return run


def test_each_test_runs_alone_and_is_named_with_its_result(run):
    ended = run("true")
    assert ended.returncode == 0, ended.stderr
    assert {"test a::quick ... ok", "test a::other ... ok"} <= set(ended.stdout.splitlines())
    assert "test result: ok. 2 passed; 0 failed" in ended.stdout
    assert "was here" not in ended.stdout


def test_filters_select_the_tests_and_flags_go_to_each(run, tmp_path: Path):
    ended = run("true", options=("a::", "--skip", "b::", "--nocapture"))
    assert ended.returncode == 0, ended.stderr
    assert (tmp_path / "listed").read_text().startswith("a:: --skip b:: --nocapture --list")
    assert "quick was here" in ended.stdout


@pytest.mark.parametrize(("other", "status"), [("echo why; exit 3", "3"), ("kill -6 $$", "-6")])
def test_what_a_test_printed_that_fails_is_shown_and_the_others_run(run, other, status):
    ended = run(other)
    assert ended.returncode == 101
    assert f"test a::other ... status {status}\n" in ended.stdout
    assert "test a::quick ... ok" in ended.stdout
    assert f"---- a::other: status {status}\n" in ended.stdout
    assert ("why" in ended.stdout) == ("why" in other)
    assert "test result: FAILED. 1 passed; 1 failed" in ended.stdout


def test_hanging_test_is_ended_with_the_waits_of_its_threads(run):
    ended = run("echo before; exec sleep 1000", deadline_s=1)
    assert ended.returncode == 101
    assert "test a::other ... not ended after 1 s\n" in ended.stdout
    shown = ended.stdout.split("---- a::other")[1]
    assert "before" in shown
    assert "    sleep            S " in shown


def test_binary_that_lists_no_test_runs_as_it_is(run):
    ended = run("true", options=("nothing",))
    assert (ended.returncode, ended.stdout) == (0, "doctest\n")


def test_binary_that_cannot_list_its_tests_is_an_error(tmp_path: Path):
    (tmp_path / "broken").write_text("#!/bin/sh\necho 'no library' >&2; exit 1\n")
    (tmp_path / "broken").chmod(0o755)
    command = [sys.executable, DEADLINE, tmp_path / "broken"]
    ended = subprocess.run(command, check=False, capture_output=True, text=True)
    assert ended.returncode == 1
    assert ended.stderr.startswith("no library\n")
