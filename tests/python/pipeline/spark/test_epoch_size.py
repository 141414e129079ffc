"""The size of epochs follows the busy time of the sink, within its clamps, whatever happens."""

import random
from statistics import median

import pytest
from hypothesis import given
from hypothesis import settings as checks
from hypothesis import strategies as st

from batchqueue.pipeline.spark.epoch_size import (
    EpochGoal,
    EpochSize,
    SizedEpoch,
    fixed_seconds,
    goal_seconds,
    resized,
)

rows = st.integers(1, 10**9)
seconds = st.floats(0, 10**5, allow_nan=False)


def settle(
    size: EpochSize, fixed_s: float, rows_per_s: float, epochs: int, noise: float = 0
) -> float:
    """Runs epochs of a sink; returns the share of its speed that the last half of them used."""
    chance = random.Random(7)
    handled = busy = 0.0
    for number in range(epochs):
        taken = size.rows
        time = (fixed_s + taken / rows_per_s) * chance.lognormvariate(0, noise)
        size.after(taken, time)
        if number >= epochs // 2:
            handled, busy = handled + taken, busy + time
    return handled / rows_per_s / busy


@checks(deadline=None)  # machines may be busy
@given(rows, seconds, st.floats(0.01, 10**4))
def test_no_step_is_larger_than_double_or_smaller_than_a_fifth(last, busy_s, goal_s):
    following = resized(last, busy_s, goal_s)
    assert max(1, round(0.2 * last)) <= following <= 2 * last
    if busy_s <= goal_s:
        assert following >= last
    if busy_s >= goal_s > 0:
        assert following <= last


@checks(deadline=None)  # machines may be busy
@given(st.lists(st.tuples(st.integers(0, 10**9), seconds), max_size=40), rows)
def test_any_history_leaves_a_size_from_one_row_to_the_most(history, most):
    size = EpochSize(EpochGoal(first_rows=1000, max_rows=most))
    for taken, busy_s in history:
        size.after(taken, busy_s)
        assert 1 <= size.rows <= most
        assert size.goal_s >= 2


@checks(deadline=None)  # machines may be busy
@given(st.lists(st.builds(SizedEpoch, rows, seconds), min_size=2, max_size=16))
def test_fixed_cost_is_never_more_than_half_of_the_epochs_took(epochs):
    fixed_s = fixed_seconds(epochs)
    assert fixed_s is None or 0 <= fixed_s <= median(epoch.busy_s for epoch in epochs)


@checks(deadline=None)  # machines may be busy
@given(st.floats(0, 60), st.floats(10, 10**6), st.integers(1, 10**5))
def test_fixed_cost_is_found_exactly_where_time_is_a_line(fixed_s, rows_per_s, least):
    epochs = [
        SizedEpoch(least * factor, fixed_s + least * factor / rows_per_s) for factor in (1, 2, 4)
    ]
    assert fixed_seconds(epochs) == pytest.approx(fixed_s, abs=1e-4 + 1e-6 * epochs[-1].busy_s)


def test_goal_is_the_largest_of_target_fixed_cost_and_trigger():
    assert goal_seconds(EpochGoal(), 0) == 2
    assert goal_seconds(EpochGoal(), 3) == 18
    assert goal_seconds(EpochGoal(trigger_s=5), 0) == 4
    assert goal_seconds(EpochGoal(trigger_s=5), 3) == 18


@pytest.mark.parametrize(
    ("fixed_s", "trigger_s", "least_use", "epoch_s"),
    [(0.3, 0, 0.8, 2), (0.3, 5, 0.9, 4), (3, 0, 0.8, 18)],
)
def test_size_settles_at_the_goal_and_uses_the_sink(fixed_s, trigger_s, least_use, epoch_s):
    size = EpochSize(EpochGoal(first_rows=2000, trigger_s=trigger_s))
    assert settle(size, fixed_s, 20_000, 60) > least_use
    assert fixed_s + size.rows / 20_000 == pytest.approx(epoch_s, rel=0.1)


@pytest.mark.parametrize("noise", [0.1, 0.3, 0.6, 1.0])
def test_noise_neither_shrinks_epochs_to_nothing_nor_lets_them_grow_without_end(noise):
    size = EpochSize(EpochGoal(first_rows=2000))
    assert settle(size, 0.3, 20_000, 400, noise) > 0.4
    assert size.rows < 20_000 * 30


@pytest.mark.parametrize("fixed_s", [0.3, 3, 7])
@pytest.mark.parametrize("noise", [0, 0.3])
def test_slow_first_epoch_and_coarse_splits_do_not_leave_a_sink_unused(fixed_s, noise):
    """Workers start in the first epoch; an epoch has whole splits, however small the limit is."""
    chance, size = random.Random(3), EpochSize(EpochGoal())
    size.after(10_000, 60 + fixed_s)
    handled = busy = 0.0
    for number in range(100):
        taken = max(500, size.rows // 500 * 500)
        time = (fixed_s + taken / 5_000) * chance.lognormvariate(0, noise)
        size.after(taken, time)
        if number >= 50:
            handled, busy = handled + taken, busy + time
    assert handled / 5_000 / busy > 0.6


def test_first_epoch_says_nothing_about_the_fixed_cost():
    """Half of its time, or more, is that of starting Spark's workers."""
    size = EpochSize(EpochGoal(first_rows=10_000))
    size.after(10_000, 1)
    size.after(20_000, 1)
    assert (size.fixed_s, size.goal_s) == (0, 2)


def test_single_slow_epoch_does_not_change_the_fixed_cost():
    epochs = [SizedEpoch(rows, 1 + rows / 1000) for rows in (500, 1000, 2000, 4000, 8000)]
    assert fixed_seconds([*epochs, SizedEpoch(8000, 100)]) == pytest.approx(1, abs=0.2)


def test_slower_sink_gets_smaller_epochs_and_a_faster_one_larger_ones():
    size = EpochSize(EpochGoal(first_rows=2000))
    settle(size, 0.1, 20_000, 30)
    before = size.rows
    settle(size, 0.1, 2_000, 30)
    assert size.rows < before / 5
    settle(size, 0.1, 20_000, 30)
    assert size.rows == pytest.approx(before, rel=0.2)


def test_source_that_ran_dry_does_not_shrink_the_limit():
    size = EpochSize(EpochGoal(first_rows=2000))
    settle(size, 0.1, 20_000, 30)
    before = size.rows
    for _ in range(20):
        size.after(3, 0.1)
    assert size.rows == before
    size.after(3, 10)
    assert size.rows < 10


def test_kept_trigger_of_unknown_busy_time_lets_epochs_grow_slowly():
    size = EpochSize(EpochGoal(first_rows=1000, trigger_s=5))
    size.after_a_kept_trigger(1000)
    assert size.rows == 1251
    size.after_a_kept_trigger(0)
    assert size.rows == 1251
