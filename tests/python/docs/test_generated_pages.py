"""The committed pages that scripts write have the text of their templates."""

import re

import pytest

from batchqueue.spark.column_types import ACCEPTED, STORED
from pages import ROOT

TEMPLATES = ROOT / "scripts" / "templates"
PAGES = {
    "benchmarks": "figures/benchmarks.md",
    "python": "figures/python.md",
    "spark": "figures/spark.md",
    "spark_versions": "spark/versions.md",
}


def pattern(template: str) -> re.Pattern[str]:
    """Matches the pages that a template gives, whatever its placeholders stand for."""
    return re.compile(".+?".join(map(re.escape, re.split(r"\$\w+", template))), re.DOTALL)


def test_every_template_has_a_page() -> None:
    assert {path.stem for path in TEMPLATES.glob("*.md")} == set(PAGES)


@pytest.mark.parametrize("name", PAGES)
def test_generated_page_has_the_text_of_its_template(name: str) -> None:
    template = (TEMPLATES / f"{name}.md").read_text()
    page = (ROOT / "docs" / PAGES[name]).read_text()
    assert pattern(template).fullmatch(page), f"docs/{PAGES[name]} differs from {name}.md"


def test_page_of_ways_has_the_tables_of_types() -> None:
    page = (ROOT / "docs" / "spark" / "ways.md").read_text()
    uses = ((f"read as {use}", kinds) for use, kinds in ACCEPTED.items())
    stored = ((kind.__name__, kinds) for kind, kinds in STORED.items())
    for head, rows in (("| a column | may be |", uses), ("| a column of type | stores |", stored)):
        table = [head, "|---|---|", *(f"| {what} | {', '.join(kinds)} |" for what, kinds in rows)]
        assert "\n".join(["", *table, ""]) in page, "\n".join(["docs/spark/ways.md lacks", *table])


def test_changed_sentence_is_noticed() -> None:
    assert pattern("Rows: $table.\n\nEnd.\n").fullmatch("Rows: | 1 |\n| 2 |.\n\nEnd.\n")
    assert not pattern("Rows: $table.\n\nEnd.\n").fullmatch("Rows: | 1 |.\n\nThe end.\n")
