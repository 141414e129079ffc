"""The console script without its commands."""

import subprocess
import sys
import tomllib

import pytest

import batchqueue
from batchqueue.cli import main
from pages import ROOT


def test_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(["--version"])
    assert exit_.value.code == 0
    assert capsys.readouterr().out == f"batchqueue {batchqueue.__version__}\n"


def test_module_prints_the_version_of_the_crate() -> None:
    version = tomllib.loads((ROOT / "Cargo.toml").read_text())["package"]["version"]
    command = [sys.executable, "-m", "batchqueue", "--version"]
    ended = subprocess.run(command, capture_output=True, text=True, check=True)
    assert ended.stdout == f"batchqueue {version}\n"


def test_missing_command_is_rejected(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        main([])
    assert exit_.value.code == 2
    assert "command" in capsys.readouterr().err
