"""What signals do to sources, by gate."""

import pytest

from batchqueue.pipeline import Limit
from batchqueue.pipeline.runner.pressure import OPEN, EffectivePressure, GateDecision, decide
from pipeline_support.flow_support import CheckedFlow, chain

FREE = EffectivePressure()
SLOWED = EffectivePressure(0.6, False, False, "", "totals")
WARNS = EffectivePressure(0.6, False, True, "lag 4100 > 4000, early warning", "totals")
ACTIVE = EffectivePressure(0.0, True, True, "lag 6000 > 5000", "totals")
RECOVERS = EffectivePressure(0.9, True, False, "lag 3600 >= 3500", "totals")
STOPPED = EffectivePressure(0.0, False, False, "", "totals")

# May it plan, and how much of its limit?
GRADED = {FREE: (True, 1.0), SLOWED: (True, 0.6), WARNS: (False, 0.6), ACTIVE: (False, 0.0)}
GRADED |= {RECOVERS: (True, 0.9), STOPPED: (False, 0.0)}
UNTIL_RELEASED = GRADED | {RECOVERS: (False, 0.9)}
UNTOUCHED = dict.fromkeys(GRADED, (True, 1.0))


@pytest.mark.parametrize(
    ("gate", "expected"), [("credit", UNTOUCHED), ("both", GRADED), ("signal", UNTIL_RELEASED)]
)
def test_decision_by_gate(gate, expected):
    for heard, (may_plan, factor) in expected.items():
        decision = decide(heard, gate)
        assert (decision.may_plan, decision.factor) == (may_plan, factor), heard


def test_decision_names_cause_and_reason():
    assert decide(ACTIVE, "both") == GateDecision(False, 0.0, "totals", "lag 6000 > 5000")
    assert decide(FREE, "both") is OPEN


@pytest.mark.parametrize(
    ("factor", "limited"),
    [(1.0, Limit(7, 1_000)), (0.5, Limit(3, 500)), (0.1, Limit(1, 100)), (0.0, Limit(1, 1))],
)
def test_limit_is_at_least_one_row_and_one_byte(factor, limited):
    assert GateDecision(factor=factor).limited(Limit(7, 1_000)) == limited


def test_unlimited_decision_leaves_limits_beyond_floats_alone():
    limit = Limit(10**18 + 1, 10**18 + 1)
    assert OPEN.limited(limit) == limit


@pytest.mark.parametrize(
    ("gate", "lags"),
    [
        ("both", [6_000, 4_500, 4_001]),
        ("signal", [6_000, 4_500, 4_001, 4_000, 3_600]),
        ("credit", []),
    ],
)
def test_source_is_paused_at_these_lags(gate, lags):
    """The lag rises to 6000 and falls; by "signal" the source waits for the release."""
    flow = CheckedFlow(chain("orders", "totals"), gate=gate)
    paused = [
        lag
        for lag in (0, 3_600, 6_000, 4_500, 4_001, 4_000, 3_600, 3_400)
        if not flow.check(totals=lag).decision("orders").may_plan
    ]
    assert paused == lags
