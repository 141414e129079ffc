"""Each rule of pipelines is needed: without it, the tests that guard it fail.

A run takes a part of the rules by turns; `make faults` takes all of them, and the tests with the
rules in place as well, which are otherwise part of this run.
"""

import pytest

from pipeline_support.mutants import MUTANTS
from pipeline_support.mutants.mutant import TESTS, run_guard

TRIES = 3
"""Real threads may be lucky, but not three times in a row."""


def test_each_rule_is_in_the_code_once():
    for mutant in MUTANTS:
        mutant.text_without()  # raises otherwise
        assert all((TESTS / guard.split()[0]).exists() for guard in mutant.guards), mutant.rule
    assert len({mutant.rule for mutant in MUTANTS}) == len(MUTANTS)


@pytest.mark.matrix(24)
@pytest.mark.timeout(900)
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.rule)
def test_each_rule_is_needed(mutant, tmp_path):
    site = mutant.write(tmp_path)
    for guard in mutant.guards:
        for _ in range(TRIES):
            verdict = run_guard(guard, site)
            assert verdict.passed or verdict.is_red, f"{guard} did not run:\n{verdict.output}"
            if verdict.is_red:
                break
        else:
            pytest.fail(f"without {mutant.rule}, {guard} still passes")
