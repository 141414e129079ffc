"""Partials reach the commit unchanged: no loss, no duplication, exact values."""

import math
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchqueue.aggregation import (
    CountMetrics,
    MaxMetrics,
    MeanMetrics,
    Metrics,
    Ranking,
    SumMetrics,
    metric_type,
)
from batchqueue.spark import SinkError
from batchqueue.spark.task.message import decode, encode

COUNT = metric_type("count", CountMetrics)
OTHER_COUNT = metric_type("other count", CountMetrics)
SUM = metric_type("sum", SumMetrics, columns={"total": int})
MEAN = metric_type("mean", MeanMetrics)
MAX = metric_type("max", MaxMetrics)
RANKING = metric_type("ranking", Ranking, limit=3)
METRICS = (COUNT, OTHER_COUNT, SUM, MEAN, MAX, RANKING)

keys = (st.text(), st.integers(-(2**40), 2**40))
int64 = st.integers(-(2**63), 2**63 - 1)
numbers = st.none() | st.floats(allow_nan=False)


def ranking(entity: str, bucket: int, scores: list[float]) -> Ranking:
    merged = RANKING(entity, bucket, None, "")
    for number, score in enumerate(scores):
        merged.combine(RANKING(entity, bucket, score, f"id {number}", "label"))
    return merged


partials = st.one_of(
    st.builds(COUNT, *keys, int64),
    st.builds(OTHER_COUNT, *keys, int64),
    st.builds(SUM, *keys, st.none() | int64),
    st.builds(MEAN, *keys, numbers, st.integers(0, 2**40)),
    st.builds(MAX, *keys, numbers),
    st.builds(ranking, *keys, st.lists(st.floats(allow_nan=False), max_size=5)),
)


def in_order(items: list[Metrics]) -> list[Metrics]:
    """Types of one layout share a stream, so only the order within a layout is kept."""
    return sorted(items, key=lambda item: list(item.columns))


@settings(deadline=None)  # on a busy machine the first example includes Arrow's start
@given(st.lists(partials))
def test_decoded_partials_are_those_that_were_encoded(sent: list[Metrics]) -> None:
    received = list(decode(encode(sent, METRICS), METRICS))
    assert in_order(received) == in_order(sent)
    assert [type(item) for item in in_order(received)] == [type(item) for item in in_order(sent)]


def test_nan_arrives_as_nan() -> None:
    (received,) = decode(encode([MAX("a", 0, math.nan)], METRICS), METRICS)
    assert isinstance(received, MAX)
    assert math.isnan(received.value)


def test_metrics_of_one_layout_share_a_stream() -> None:
    types = [metric_type(f"count {number}", CountMetrics) for number in range(100)]
    streams = encode([kind("entity", 0) for kind in types], types)
    assert len(streams) == 1
    assert len(streams[0]) < 4_000
    assert [type(item) for item in decode(streams, types)] == types


@pytest.mark.parametrize(
    ("partial", "declared"),
    [(COUNT("a", 0, 2**63), "count int"), (SUM("a", 0, 0.5), "total int, compensation")],
)
def test_value_that_does_not_fit_its_column_is_rejected(partial: Metrics, declared: str) -> None:
    with pytest.raises(
        SinkError, match=rf"does not fit its column \({declared}.*in one of {partial.name}"
    ):
        encode([partial], METRICS)


@pytest.mark.parametrize(
    ("entity", "time_bucket", "reason"),
    [
        ("a", 3600.7, "3600.7"),
        ("a", None, "time_bucket is None"),
        (None, 0, "entity is None"),
        ("a", "9", "'9' is not a number"),
        ("a", datetime(2026, 1, 31, tzinfo=UTC), r"datetime\(2026, .* is not a number"),
        ("a", False, "False is not a number"),
    ],
)
def test_key_that_the_store_cannot_keep_is_rejected(
    entity: Any, time_bucket: Any, reason: str
) -> None:
    with pytest.raises(SinkError, match=reason):
        encode([COUNT(entity, time_bucket)], METRICS)


def test_text_in_an_int_column_is_rejected() -> None:
    metric = COUNT("a", 0)
    metric.count = "9"  # type: ignore[assignment]  # not checked, as it is when a metric is made
    with pytest.raises(SinkError, match="'9' is not a number"):
        encode([metric], METRICS)
