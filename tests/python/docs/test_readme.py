"""What the README says is true: its first example, its commands, its options."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from pages import PAGES, README, ROOT, blocks, name, prose, run

_TARGETS = set(re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def _commands(page: Path, program: str) -> list[str]:
    """The words after `program` in the page's commands: in a shell block or in backticks."""
    markdown = page.read_text()
    shell = "\n".join(block.text for block in blocks(markdown, "sh", "bash", "console", "shell"))
    lines = re.findall(rf"^(?:\$ )?{program} (.+)$", shell, re.MULTILINE)
    return lines + re.findall(rf"`{program} ([^`]+)`", prose(markdown))


def test_first_example_runs_in_an_empty_folder_and_prints_what_the_page_shows(tmp_path: Path):
    examples = blocks(README.read_text(), "python")
    assert examples, "README.md has no ```python block"
    (printed,) = run(examples[:1], tmp_path)
    if examples[0].output is not None:
        assert printed == examples[0].output


def test_readme_names_the_command_for_the_demo_and_the_one_for_the_tests():
    named = {command.split()[0] for command in _commands(README, "make")}
    assert {"demo", "test"} <= named


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_make_command_of_a_page_is_a_target(page: Path):
    unknown = [command for command in _commands(page, "make") if command.split()[0] not in _TARGETS]
    assert not unknown


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_demo_option_of_a_page_exists(page: Path):
    used = set()
    for command in _commands(page, "batchqueue") + _commands(page, "make"):
        if command.startswith("demo"):
            used |= set(re.findall(r"--[a-z-]+", command))
    if used:
        shown = subprocess.run(
            [sys.executable, "-m", "batchqueue", "demo", "--help"],
            capture_output=True,
            text=True,
            check=True,
        )
        assert used <= set(re.findall(r"--[a-z-]+", shown.stdout))
