"""The state of the backpressure of a stage: where it settles, since when, and how often."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchqueue.pipeline import BackpressureState
from batchqueue.pipeline.runner.states import BACKPRESSURE_STEPS
from pipeline_support.flow_support import CheckedFlow, chain, reading


@pytest.fixture
def flow():
    """A source that obeys the signal, and two stages."""
    return CheckedFlow(chain("orders", "totals", "store"), gate="both")


def test_state_does_not_say_paused_when_no_source_is():
    """By default signals only inform."""
    flow = CheckedFlow(chain("orders", "totals"))
    metrics = flow.check(totals=6_000).metrics("totals")
    assert metrics.backpressure_active
    assert metrics.backpressure_state.state is BackpressureState.MONITORING


def test_state_says_paused_when_a_source_far_before_the_stage_is(flow):
    metrics = flow.check(totals=0, store=6_000).metrics("store")
    assert metrics.backpressure_state.state is BackpressureState.SOURCE_PAUSED


def test_state_of_a_stage_that_nothing_is_before():
    flow = CheckedFlow(chain("orders", "totals"))

    def state(queue):
        controller = flow.check(orders=reading(0, queue))
        return controller.metrics("orders").backpressure_state.state

    assert [state(queue) for queue in (1_001, 800, 1_001, 0)] == [
        *[BackpressureState.BACKPRESSURE_ACTIVE] * 3,
        BackpressureState.NORMAL,
    ]


def test_state_says_since_when_and_how_often(flow):
    def settled(lag):
        each = flow.check(totals=lag).metrics("totals").backpressure_state
        return each.state.value, each.since, each.count

    assert settled(0) == ("normal", 0.0, 1)
    assert settled(6_000) == ("source_paused", 1.0, 1)
    assert settled(6_000) == ("source_paused", 1.0, 1)
    assert settled(0) == ("normal", 2.0, 2)
    assert settled(6_000) == ("source_paused", 2.5, 2)


@given(
    st.lists(
        st.fixed_dictionaries(
            {},
            optional={
                name: st.builds(
                    reading,
                    st.none() | st.integers(-1, 7_000),
                    st.none() | st.integers(-1, 1_400),
                )
                for name in ("orders", "totals", "store")
            },
        ),
        max_size=30,
    ),
    st.sampled_from(["credit", "signal", "both"]),
)
def test_states_follow_the_table_for_any_readings(turns, gate):
    flow = CheckedFlow(chain("orders", "totals", "store"), gate=gate)
    for turn in turns:
        controller = flow.check(**turn)
        for name in turn:
            flow_stage = controller._flows[name]
            path = flow_stage.machine.path
            for state, following in pairwise(path):
                assert following in BACKPRESSURE_STEPS[state]
            is_normal = flow_stage.machine.state is BackpressureState.NORMAL
            assert is_normal != flow_stage.last.pressure.is_active
