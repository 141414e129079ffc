"""Reads the project's Markdown pages, and runs the Python in them.

The `python` blocks of one page are one program, run in order. What a block prints is compared with
the `text` block that follows it, at most one paragraph later, or with its comments `# -> expected
line`, where it has either.
"""

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).parents[3]
README = ROOT / "README.md"
PAGES = [
    README,
    ROOT / "CONTRIBUTING.md",
    ROOT / "CHANGELOG.md",
    *sorted((ROOT / "docs").glob("**/*.md")),
]
TIMEOUT_S = 300

_BLOCK = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```[ \t]*$", re.MULTILINE | re.DOTALL)
_END_OF_BLOCK = "\x1e"


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, text and output, and the line where its text begins."""

    language: str
    text: str
    line: int
    output: str | None


def name(page: Path) -> str:
    """The page's path from the root of the project."""
    return page.relative_to(ROOT).as_posix()


def blocks(markdown: str, *languages: str) -> list[Block]:
    """Finds the blocks of some languages, in order."""
    found = list(_BLOCK.finditer(markdown))
    result = []
    for match, following in pairwise([*found, None]):
        if match[1] in languages:
            line = markdown.count("\n", 0, match.start(2)) + 1
            between = markdown[match.end() : following.start()] if following else ""
            printed = _promised(match[2])
            if following and following[1] == "text" and _is_short(between):
                printed = following[2]
            result.append(Block(match[1], match[2], line, printed))
    return result


def prose(markdown: str) -> str:
    """The page without its fenced blocks."""
    return _BLOCK.sub("", markdown)


def run(
    program: list[Block], folder: Path, python: str = sys.executable, path: str | None = None
) -> list[str]:
    """Runs blocks of one page as one program in a new interpreter, which must end with 0.

    Args:
        program: The blocks, in order.
        folder: An empty folder; the program runs in a subfolder of it, and sees nothing of this
            project.
        python: The interpreter.
        path: `PATH` of the program; None keeps the present one.

    Returns:
        What each block printed.
    """
    lines: list[str] = []
    for block in program:
        lines += [""] * (block.line - 2 - len(lines))  # so that a traceback shows the page's lines
        if block is not program[0]:
            lines.append(f"print({_END_OF_BLOCK!r}, end='', flush=True)")
        lines += [""] * (block.line - 1 - len(lines)) + block.text.splitlines()
    script = folder / "page.py"
    script.parent.mkdir(parents=True, exist_ok=True)
    script.write_text("\n".join(lines) + "\n")
    return run_script(script, folder, python=python, path=path).split(_END_OF_BLOCK)


def run_script(
    script: Path,
    folder: Path,
    *arguments: str,
    python: str = sys.executable,
    path: str | None = None,
) -> str:
    """Runs a program as `run` does, with arguments, and returns what it printed."""
    empty = folder / "empty"
    empty.mkdir()
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    if path is not None:
        environment["PATH"] = path
    ended = subprocess.run(
        [python, script, *arguments],
        cwd=empty,
        env=environment,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert ended.returncode == 0, f"exit code {ended.returncode}\n{ended.stdout}\n{ended.stderr}"
    return ended.stdout


def _promised(python: str) -> str | None:
    expected = re.findall(r"# -> (.*)$", python, re.MULTILINE)
    return "".join(f"{line}\n" for line in expected) if expected else None


def _is_short(between: str) -> bool:
    return "\n\n" not in between.strip() and not between.strip().startswith("#")
