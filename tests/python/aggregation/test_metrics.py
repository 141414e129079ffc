"""Metric types: one class per metric, the same in every process."""

import math
import pickle
import subprocess
import sys
from decimal import Decimal

import pytest

from batchqueue import ConfigError
from batchqueue.aggregation import (
    CountMetrics,
    MaxMetrics,
    MergeBuffer,
    Metrics,
    MinMetrics,
    Ranking,
    SumMetrics,
    metric_type,
)

cloudpickle = pytest.importorskip("pyspark.cloudpickle")
PICKLERS = pytest.mark.parametrize("pickler", [pickle, cloudpickle], ids=["pickle", "cloudpickle"])


class Longest(Metrics):
    """A user's own kind: the longest text."""

    __slots__ = ("text",)
    table = "longest"
    columns = {"text": str}  # noqa: RUF012

    def __init__(self, entity, time_bucket, text):
        super().__init__(entity, time_bucket)
        self.text = text

    def combine(self, other):
        self.text = max(self.text, other.text, key=lambda text: (len(text), text))

    def to_rows(self):
        return [(self.text,)]

    @classmethod
    def from_rows(cls, entity, time_bucket, rows):
        return cls(entity, time_bucket, *rows[0])


def test_same_arguments_give_the_same_class_and_different_ones_another():
    united = metric_type("departures.UA", CountMetrics)
    assert metric_type("departures.UA", CountMetrics) is united
    others = [
        metric_type("departures.AA", CountMetrics),
        metric_type("departures.UA", MaxMetrics),
        metric_type("departures.UA", MaxMetrics, columns={"value": int}),
        metric_type("departures.UA", Ranking, limit=3),
        metric_type("departures.UA", Ranking, limit=4),
    ]
    assert len({united, *others}) == 6
    assert united.name == "departures.UA"
    assert united.table == CountMetrics.table


def test_columns_and_limit_change_only_the_made_class():
    exact = metric_type("distance", SumMetrics, columns={"total": int})
    assert exact.columns == {"total": int, "compensation": float}
    assert SumMetrics.columns["total"] is float
    assert metric_type("worst", Ranking, limit=3).limit == 3
    assert Ranking.limit == 10


@PICKLERS
@pytest.mark.parametrize(
    "made",
    [
        metric_type("a.b", CountMetrics),
        metric_type(
            "a/b", CountMetrics
        ),  # the same qualified name, unless the module keeps them apart
        metric_type("a.b", SumMetrics, columns={"total": int}),
        metric_type("MetricClass", Ranking, limit=3),
    ],
)
def test_metric_type_pickles_to_itself(pickler, made):
    assert pickle.loads(pickler.dumps(made)) is made


@PICKLERS
@pytest.mark.parametrize(
    "item",
    [
        CountMetrics("UA", 60, 3),
        metric_type("a.b", SumMetrics)("UA", 60, 1.5),
        metric_type("worst", Ranking, limit=3)("day", 0, 7, "id", "label"),
    ],
)
def test_metrics_pickle_with_their_type_and_value(pickler, item):
    again = pickle.loads(pickler.dumps(item))
    assert type(again) is type(item)
    assert again == item


@PICKLERS
def test_another_process_rebuilds_the_class_it_would_make_itself(pickler):
    made = metric_type("departures.UA", CountMetrics)
    script = (
        "import pickle, sys\n"
        "from batchqueue.aggregation import CountMetrics, metric_type\n"
        "types, local = pickle.load(sys.stdin.buffer), metric_type('departures.UA', CountMetrics)\n"
        "sys.exit(0 if types == [local] else 'another class')\n"
    )
    sent = pickler.dumps([made])
    done = subprocess.run(
        [sys.executable, "-c", script], input=sent, capture_output=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr.decode()


@PICKLERS
def test_subclass_of_a_made_type_pickles_as_itself(pickler):
    assert pickle.loads(pickler.dumps(Child)) is Child


class Child(metric_type("parent", CountMetrics)):
    __slots__ = ()


def test_users_own_kind_merges_pickles_and_copies():
    buffer = MergeBuffer()
    buffer.accept_all([Longest("e", 0, "ab"), Longest("e", 0, "abc"), Longest("f", 0, "")])
    assert buffer.drain() == [Longest("e", 0, "abc"), Longest("f", 0, "")]
    assert Longest.name == "Longest"
    assert pickle.loads(pickle.dumps(Longest("e", 0, "x"))) == Longest("e", 0, "x")


def test_metrics_compare_by_type_key_and_value_and_have_a_repr():
    metrics = metric_type("a.b", CountMetrics)("UA", 60, 3)
    assert metrics == metric_type("a.b", CountMetrics)("UA", 60, 3)
    assert metrics != metric_type("a.c", CountMetrics)("UA", 60, 3)
    assert metrics != metric_type("a.b", CountMetrics)("UA", 120, 3)
    assert metrics != metric_type("a.b", CountMetrics)("UA", 60, 4)
    assert repr(metrics) == "<a.b UA @60 [{'count': 3}]>"
    with pytest.raises(TypeError, match="unhashable"):
        hash(metrics)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": ""}, "name of a metric is empty"),
        ({"columns": {"sum": int}}, "column 'sum'.*its columns are count"),
        ({"columns": {"count": list}}, "type <class 'list'>.*int, float, str, bool or Dec"),
        ({"limit": 3}, "limit=3 on CountMetrics: only a Ranking"),
        ({"kind": Ranking, "limit": 0}, "limit=0 on Ranking.*at least 1"),
    ],
)
def test_invalid_arguments_are_rejected_with_the_remedy(arguments, message):
    with pytest.raises(ConfigError, match=message):
        metric_type(**{"name": "a", "kind": CountMetrics} | arguments)


@pytest.mark.parametrize("nan", [Decimal("NaN"), math.nan])
@pytest.mark.parametrize("number", [Decimal("1.5"), 2, -1.0])
def test_nan_is_larger_than_any_number_also_where_decimals_are(nan, number):
    for first, second in ((nan, number), (number, nan)):
        largest, least = MaxMetrics("a", 0, first), MinMetrics("a", 0, first)
        largest.combine(MaxMetrics("a", 0, second))
        least.combine(MinMetrics("a", 0, second))
        assert largest.value is nan
        assert least.value is number
