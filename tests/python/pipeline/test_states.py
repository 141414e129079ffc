"""The state machines of a stage: their tables, and what is refused."""

import pytest

from batchqueue.pipeline import BackpressureState, PartitionState, SkewState, StateError
from batchqueue.pipeline.runner.stage_flow import partition_machine
from batchqueue.pipeline.runner.states import (
    BACKPRESSURE_STEPS,
    PARTITION_STEPS,
    SKEW_STEPS,
    StateMachine,
)
from pipeline_support.flow_support import Clock

P, B, S = PartitionState, BackpressureState, SkewState

# As in the diagrams of these machines.
DRAWN = {
    P: [
        (P.INITIALIZING, P.COMPUTING_PARTITION_COUNT),
        (P.COMPUTING_PARTITION_COUNT, P.SINGLE_PARTITION),
        (P.COMPUTING_PARTITION_COUNT, P.MULTI_PARTITION),
        (P.SINGLE_PARTITION, P.QUEUE_CREATED),
        (P.MULTI_PARTITION, P.QUEUE_CREATED),
        (P.QUEUE_CREATED, P.WORKERS_SPAWNING),
        (P.WORKERS_SPAWNING, P.RUNNING),
        (P.RUNNING, P.REBALANCING),
        (P.REBALANCING, P.RUNNING),
        (P.RUNNING, P.STOPPING),
        (P.STOPPING, P.STOPPED),
    ],
    B: [
        (B.NORMAL, B.CHECKING),
        (B.CHECKING, B.NORMAL),
        (B.CHECKING, B.BACKPRESSURE_ACTIVE),
        (B.BACKPRESSURE_ACTIVE, B.PROPAGATING),
        (B.PROPAGATING, B.SOURCE_PAUSED),
        (B.SOURCE_PAUSED, B.MONITORING),
        (B.MONITORING, B.CHECKING),
        (B.BACKPRESSURE_ACTIVE, B.NORMAL),
    ],
    S: [
        (S.MONITORING, S.COLLECTING_METRICS),
        (S.COLLECTING_METRICS, S.CALCULATING_LAG),
        (S.CALCULATING_LAG, S.NO_SKEW),
        (S.CALCULATING_LAG, S.SKEW_DETECTED),
        (S.NO_SKEW, S.MONITORING),
        (S.SKEW_DETECTED, S.LOGGING_ALERT),
        (S.LOGGING_ALERT, S.MITIGATING),
        (S.MITIGATING, S.MONITORING),
    ],
}
ADDED = {
    P: [(state, P.STOPPING) for state in P if state not in (P.RUNNING, P.STOPPING, P.STOPPED)],
    B: [(B.CHECKING, B.MONITORING), (B.PROPAGATING, B.MONITORING)],
    S: [(S.COLLECTING_METRICS, S.MONITORING)],
}
TABLES = {P: PARTITION_STEPS, B: BACKPRESSURE_STEPS, S: SKEW_STEPS}


def pairs(machines):
    return [
        pytest.param(kind, state, following, id=f"{kind.__name__}-{state.value}-{following.value}")
        for kind in machines
        for state in kind
        for following in kind
    ]


@pytest.mark.parametrize(("kind", "state", "following"), pairs(TABLES))
def test_states_follow_the_table(kind, state, following):
    """Each of all pairs is either drawn or added, or it is refused."""
    machine = StateMachine("the machine", state, TABLES[kind])
    if (state, following) in DRAWN[kind] + ADDED[kind]:
        machine.advance(following)
        assert machine.state is following
    else:
        with pytest.raises(StateError):
            machine.advance(following)
        assert machine.state is state


@pytest.mark.parametrize("kind", TABLES)
def test_each_state_has_a_row_in_its_table(kind):
    assert TABLES[kind].keys() == set(kind)


def test_error_names_both_states_and_what_is_allowed():
    machine = partition_machine("totals", Clock())
    with pytest.raises(StateError) as caught:
        machine.advance(PartitionState.RUNNING)
    assert str(caught.value) == (
        "partitions of totals: running does not follow initializing; allowed is "
        "computing_partition_count or stopping"
    )


def test_error_at_the_end_says_that_nothing_follows():
    machine = StateMachine("partitions of totals", PartitionState.STOPPED, PARTITION_STEPS)
    with pytest.raises(StateError, match="running does not follow stopped; allowed is nothing"):
        machine.advance(PartitionState.RUNNING)


def test_path_with_a_wrong_step_changes_nothing():
    machine = StateMachine("backpressure", BackpressureState.NORMAL, BACKPRESSURE_STEPS)
    with pytest.raises(StateError, match="source_paused does not follow checking"):
        machine.advance(BackpressureState.CHECKING, BackpressureState.SOURCE_PAUSED)
    assert (machine.state, machine.settled.count) == (BackpressureState.NORMAL, 1)
    assert machine.path == (BackpressureState.NORMAL,)


def test_machine_settles_in_the_last_state_of_a_path():
    clock = Clock()
    machine = StateMachine("skew of totals", SkewState.MONITORING, SKEW_STEPS, clock)
    clock.now_s = 10.0
    machine.advance(SkewState.COLLECTING_METRICS, SkewState.CALCULATING_LAG, SkewState.NO_SKEW)
    assert (machine.state, machine.settled.since, machine.settled.count) == (
        SkewState.NO_SKEW,
        10.0,
        1,
    )


def test_path_that_ends_where_it_began_is_not_a_change():
    clock = Clock()
    machine = StateMachine("backpressure", BackpressureState.NORMAL, BACKPRESSURE_STEPS, clock)
    clock.now_s = 10.0
    machine.advance(BackpressureState.CHECKING, BackpressureState.NORMAL)
    assert (machine.settled.since, machine.settled.count) == (0.0, 1)
    assert machine.path == (
        BackpressureState.NORMAL,
        BackpressureState.CHECKING,
        BackpressureState.NORMAL,
    )


def test_count_is_how_often_it_has_settled_there():
    machine = StateMachine("partitions", PartitionState.RUNNING, PARTITION_STEPS)
    counts = []
    for state in [PartitionState.REBALANCING, PartitionState.RUNNING] * 3:
        machine.advance(state)
        counts.append(machine.settled.count)
    assert counts == [1, 2, 2, 3, 3, 4]
