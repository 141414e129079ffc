"""The lint of the project's English finds what it claims to find, and only that."""

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
_spec = importlib.util.spec_from_file_location("prose", ROOT / "scripts/prose.py")
prose = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(prose)

TABLE = prose.rules(
    """
| avoid | say | right in |
|---|---|---|
| `at once`, `goes on` | immediately | |
| `is no` | is not a | `there is no`, `is no longer` |
"""
)


def found(name, source):
    return list(prose.faults(Path(name), source, TABLE))


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("a.py", "x = 1  # starts at once"),
        ("a.py", '"""It goes on."""'),
        ("a.py", 'raise ValueError(f"{x} is no dict")'),
        ("a.py", "def test_it_goes_on():\n    pass"),
        ("a.rs", "let x = 1; // starts at once"),
        ("a.rs", "/// It goes on."),
        ("a.rs", 'panic!("{x} is no number")'),
        ("a.rs", "fn a_queue_is_no_list() {}"),
        ("a.md", "# It starts at once"),
        ("Makefile", "test: ## runs all at once"),
    ],
)
def test_avoided_phrase_is_found_in_comments_strings_and_test_names(name, source):
    [(line, message)] = found(name, source)
    assert line == 1
    assert "say i" in message


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("a.py", "at.once(goes_on)"),
        ("a.rs", "at.once(goes_on);"),
        ("a.md", "Call `at once`.\n\n```text\nat once\n```\n"),
        ("a.md", "There is no limit, and it is no longer here."),
    ],
)
def test_code_and_allowed_phrases_pass(name, source):
    assert not found(name, source)


def test_phrase_broken_across_two_comment_lines_is_found_on_the_first():
    assert found("a.rs", "\n// it starts at\n// once\n") == [(2, '"at once"; say immediately')]
    assert found("a.py", "\n# it starts at\n# once\n") == [(2, '"at once"; say immediately')]


def test_variable_named_one_is_found():
    assert [line for line, _ in found("a.py", "x = 1\nfor one in y:\n    pass")] == [2]
    assert [line for line, _ in found("a.rs", "let x = 1;\ny.map(|one| 1)")] == [2]
    assert not found("a.py", 'x = {"one": 1}  # one of them')


def test_long_line_is_found():
    assert found("a.md", "word " * 30) == [(1, "150 columns; end lines at 100")]
    assert not found("a.md", "| " + "word " * 30 + "|")


def test_every_row_of_the_page_is_read():
    page = prose.PAGE.read_text()
    begin = page.index("| avoid |")
    rows = page[begin : page.index("\n\n", begin)].count("\n") - 1
    assert len(prose.rules(page)) == rows > 0
