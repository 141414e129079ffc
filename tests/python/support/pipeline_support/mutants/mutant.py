"""`Mutant`: the package without one of its rules, and the tests that must notice.

The product knows nothing of it. A copy of the package has one piece of its text replaced, and the
tests run on that copy in a new process; so do the processes that they start, Spark's too.
"""

import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[5]
PACKAGE = ROOT / "python" / "batchqueue"
TESTS = ROOT / "tests" / "python"

DEADLINE_S = 120
"""Ends a test that hangs without its rule; it counts as failed."""

TIME_LIMIT_S = 1_200
"""Ends what does not even begin; tests on the real package have their own deadlines."""

FAILED = 1
"""How pytest ends when tests ran and one of them failed; other statuses are mistakes."""


class Mutant(NamedTuple):
    """A rule, and what the code is without it.

    Attributes:
        rule: Its name.
        file: The file that follows it, in the package.
        text: What does so; it is there once.
        without: What is there without the rule.
        guards: The tests that must fail without it: paths in `tests/python`, with options.
    """

    rule: str
    file: str
    text: str
    without: str
    guards: tuple[str, ...]

    def text_without(self) -> str:
        """Return the text of the file without the rule.

        Raises:
            ValueError: The text is not there, or several times.
        """
        text = (PACKAGE / self.file).read_text()
        if text.count(self.text) != 1:
            raise ValueError(
                f"{self.rule}: its text is {text.count(self.text)} times in {self.file}, and "
                f"should be there once; write the mutant anew: {self.text!r}"
            )
        return text.replace(self.text, self.without)

    def write(self, folder: Path) -> Path:
        """Write the package without the rule; return the folder to import it from.

        Only the file, and the folders above it, are not those of the package itself.
        """
        text, real, copy = self.text_without(), PACKAGE, folder / PACKAGE.name
        for step in Path(self.file).parts:
            copy.mkdir(parents=True)
            for entry in real.iterdir():
                if entry.name not in {step, "__pycache__"}:
                    (copy / entry.name).symlink_to(entry)
            real, copy = real / step, copy / step
        copy.write_text(text)
        return folder


class Verdict(NamedTuple):
    """How the tests of a guard ended.

    Attributes:
        passed: Whether all of them passed, and there was one.
        is_red: Whether one of them failed, or hung.
        output: What pytest printed.
    """

    passed: bool
    is_red: bool
    output: str


def run_guard(guard: str, site: Path | None = None) -> Verdict:
    """Run the tests of a guard, on a package without a rule, or on the real one."""
    path, *options = shlex.split(guard)
    command = [
        *(sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider"),
        *([] if site is None else [f"--timeout={DEADLINE_S}"]),
        *(f"tests/python/{path}", *options),
    ]
    searched = [str(site)] if site is not None else []
    searched += filter(None, [os.environ.get("PYTHONPATH")])
    environment = {
        **{name: value for name, value in os.environ.items() if "PYTEST" not in name},
        "BATCHQUEUE_TEST_MATRIX": "all",
        "PYTHONPATH": os.pathsep.join(searched),
    }
    try:
        done = subprocess.run(
            command,
            check=False,
            cwd=ROOT,
            env=environment,
            timeout=TIME_LIMIT_S,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
    except subprocess.TimeoutExpired as expired:
        return Verdict(False, True, f"{expired.output}\nnot done after {TIME_LIMIT_S} s")
    return Verdict(done.returncode == 0, done.returncode == FAILED, done.stdout)
