"""Each switch of a rule finds its place in the sources, or its row is named."""

import importlib.util
import re
from pathlib import Path

import pytest

FAULTS = Path(__file__).parents[3] / "scripts" / "faults"


def load(name):
    spec = importlib.util.spec_from_file_location(f"faults_{name}", FAULTS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


switches, rules = load("switches"), load("rules")

LISTING = """\
# The beginning says what a row is.

@@ src/gate.rs Bound
     fn check(&self) {
-        if self.is_full() {
+        if self.is_full() && !rule_off!(Bound) {
"""
SOURCE = """\
    fn check(&self) {
        if self.is_full() {
            stop();
        }
    }
"""


def test_each_row_is_in_the_sources_once():
    switches.switched_sources()  # raises otherwise


def test_each_rule_has_a_switch_and_tests():
    switched = set()
    for row in switches.rows(switches.LISTING.read_text()):
        used = set(re.findall(r"rule_off!\((\w+)\)", row.with_switch))
        assert used <= set(row.rules), row
        switched |= used
    listed = re.findall(r"^    (\w+),$", switches.RULES.read_text(), re.MULTILINE)
    assert switched == set(listed) == set(rules.RULES)


def test_a_row_replaces_its_lines():
    [row] = switches.rows(LISTING)
    assert switches.switched(SOURCE, row) == SOURCE.replace(
        "is_full()", "is_full() && !rule_off!(Bound)"
    )


@pytest.mark.parametrize("times", [0, 2])
def test_a_row_is_named_unless_its_lines_are_there_once(times):
    [row] = switches.rows(LISTING)
    with pytest.raises(ValueError, match=rf"src/gate.rs Bound: these lines are {times} times"):
        switches.switched(SOURCE * times, row)


def test_a_row_is_named_whose_line_begins_wrongly():
    listing = LISTING.replace("-        if", "        if", 1).replace("     fn", "fn", 1)
    with pytest.raises(ValueError, match=r"src/gate.rs Bound: .* fn check"):
        list(switches.rows(listing))


def test_a_second_copy_writes_only_what_has_changed(tmp_path):
    switches.write_copy(tmp_path)
    library, left_over = tmp_path / "src" / "lib.rs", tmp_path / "src" / "left_over.rs"
    before = library.stat().st_mtime_ns
    left_over.touch()
    (tmp_path / "src" / "queue.rs").write_text("")
    switches.write_copy(tmp_path)
    assert library.stat().st_mtime_ns == before
    assert not left_over.exists()
    assert (tmp_path / "src" / "queue.rs").read_text()
