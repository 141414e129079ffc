"""From readings to pressure: hysteresis, the slow-down factor, and limits that are exact."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchqueue import ConfigError
from batchqueue.pipeline import BackpressureConfig
from batchqueue.pipeline.runner.pressure import (
    NO_PRESSURE,
    next_pressure,
    reason_of,
    slow_down_factor,
)

configs = st.builds(
    BackpressureConfig,
    queue_size_threshold=st.integers(1, 2_000),
    lag_threshold=st.integers(1, 9_000),
    slow_down_factor_step=st.sampled_from([0.001, 0.05, 0.1, 0.25, 0.3, 1]),
    release_ratio=st.sampled_from([0.01, 0.5, 0.7, 0.9, 0.99]),
    early_warning_ratio=st.sampled_from([0.01, 0.8, 1]),
)
rows = st.none() | st.integers(-2, 10_000)
turns = st.lists(st.tuples(rows, rows), max_size=30)


def after(config, turns):
    """The pressure after each turn, with the one before it, and what was read."""
    before = NO_PRESSURE
    for lag, queue in turns:
        now = next_pressure(before, lag, queue, config)
        yield before, now, known(lag), known(queue)
        before = now


def known(value):
    return None if value is None or value < 0 else value


def share(value, threshold):
    return None if value is None else Fraction(value, threshold)


def shares_of(lag, queue, config):
    return [share(lag, config.lag_threshold), share(queue, config.queue_size_threshold)]


class TestHysteresis:
    @given(configs, turns)
    def test_active_as_soon_as_one_reading_is_above_its_threshold(self, config, turns):
        for _, now, lag, queue in after(config, turns):
            if any(each is not None and each > 1 for each in shares_of(lag, queue, config)):
                assert now.is_active
                assert now.slow_down_factor == 0.0

    @given(configs, turns)
    def test_activated_by_nothing_else(self, config, turns):
        for before, now, lag, queue in after(config, turns):
            if now.is_active and not before.is_active:
                assert any(each is not None and each > 1 for each in shares_of(lag, queue, config))

    @given(configs, turns)
    def test_released_only_when_both_are_known_and_below_the_release(self, config, turns):
        release = Fraction(str(config.release_ratio))
        for before, now, lag, queue in after(config, turns):
            below = all(
                each is not None and each < release for each in shares_of(lag, queue, config)
            )
            if before.is_active:
                assert now.is_active == (not below)
            if below:
                assert now.slow_down_factor == 1.0

    @given(configs, turns)
    def test_factor_does_not_rise_while_active_and_unknown(self, config, turns):
        for before, now, lag, queue in after(config, turns):
            if now.is_active and (lag is None or queue is None):
                assert now.slow_down_factor <= before.slow_down_factor

    @given(configs, turns)
    def test_unknown_readings_change_nothing(self, config, turns):
        before = [NO_PRESSURE, *(now for _, now, _, _ in after(config, turns))][-1]
        now = next_pressure(before, None, -1, config)
        same = ("is_active", "early_warning", "slow_down_factor", "ratio", "lag", "queue_rows")
        assert [getattr(now, each) for each in same] == [getattr(before, each) for each in same]

    @given(configs, st.lists(st.integers(0, 10_000), min_size=1, max_size=30))
    def test_a_swing_between_the_limits_never_switches(self, config, lags):
        """From 0.7 to 1 the state is what it was, however often the lag turns there."""
        release = Fraction(str(config.release_ratio))
        between = [lag for lag in lags if release <= Fraction(lag, config.lag_threshold) <= 1]
        for start in (0, config.lag_threshold + 1):
            states = [now.is_active for _, now, _, _ in after(config, [(start, 0)])]
            states += [
                now.is_active
                for _, now, _, _ in after(config, [(start, 0), *((lag, 0) for lag in between)])
            ]
            assert len(set(states)) == 1

    def test_what_was_never_known_is_not_a_pressure(self):
        now = next_pressure(NO_PRESSURE, None, None, BackpressureConfig())
        assert now == NO_PRESSURE
        assert now.ratio is None


class TestFactor:
    @pytest.mark.parametrize(
        ("lag", "factor"),
        [(0, 1.0), (3_500, 1.0), (3_600, 0.9), (4_000, 0.6), (4_500, 0.3), (5_000, 0.0)],
    )
    def test_factor_has_no_dust_of_floats(self, lag, factor):
        assert repr(slow_down_factor(Fraction(lag, 5_000), BackpressureConfig())) == repr(factor)

    def test_factor_is_1_up_to_the_release_also_for_a_step_that_does_not_divide_it(self):
        config = BackpressureConfig(slow_down_factor_step=0.3)
        factors = [slow_down_factor(Fraction(lag, 5_000), config) for lag in (3_500, 3_501)]
        assert factors == [1.0, 0.9]

    @given(configs, st.integers(0, 10_000))
    def test_factor_is_the_line_rounded_down_to_a_step(self, config, lag):
        ratio = Fraction(lag, 5_000)
        release, step = (
            Fraction(str(config.release_ratio)),
            Fraction(str(config.slow_down_factor_step)),
        )
        line = min(Fraction(1), max(Fraction(0), (1 - ratio) / (1 - release)))
        factor = slow_down_factor(ratio, config)
        exact = Fraction(str(factor))
        if factor < 1:
            assert exact <= line < exact + step
            assert (exact / step).denominator == 1
        else:
            assert line == 1

    @given(configs, st.integers(0, 9_999), st.integers(0, 9_999))
    def test_factor_never_rises_with_the_pressure(self, config, lower, higher):
        lower, higher = sorted((lower, higher))
        factors = [slow_down_factor(Fraction(each, 5_000), config) for each in (lower, higher)]
        assert factors[0] >= factors[1]


class TestExactLimits:
    @given(st.integers(1, 10**15), st.sampled_from([0.07, 0.29, 0.57, 0.58, 0.7, 0.8]))
    def test_limits_are_exact_for_any_threshold(self, hundredth, ratio):
        """Floats would put some multiples of 0.7 below it, and some above."""
        config = BackpressureConfig(
            lag_threshold=100 * hundredth, release_ratio=ratio, early_warning_ratio=ratio
        )
        limit = round(100 * ratio) * hundredth
        high = next_pressure(NO_PRESSURE, config.lag_threshold + 1, 0, config)
        assert next_pressure(high, limit, 0, config).is_active
        assert not next_pressure(high, limit - 1, 0, config).is_active
        assert not next_pressure(NO_PRESSURE, limit, 0, config).early_warning
        assert next_pressure(NO_PRESSURE, limit + 1, 0, config).early_warning

    @given(configs, turns)
    def test_reason_is_there_when_something_slows_down_or_warns(self, config, turns):
        for _, now, _, _ in after(config, turns):
            has_reason = bool(reason_of(now, config, 0.5))
            if now.is_active or (now.early_warning and now.is_lag_known and now.is_queue_known):
                assert has_reason
            if not (now.is_active or now.early_warning):
                assert not has_reason


@pytest.mark.parametrize(
    ("setting", "value", "remedy"),
    [
        ("enabled", 1, "True or False"),
        ("queue_size_threshold", 0, "an int from 1 up"),
        ("queue_size_threshold", 10.0, "an int from 1 up"),
        ("lag_threshold", -1, "an int from 1 up"),
        ("lag_threshold", True, "an int from 1 up"),
        ("slow_down_factor_step", 0, "a number from 0.001 to 1"),
        ("slow_down_factor_step", 0.0009, "a number from 0.001 to 1"),
        ("slow_down_factor_step", 1.1, "a number from 0.001 to 1"),
        ("release_ratio", 0, "a number above 0 and below 1"),
        ("release_ratio", 1, "a number above 0 and below 1"),
        ("release_ratio", "0.7", "a number above 0 and below 1"),
        ("early_warning_ratio", float("nan"), "a number above 0 and up to 1"),
        ("early_warning_ratio", 1.01, "a number above 0 and up to 1"),
        ("check_interval_s", 0.009, "a finite number from 0.01 up"),
        ("check_interval_s", float("inf"), "a finite number from 0.01 up"),
        ("gate", "credits", "'credit', 'signal' or 'both'"),
        ("gate", None, "'credit', 'signal' or 'both'"),
    ],
)
def test_invalid_setting_is_rejected_with_value_and_limit(setting, value, remedy):
    with pytest.raises(ConfigError) as caught:
        BackpressureConfig(**{setting: value})
    assert str(caught.value).startswith(f"backpressure: {setting} is {value!r}; give {remedy}")


def test_settings_by_default():
    config = BackpressureConfig()
    assert (config.enabled, config.queue_size_threshold, config.lag_threshold) == (
        True,
        1_000,
        5_000,
    )
    assert (config.slow_down_factor_step, config.release_ratio) == (0.1, 0.7)
    assert (config.early_warning_ratio, config.check_interval_s, config.gate) == (
        0.8,
        0.5,
        "credit",
    )
