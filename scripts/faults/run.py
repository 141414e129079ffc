"""Turns the rules off one by one, and checks that the tests that guard each rule fail.

`rules.py` lists the rules of the core. Their tests run on a copy of it, which is built once, with a
switch for each rule (`switches.diff`). `pipeline_support.mutants` lists the rules of pipelines;
their tests run on a copy of the package without the rule. First, all tests must pass with every
rule in place, in the same builds. `make faults` runs all rules; `.ci/run` runs a different part for
each commit.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from rules import RULES
from switches import ROOT, write_copy

sys.path.insert(0, str(ROOT / "tests" / "python" / "support"))

from pipeline_support.mutants import MUTANTS
from pipeline_support.mutants.mutant import PACKAGE, run_guard

FAULTS = ROOT / os.environ.get("CARGO_TARGET_DIR", "target") / "faults"
COPY = FAULTS / "crate"
BUILT = FAULTS / "target"
"""Kept, like the copy, so that a later run builds only what has changed."""

SITE = FAULTS / "site"
TIME_LIMIT_S = 120
"""A test that hangs without its rule counts as failed; loom and the tests' timeouts end most."""

PATIENCE_S = 600
"""The limit of a test with every rule in place, which must pass even on a slow machine."""

TRIES = 3
"""Runs of a test without its rule: real threads can be lucky, but not three times in a row."""


WITHOUT = {mutant.rule: mutant for mutant in MUTANTS}
GUARDS = {
    **RULES,
    **{
        rule: [f"pipeline:{guard}" for guard in without.guards] for rule, without in WITHOUT.items()
    },
}
"""The tests of each rule, prefixed with their kinds."""


class Outcome(NamedTuple):
    """How a command ended, and what it printed."""

    passed: bool
    is_red: bool
    output: str


def build(kinds: set[str]) -> None:
    """Build these kinds of tests, with the switches of the rules."""
    try:
        write_copy(COPY)
    except ValueError as error:
        sys.exit(str(error))
    for kind in sorted(kinds - {"py", "pipeline"}):
        cargo(kind, "--no-run", check=True)
    if "py" in kinds:
        build_package()


def build_package() -> None:
    """Build the bindings, and link the rest of the package next to them."""
    command = ["cargo", "build", "--locked", "--target-dir", str(BUILT)]
    command += ["--profile", "local", "--lib", "--features", "python"]
    extension = {"PYO3_BUILD_EXTENSION_MODULE": "1", "PYO3_PYTHON": sys.executable}
    run(command, check=True, folder=COPY, **extension)
    shutil.rmtree(SITE, ignore_errors=True)
    package = SITE / PACKAGE.name
    package.mkdir(parents=True)
    for entry in PACKAGE.iterdir():
        if not entry.name.startswith("_core."):
            (package / entry.name).symlink_to(entry)
    shutil.copy(BUILT / "local" / "libbatchqueue.so", package / "_core.abi3.so")


def cargo(kind: str, *args: str, rule: str = "", check: bool = False) -> Outcome:
    """Run cargo for a kind of tests."""
    command, flags = ["cargo", "test", "--locked", "--target-dir"], {}
    if kind == "loom":
        command += [str(BUILT / "loom"), "--profile", "local", "--lib"]
        flags = {"RUSTFLAGS": "--cfg loom"}
    else:
        command += [str(BUILT), *(["--lib"] if kind == "unit" else ["--test", "it"])]
    return run([*command, *args], rule=rule, check=check, folder=COPY, **flags)


def outcome(test: str, rule: str = "") -> Outcome:
    """Run a test."""
    kind, name = test.split(":", 1)
    if kind == "pipeline":
        with tempfile.TemporaryDirectory() as folder:
            return Outcome(*run_guard(name, WITHOUT[rule].write(Path(folder)) if rule else None))
    if kind in ("loom", "unit", "it"):
        return cargo(kind, "--", "--exact", name, rule=rule)
    path, *options = name.split()
    pytest = [sys.executable, "-m", "pytest", "-q", "-x", f"tests/python/{path}", *options]
    return run(pytest, rule=rule, PYTHONPATH=str(SITE))


def run(
    command: list[str],
    *,
    rule: str = "",
    check: bool = False,
    folder: Path = ROOT,
    **variables: str,
) -> Outcome:
    """Run a command and capture its output; a build has no time limit."""
    every_case = {"BATCHQUEUE_TEST_MATRIX": "all"}
    environment = {**os.environ, **variables, **every_case, "BATCHQUEUE_RULE_OFF": rule}
    limit = TIME_LIMIT_S if rule else PATIENCE_S
    try:
        done = subprocess.run(
            command,
            check=False,
            cwd=folder,
            env=environment,
            timeout=None if check else limit,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
    except subprocess.TimeoutExpired as expired:
        printed = (expired.stdout or b"").decode(errors="replace")
        output = f"{printed}\nnot done after {limit} s"
        return Outcome(passed=False, is_red=True, output=output)
    output = done.stdout.decode(errors="replace")
    if check and done.returncode != 0:
        sys.exit(f"{' '.join(command)} failed:\n{output}")
    passed = done.returncode == 0
    return Outcome(passed=passed, is_red=not passed, output=output)


def main() -> int:
    """Print a line per rule and test; return 0 if each passes with its rule and fails without."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="the rules to turn off (all)")
    parser.add_argument(
        "--part",
        default="1/1",
        help="every N-th of these rules, from the K-th: 2/4 is the second, the sixth, ...",
    )
    args = parser.parse_args()
    if unknown := sorted(set(args.names) - set(GUARDS)):
        parser.error(f"rule {', '.join(unknown)} is not known: give some of {', '.join(GUARDS)}")
    part, _, parts = args.part.partition("/")
    if not (part.isdecimal() and parts.isdecimal() and 1 <= int(part) <= int(parts) <= len(GUARDS)):
        parser.error(
            f"--part {args.part}: give K/N with K from 1 to N, and N up to {len(GUARDS)}, as in 2/4"
        )
    chosen = {
        name: GUARDS[name] for name in (args.names or list(GUARDS))[int(part) - 1 :: int(parts)]
    }
    print(f"faults: {len(chosen)} of {len(GUARDS)}: {' '.join(chosen)}", flush=True)
    tests = sorted({test for guards in chosen.values() for test in guards})
    build({test.partition(":")[0] for test in tests})
    wrong = 0
    for test in tests:
        with_all_rules = outcome(test)
        # Cargo succeeds even if no test has the name.
        if not with_all_rules.passed or " 0 passed" in with_all_rules.output:
            wrong += 1
            print(f"{test}: RED with every rule in place\n{with_all_rules.output}", flush=True)
    for rule, guards in chosen.items():
        for test in guards:
            tries = (outcome(test, rule) for _ in range(TRIES))
            without = next((each for each in tries if not each.passed), None)
            if without is None:
                verdict = "STILL GREEN"
            elif without.is_red:
                verdict = "red, as it must be"
            else:  # for instance, an import failed
                verdict = f"DID NOT RUN\n{without.output}"
            wrong += without is None or not without.is_red
            print(f"{rule:30} {test}: {verdict}", flush=True)
    total = sum(map(len, chosen.values()))
    print(f"{total + len(tests) - wrong} passed, {wrong} failed")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
