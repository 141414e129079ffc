"""What type checkers say of the scripts beside this file, in which each error is expected."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parent
PROJECT = SCRIPTS.parents[2]

CHECKERS = {
    "mypy": ["mypy", "--config-file=", "--warn-unused-ignores", "user_script.py"],
    "mypy --strict": ["mypy", "--strict", "user_script.py", "generics.py", "group_handlers.py"],
    "pyright": ["pyright", "user_script.py", "generics.py", "group_handlers.py"],
}


def checked(command, *options):
    environment = {**os.environ, "PYRIGHT_PYTHON_IGNORE_WARNINGS": "1"}
    files = [str(SCRIPTS / word) if word.endswith(".py") else word for word in command]
    return subprocess.run(
        [sys.executable, "-m", *files, *options],
        cwd=PROJECT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.matrix(3, name="type checkers")
@pytest.mark.parametrize("checker", CHECKERS)
def test_a_type_checker_finds_exactly_the_expected_errors(checker, tmp_path):
    options = [] if checker == "pyright" else ["--cache-dir", str(tmp_path)]
    found = checked(CHECKERS[checker], *options)
    assert found.returncode == 0, found.stdout + found.stderr
