"""Lag, the report of skew, and the decision which partitions are hot."""

import math
from statistics import median, pstdev

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchqueue import ConfigError
from batchqueue.groups.skew import (
    PartitionReading,
    SkewDetectionConfig,
    SkewDetector,
    partition_lag,
    skew_report,
    skew_warning,
)


def readings(*lags, rate=100.0, owner="a"):
    """Partitions from 0 with these lags, all drained at the same rate."""
    return [
        PartitionReading(partition=partition, lag=lag, rate_per_s=rate, owner=owner)
        for partition, lag in enumerate(lags)
    ]


def hot_after(*turns, **settings):
    """The hot partitions after each of these readings."""
    detector = SkewDetector(SkewDetectionConfig(**settings))
    return [set(detector.update(turn)) for turn in turns]


# Lag


def test_lag_of_one_partition():
    assert partition_lag(latest=1_000, committed=400) == 600


def test_lag_of_many_partitions():
    assert [partition_lag(*pair) for pair in [(10, 4), (20, 20), (7, 0)]] == [6, 0, 7]


def test_missing_commit_counts_as_0():
    assert partition_lag(latest=50, committed=None) == 50


def test_partition_without_data_has_lag_0():
    assert partition_lag(latest=0, committed=None) == 0


def test_trimmed_records_are_not_part_of_the_lag():
    assert partition_lag(latest=100, committed=10, low=60) == 40
    assert partition_lag(latest=100, committed=None, low=60) == 40
    assert partition_lag(latest=100, committed=80, low=60) == 20


def test_negative_lag_is_unknown():
    assert partition_lag(latest=10, committed=11) is None


def test_lag_without_an_end_is_unknown():
    assert partition_lag(latest=None, committed=3) is None


# Report


def test_similar_lags_are_not_skewed():
    report = skew_report(readings(100, 110, 90, 100))
    assert (report.avg_lag, report.max_lag, report.min_lag) == (100.0, 110, 90)
    assert report.skew_ratio == pytest.approx(1.1)
    assert not report.seed_skewed
    assert report.skewed_partitions == ()


def test_three_times_the_average_is_skewed():
    report = skew_report(readings(60, 40, 300, 0))
    assert (report.avg_lag, report.skew_ratio, report.seed_skewed) == (100.0, 3.0, True)
    assert report.skewed_partitions == (2,)


def test_partition_skew_1000_to_100():
    report = skew_report(readings(1_000, 100, 100, 100))
    assert (report.max_lag, report.avg_lag, report.seed_skewed) == (1_000, 325.0, True)
    assert report.skewed_partitions == (0,)


def test_extreme_skew_10000_to_10():
    report = skew_report(readings(10, 10, 10_000, *[10] * 13))
    assert (report.max_lag, report.min_lag, report.seed_skewed) == (10_000, 10, True)
    assert report.skew_ratio == pytest.approx(10_000 / (10_150 / 16))
    assert report.skewed_partitions == (2,)


def test_all_partitions_at_lag_0():
    report = skew_report(readings(0, 0, 0))
    assert (report.avg_lag, report.max_lag, report.min_lag, report.std) == (0.0, 0, 0, 0.0)
    assert (report.skew_ratio, report.seed_skewed) == (0.0, False)


def test_only_one_partition_has_data():
    report = skew_report(readings(0, 0, 8, 0))
    assert (report.skew_ratio, report.seed_skewed, report.skewed_partitions) == (4.0, True, (2,))


def test_exactly_at_the_threshold_is_not_skewed():
    report = skew_report(readings(200, 50, 50, 100))
    assert (report.skew_ratio, report.seed_skewed, report.skewed_partitions) == (2.0, False, ())


@pytest.mark.parametrize(
    ("lags", "ratio"),
    [((70, 70), 1.0), ((250, 50, 50, 50), 2.5), ((0, 0), 0.0), ((5,), 1.0)],
    ids=["ratio_1_0", "ratio_2_5", "ratio_0_when_avg_0", "a_single_partition"],
)
def test_skew_ratio(lags, ratio):
    assert skew_report(readings(*lags)).skew_ratio == ratio


def test_threshold_of_the_report_can_be_set():
    report = skew_report(readings(250, 50, 50, 50), SkewDetectionConfig(skew_threshold=2.5))
    assert (report.skew_threshold, report.seed_skewed) == (2.5, False)


def test_all_partitions_are_in_the_report():
    report = skew_report(readings(3, None, 0))
    assert report.partition_lags == {0: 3, 1: None, 2: 0}


def test_unknown_lag_is_left_out_and_not_0():
    report = skew_report(readings(300, None, 100))
    assert (report.avg_lag, report.max_lag, report.min_lag) == (200.0, 300, 100)
    assert report.std == 100.0


@pytest.mark.parametrize("lags", [(), (None,), (None, None)])
def test_report_without_a_known_lag_has_no_figures(lags):
    report = skew_report(readings(*lags))
    assert [report.avg_lag, report.max_lag, report.min_lag, report.std] == [None] * 4
    assert (report.skew_ratio, report.seed_skewed) == (0.0, False)


@given(st.lists(st.none() | st.integers(0, 10**6), max_size=20))
def test_figures_are_those_of_the_known_lags(lags):
    known = [lag for lag in lags if lag is not None]
    report = skew_report(readings(*lags))
    if known:
        assert report.std == pytest.approx(pstdev(known))
        assert report.min_lag <= report.avg_lag <= report.max_lag
        assert report.seed_skewed == (max(known) * len(known) > 2 * sum(known))


# Decision

HOT = readings(1_000, 10, 10)


def test_hot_after_two_readings_in_a_row():
    assert hot_after(HOT, HOT, HOT) == [set(), {0}, {0}]


def test_two_readings_that_are_not_in_a_row_are_not_hot():
    assert hot_after(HOT, readings(10, 10, 10), HOT) == [set()] * 3


def test_hot_partition_among_two():
    turn = readings(10, 12_000)
    assert skew_report(turn).seed_skewed is False
    assert hot_after(turn, turn)[1] == {1}


def test_one_record_among_four_is_quiet():
    turn = readings(1, 0, 0, 0, rate=0.0)
    assert skew_report(turn).seed_skewed is True
    assert hot_after(turn, turn)[1] == set()


def test_single_partition_is_never_hot():
    turn = readings(50_000)
    assert hot_after(turn, turn)[1] == set()


def test_extreme_skew_is_hot():
    turn = readings(10_000, *[10] * 15)
    assert hot_after(turn, turn)[1] == {0}


def test_several_partitions_are_hot_together():
    turn = readings(5_000, 6_000, 10, 10, 10, 10)
    assert hot_after(turn, turn)[1] == {0, 1}


# Each partition is exactly at one limit and beyond the two others.
@pytest.mark.parametrize(
    ("lag", "others", "rate", "hot"),
    [
        (1_000, 10, 1.0, True),
        (999, 10, 1.0, False),
        (1_001, 500, 1.0, True),
        (1_000, 500, 1.0, False),
        (5_000, 10, 500.0, True),
        (5_000, 10, 500.2, False),
    ],
)
def test_hot_at_each_limit(lag, others, rate, hot):
    turn = readings(lag, others, others, rate=rate)
    assert hot_after(turn, turn)[1] == ({0} if hot else set())


# Hot before, then exactly at 0.7 of one limit, or below it.
@pytest.mark.parametrize(
    ("lag", "others", "rate", "hot"),
    [
        (700, 0, 1.0, True),
        (699, 0, 1.0, False),
        (1_400, 1_000, 1.0, True),
        (1_399, 1_000, 1.0, False),
        (7_000, 10, 1_000.0, True),
        (6_999, 10, 1_000.0, False),
        (0, 0, 1.0, False),
    ],
)
def test_calm_below_seven_tenths_of_any_limit(lag, others, rate, hot):
    turn = readings(lag, others, others, rate=rate)
    assert hot_after(HOT, HOT, turn)[2] == ({0} if hot else set())


def test_partition_that_the_others_have_overtaken_is_calm():
    turn = readings(1_000, 2_000, rate=1.0)
    assert hot_after(HOT[:2], HOT[:2], turn, skew_threshold=1)[2] == set()


def test_calm_partition_becomes_hot_again_after_two_readings():
    calm = readings(100, 10, 10)
    assert hot_after(HOT, HOT, calm, HOT, HOT)[2:] == [set(), set(), {0}]


def test_partition_that_is_not_drained_is_hot():
    turn = readings(1_000, 10, rate=0.0)
    assert turn[0].time_lag_s == math.inf
    assert hot_after(turn, turn)[1] == {0}


UNKNOWN = [
    readings(None, 10, 10),
    readings(1_000, None, None),
]


@pytest.mark.parametrize("unknown", UNKNOWN, ids=["lag", "others"])
def test_unknown_figures_neither_heat_nor_calm_a_partition(unknown):
    assert hot_after(unknown, unknown, unknown)[2] == set()
    assert hot_after(HOT, HOT, unknown, HOT) == [set(), {0}, {0}, {0}]
    assert hot_after(HOT, unknown, HOT, HOT) == [set(), set(), set(), {0}]


def test_records_alone_decide_where_the_seconds_are_not_known():
    turn = readings(1_000, 10, 10, rate=None)
    assert turn[0].time_lag_s is None
    assert hot_after(turn, turn, HOT) == [set(), {0}, {0}]
    for few in (readings(999, 10, 10, rate=None), readings(1_000, 500, 500, rate=None)):
        assert hot_after(few, few)[1] == set()


def test_seconds_that_are_known_count_instead_of_the_rate():
    late, early = (
        [
            PartitionReading(partition=0, lag=1_000, seconds=seconds),
            PartitionReading(partition=1, lag=1, rate_per_s=1.0),
        ]
        for seconds in (10.0, 9.9)
    )
    assert hot_after(late, late)[1] == {0}
    assert hot_after(early, early)[1] == set()


def test_small_lag_is_calm_even_if_the_rate_is_unknown():
    assert hot_after(HOT, HOT, readings(5, 10, 10, rate=None))[2] == set()


def test_unknown_lag_of_another_partition_is_left_out_of_the_median():
    turn = readings(1_500, 700, 700, None, None, None)
    assert hot_after(turn, turn)[1] == {0}
    turn = readings(1_500, 800, 800, None, None, None)
    assert hot_after(turn, turn)[1] == set()


def test_partition_that_is_missing_from_a_reading_is_forgotten():
    assert hot_after(HOT, HOT, HOT[1:], HOT) == [set(), {0}, set(), set()]
    assert hot_after(HOT, HOT[1:], HOT)[2] == set()


def test_disabled_detection_finds_nothing_hot():
    assert hot_after(HOT, HOT, enabled=False)[1] == set()


def test_limits_can_be_set():
    turn = readings(50, 10, 10, rate=25.0)
    assert hot_after(turn, turn, min_records=50, min_seconds=2, skew_threshold=4)[1] == {0}
    assert hot_after(turn, turn, min_records=50, min_seconds=2, skew_threshold=5)[1] == set()


@given(st.lists(st.integers(0, 5_000), min_size=2, max_size=9))
def test_hot_are_those_far_above_the_median_of_the_others(lags):
    turn = readings(*lags, rate=1.0)
    expected = {
        place
        for place, lag in enumerate(lags)
        if lag >= 1_000 and lag > 2 * median(lags[:place] + lags[place + 1 :])
    }
    assert hot_after(turn, turn)[1] == expected


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("enabled", 1),
        ("check_interval_s", 0),
        ("skew_threshold", 0.9),
        ("skew_threshold", math.nan),
        ("min_records", 0),
        ("min_records", True),
        ("min_seconds", 0),
        ("min_seconds", math.inf),
    ],
)
def test_invalid_setting_is_rejected_with_value_and_limit(setting, value):
    with pytest.raises(ConfigError, match=rf"skew: {setting} is {value}; give"):
        SkewDetectionConfig(**{setting: value})


def test_limits_by_default():
    config = SkewDetectionConfig()
    assert (config.enabled, config.check_interval_s, config.skew_threshold) == (True, 10.0, 2.0)
    assert (config.min_records, config.min_seconds) == (1_000, 10.0)


# Warning


def test_warning_names_figures_partition_time_owner_and_remedy():
    turn = readings(12_000, 20, 20, 0, rate=500.0, owner="etl-3")
    assert skew_warning("orders", skew_report(turn), turn[:1]) == (
        "Partition skew detected in orders: max_lag=12000, avg_lag=3010.0, skew_ratio=3.99, "
        "threshold=2.0; partition 0: lag 12000, 24 s, owner etl-3; "
        "add workers, or make the handler faster"
    )


def test_warning_has_the_worst_first_and_at_most_ten():
    turn = readings(*range(1_000, 1_012))
    line = skew_warning("orders", skew_report(turn), turn)
    named = [part.split(":")[0] for part in line.split("; ") if part.startswith("partition ")]
    assert named == [f"partition {number}" for number in range(11, 1, -1)]
    assert "; 2 more; " in line


@pytest.mark.parametrize(
    ("reading", "text"),
    [
        ({"lag": 5, "rate_per_s": 0.0}, "partition 3: lag 5, not drained, no owner"),
        ({"lag": 5, "owner": "b"}, "partition 3: lag 5, unknown time, owner b"),
        ({"lag": None}, "partition 3: lag unknown, unknown time, no owner"),
    ],
)
def test_warning_says_what_is_unknown(reading, text):
    reading = PartitionReading(partition=3, **reading)
    assert f"; {text}; " in skew_warning("orders", skew_report([reading]), [reading])


def test_warning_without_a_known_lag_says_so():
    line = skew_warning("orders", skew_report(readings(None)), readings(None))
    assert "max_lag=unknown, avg_lag=unknown, skew_ratio=0.00" in line
