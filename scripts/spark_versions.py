"""Tests the Spark support on several versions of pyspark, and writes docs/spark/versions.md.

Each version has its own virtual environment under target/spark-versions, made on the first run (a
minute each and 1 GB; pyspark comes as a source package of 400 MB). The package under test is that
of this checkout, with the core that `make spark-versions` builds. The page shows the last run of
each version.
"""

import argparse
import json
import os
import platform
import re
import subprocess
import sys
import textwrap
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from string import Template
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parent.parent
TARGET = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "spark-versions"
TEMPLATE = ROOT / "scripts" / "templates" / "spark_versions.md"
TESTS = "tests/python/spark"

VERSIONS = {
    # Spark 3.5 predates numpy 2 and requires numpy 1; pyarrow 15 is the oldest that the package
    # allows.
    "3.5": ("pyspark==3.5.9", "pyarrow==15.0.2", "pandas==2.2.3", "numpy<2"),
    "4.0": ("pyspark==4.0.5", "pyarrow==18.1.0", "pandas==2.2.3"),
    "4.1": ("pyspark==4.1.4", "pyarrow==21.0.0", "pandas==2.3.3"),
    "4.2": ("pyspark==4.2.1", "pyarrow==23.0.0", "pandas==2.3.3"),
    "4.3": ("pyspark==4.3.0", "pyarrow==26.0.1", "pandas==2.3.3"),
}
# The requirements of `pyspark[connect]`, but not for 3.5, whose pip package has no server.
CONNECT = (
    "grpcio>=1.76",
    "grpcio-status>=1.76",
    "googleapis-common-protos>=1.71",
    "zstandard>=0.25",
)
FOR_TESTS = (
    "pytest>=8",
    "pytest-timeout>=2.4",
    "hypothesis>=6.100",
    "psycopg[binary]>=3.2",
    "rich>=13.7",
)


@dataclass(frozen=True)
class Area:
    """Tests that share a column of the table.

    Attributes:
        name: Heading of the column.
        files: Test files under `TESTS`, without ".py".
        since: The first version that supports them; from that version on, at least one test must
            pass.
        tests: Pattern of the names in those files; a test belongs to the first area that matches.
        quick: Whether `--quick` runs tests of the area.
    """

    name: str
    files: tuple[str, ...]
    since: tuple[int, int] = (3, 5)
    tests: str = ""
    quick: bool = False


SPARK_L1 = r"(\[|_)(spark(?!_sql)|ansi|without_a_tag|no_step_names|groups_of|cannot_cut|has_not)"
"""Names of the tests of `l1="spark"`, which share a file with those of `l1="tasks"`."""
AREAS = (
    Area("stream sink", ("format/test_stream",), since=(4, 1)),
    Area("batch sink", ("format/test_batch",), since=(4, 0)),
    Area(
        "`MetricsWriter`, L1 in Spark SQL", ("writer/test_four_speeds",), tests=SPARK_L1, quick=True
    ),
    Area("`MetricsWriter`, L1 in tasks", ("writer/test_four_speeds",), quick=True),
    Area("shards", ("writer/test_shards",)),
    Area(
        "handlers",
        (
            "handlers/test_foreach_batch",
            "handlers/test_for_each_partition",
            "handlers/test_invalid_handlers",
        ),
        quick=True,
    ),
    Area("Connect", ("format/test_connect",), since=(4, 0)),
    Area("killed driver", ("failures/test_driver_failures",)),
)
# These take minutes: they repeat the same protocol, with the driver killed at other points. On the
# newest version, `make test` runs them; other versions would prove nothing more.
LEFT_OUT = (
    "test_stream_in_shards or two_drivers or interrupted_driver or (killed_driver and not ledger)"
)
QUICK = (
    "batch_is_equal or stream_is_equal or above_64 or groups_of or any_column_name "
    "or tags_once_and_in_order"
)
"""The tests of `MetricsWriter` and handlers that differ most between versions, for `--quick`."""


def main() -> None:
    """Make the environments, run the tests, and write the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--versions", default=",".join(VERSIONS), help="versions, separated by commas (all)"
    )
    parser.add_argument("--page", type=Path, help="write the page here")
    parser.add_argument(
        "--quick", action="store_true", help="a minute of tests per version, and no page"
    )
    parser.add_argument(
        "--prepare", action="store_true", help="make the environments, and run nothing"
    )
    args = parser.parse_args()
    versions = args.versions.split(",")
    if unknown := sorted(set(versions) - set(VERSIONS)):
        parser.error(
            f"version {', '.join(unknown)} is not known: give some of {','.join(VERSIONS)}"
        )
    if args.page and args.quick:
        parser.error(
            "--quick leaves out tests that the page reports: give one of --page and --quick"
        )
    if args.prepare:
        for version in versions:
            environment(version)
        return
    failures = [failure for version in versions for failure in run(version, quick=args.quick)]
    if args.page:
        args.page.write_text(page(), encoding="utf-8")
    sys.exit("\n".join(f"spark-versions: {failure}" for failure in failures) or 0)


def run(version: str, *, quick: bool) -> list[str]:
    """Test a version; keep the report, print the counts, and return what failed."""
    began = time.monotonic()
    python = environment(version)
    installed = time.monotonic()
    report = TARGET / version / ("quick.xml" if quick else "report.xml")
    report.unlink(missing_ok=True)
    areas = [area for area in AREAS if area.quick or not quick]
    files = sorted({f"{TESTS}/{file}.py" for area in areas for file in area.files})
    chosen = f"not ({LEFT_OUT})" if not quick else QUICK
    command = [
        python,
        "-m",
        "pytest",
        "-q",
        "--tb=short",
        "-k",
        chosen,
        f"--junitxml={report}",
        *files,
    ]
    environ = {
        **os.environ,
        "PYTHONPATH": str(ROOT / "python"),
        "PYTHONDONTWRITEBYTECODE": "1",
        "BATCHQUEUE_TEST_MATRIX": "all",
    }
    ended = subprocess.run(command, cwd=ROOT, env=environ, check=False).returncode
    if not report.exists():
        return [f"pyspark {version}: pytest ended with {ended}, without a report"]
    counts, _ = counted(report)
    print(
        f"pyspark {version}: environment {installed - began:.0f} s, "
        f"tests {time.monotonic() - installed:.0f} s; {json.dumps(counts)}",
        flush=True,
    )
    (TARGET / version / "packages.json").write_text(json.dumps(packages(python)))
    return failed_areas(version, areas, counts)


def failed_areas(version: str, areas: list[Area], counts: dict[str, dict[str, int]]) -> list[str]:
    """Report areas with failures, and areas without a passed test that the version supports."""
    failures = []
    for area in areas:
        count = counts.get(area.name, {})
        if count.get("failed"):
            failures.append(f"pyspark {version}: {count['failed']} tests failed of: {area.name}")
        elif not count.get("passed") and as_numbers(version) >= area.since:
            failures.append(f"pyspark {version}: no test passed of: {area.name}")
    return failures


def as_numbers(version: str) -> tuple[int, ...]:
    """Convert a version to numbers that can be compared."""
    return tuple(map(int, version.split(".")))


def environment(version: str) -> Path:
    """Make the environment of a version unless it exists; return its Python."""
    wanted = [*VERSIONS[version], *(CONNECT if as_numbers(version) >= (4, 0) else ()), *FOR_TESTS]
    if version == "3.5" and sys.version_info >= (3, 12):
        wanted.append("setuptools<81")  # for `distutils`, which Spark 3.5 imports
    folder = TARGET / version
    python, note = folder / "bin" / "python", folder / "installed.txt"
    stamp = "\n".join([platform.python_version(), *wanted])
    if not note.exists() or note.read_text() != stamp:
        subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", *wanted], check=True)
        note.write_text(stamp)
    return python


def packages(python: Path) -> dict[str, str]:
    """Return the versions of the packages in an environment."""
    program = """if True:
        import json, platform, subprocess, sys
        from importlib.metadata import version
        from batchqueue.spark import find_java_home
        java = [find_java_home() / "bin" / "java", "-version"]
        shown = subprocess.run(java, capture_output=True, text=True).stderr
        found = {name: version(name) for name in ("pyspark", "pyarrow", "pandas", "numpy")}
        found |= {"Python": platform.python_version(), "Java": shown.split('"')[1]}
        print(json.dumps(found))
    """
    environ = {**os.environ, "PYTHONPATH": str(ROOT / "python")}
    answer = subprocess.run(
        [python, "-c", program], env=environ, check=True, capture_output=True, text=True
    )
    return dict(json.loads(answer.stdout))


def counted(report: Path) -> tuple[dict[str, dict[str, int]], dict[str, int]]:
    """Count the tests in a report of pytest by area and outcome, and the skips by reason."""
    counts: dict[str, Counter[str]] = {}
    reasons: Counter[str] = Counter()
    for test in ElementTree.parse(report).iter("testcase"):
        skipped = test.find("skipped")
        failed = test.find("failure") is not None or test.find("error") is not None
        end = "failed" if failed else "passed" if skipped is None else "skipped"
        area = area_of(f"{test.get('classname')}.{test.get('name')}")
        counts.setdefault(area, Counter())[end] += 1
        if skipped is not None:
            # The reason of a skipped module is in the text, after its location.
            found = re.search(r"Skipped: (.*?)['\"]?\)?$", skipped.text or "")
            reasons[found[1] if found else skipped.get("message", "")] += 1
    return {area: dict(count) for area, count in counts.items()}, dict(reasons)


def area_of(test: str) -> str:
    """Return the area of a test, by its file and name."""
    for area in AREAS:
        modules = "|".join(file.replace("/", r"\.") for file in area.files)
        if re.search(rf"\.({modules})(\.|$)", test) and re.search(area.tests, test):
            return area.name
    raise ValueError(f"{test} is in no area")


def page() -> str:
    """Return the page for the last runs of all versions."""
    columns = ["pyspark", "Python", "Java", "pyarrow", "pandas", "numpy"]
    heads = [*columns, *(area.name for area in AREAS)]
    lines = [f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}"]
    skipped = []
    for version in VERSIONS:
        report = TARGET / version / "report.xml"
        if report.exists():
            counts, reasons = counted(report)
            found = json.loads((TARGET / version / "packages.json").read_text())
            cells = [cell(counts.get(area.name, {})) for area in AREAS]
            lines.append(f"| {' | '.join([*(found[column] for column in columns), *cells])} |")
            skipped += [
                textwrap.fill(f"- {version}: {reason} ({number})", 100, subsequent_indent="  ")
                for reason, number in sorted(reasons.items())
            ]
    return Template(TEMPLATE.read_text(encoding="utf-8")).substitute(
        table="\n".join(lines), skipped="\n".join(skipped) or "None."
    )


def cell(count: dict[str, int]) -> str:
    """Return the outcomes of the tests of an area."""
    ends = [f"{count[end]} {end}" for end in ("passed", "failed", "skipped") if count.get(end)]
    return ", ".join(ends) or "not run"


if __name__ == "__main__":
    main()
