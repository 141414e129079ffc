"""Every link from one page of the project to another leads somewhere."""

import re
from pathlib import Path

import pytest

from pages import PAGES, ROOT, name, prose


def _anchors(page: Path) -> set[str]:
    """The anchors that GitHub makes of a page's headings."""
    anchors: set[str] = set()
    for heading in re.findall(r"^#+ (.+?)\s*#*$", prose(page.read_text()), re.MULTILINE):
        words = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        number = sum(anchor == words or anchor.startswith(f"{words}-") for anchor in anchors)
        anchors.add(f"{words}-{number}" if words in anchors else words)
    return anchors


def _broken(page: Path) -> list[str]:
    broken = []
    text = re.sub(r"`[^`\n]*`", "", prose(page.read_text()))
    inline = re.findall(r"\]\(<?([^)>\s]+)>?(?: \"[^\"]*\")?\)", text)
    reference = re.findall(r"^\[[^\]]+\]: (\S+)$", text, re.MULTILINE)
    for link in inline + reference:
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        inside = target.is_relative_to(ROOT) and target.exists()
        if not inside or (anchor and target.suffix == ".md" and anchor not in _anchors(target)):
            broken.append(link)
    return broken


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_link_of_a_page_leads_somewhere(page: Path):
    assert _broken(page) == []


def test_broken_link_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(globals(), "ROOT", tmp_path)  # links may not lead out of it
    page = tmp_path / "page.md"
    page.write_text(
        "# One\n\n[a](page.md#one) [b](page.md#two) [c](missing.md) [d](https://example.org)\n"
    )
    assert _broken(page) == ["page.md#two", "missing.md"]
