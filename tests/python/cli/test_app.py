"""The console script without its commands."""

import argparse
import subprocess
import sys
import tomllib

import pytest

import batchqueue
from batchqueue import cli as app
from batchqueue.cli import main
from batchqueue.cli.command import Command
from batchqueue.exceptions import ConfigError, MissingPackageError
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


@pytest.mark.parametrize(
    ("outcome", "code", "message"),
    [
        (0, 0, ""),
        (1, 1, ""),
        (ConfigError("no such thing"), 2, "batchqueue try: no such thing\n"),
        (MissingPackageError("install it"), 1, "batchqueue try: install it\n"),
        (KeyboardInterrupt(), 130, "\nrun it again\n"),
    ],
)
def test_outcome_of_a_command_gives_its_exit_code_and_message(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    outcome: int | BaseException,
    code: int,
    message: str,
) -> None:
    def run(arguments: argparse.Namespace) -> int:
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    command = Command(
        name="try",
        help="tries",
        add_arguments=lambda parser: None,
        run=run,
        interrupted="run it again",
    )
    monkeypatch.setattr(app, "COMMANDS", (command,))
    assert main(["try"]) == code
    assert capsys.readouterr().err == message
