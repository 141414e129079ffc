"""A reader who searches for a class finds one, and each import names the module that has it."""

import importlib.util
import re
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[3]
_spec = importlib.util.spec_from_file_location("structure", ROOT / "scripts/structure.py")
structure = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(structure)

TWICE = {
    "MetricsSink": "the sink of groups and that of pipelines: each program imports one of them",
    "SinkError": "what a sink of pipelines raises, and what the sink of Spark raises",
}
"""Names that two packages publish."""


def test_no_two_classes_have_the_same_name():
    places = defaultdict(list)
    for path in sorted(structure.PACKAGE.rglob("*.py")):
        for name in structure.classes(path):
            places[name].append(str(path.relative_to(ROOT)))

    found = {name: files for name, files in places.items() if len(files) > 1}

    assert set(found) == set(TWICE), found
    assert all(len(files) == 2 for files in found.values()), found


def test_no_module_imports_from_the_page_of_the_package():
    found = [
        str(path.relative_to(ROOT))
        for path in sorted(structure.PACKAGE.rglob("*.py"))
        if structure.PACKAGE.name in structure.imported(path)
    ]

    assert found == []


SOURCES = [
    path
    for folder in ("src", "tests/it", "tests/states", "benches", "scripts")
    for path in sorted((ROOT / folder).rglob("*"))
    if path.suffix in (".rs", ".md") and "target" not in path.parts
]


def test_a_file_that_a_comment_names_is_there_and_is_another_one():
    files = [f"/{path.relative_to(ROOT)}" for path in SOURCES]
    wrong = []
    for path in SOURCES:
        marker = "//" if path.suffix == ".rs" else ""
        for line in path.read_text().splitlines():
            _, _, comment = line.partition(marker) if marker else ("", "", line)
            for name in re.findall(r"`([\w/.-]+\.rs)`", comment):
                named = [file for file in files if file.endswith(f"/{name}")]
                if named in ([], [f"/{path.relative_to(ROOT)}"]):
                    wrong.append(f"{path.relative_to(ROOT)}: {line.strip()}")

    assert wrong == []
