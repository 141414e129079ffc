"""Entities of several key columns: as a tuple, as a text, and as the class of their metric."""

import pickle
from datetime import date, datetime
from enum import Enum
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark import cloudpickle

from batchqueue import ConfigError
from batchqueue.aggregation import (
    CountMetrics,
    DistinctMetrics,
    MaxMetrics,
    MeanMetrics,
    MergeBuffer,
    Metrics,
    QuantileMetrics,
    Ranking,
    SumMetrics,
    metric_type,
)
from batchqueue.aggregation.metrics import entity_text, key_values

COLUMNS = {"origin": str, "stops": int, "day": date, "late": bool}
ROUTES = metric_type("routes", CountMetrics, keys=COLUMNS)

texts = st.one_of(st.text(), st.text(alphabet="|\\a"))
tuples = st.tuples(texts, st.integers(-(2**63), 2**63 - 1), st.dates(), st.booleans(), texts)
FIVE = {**COLUMNS, "goal": str}


@given(tuples)
def test_text_stands_for_the_values(values: tuple[Any, ...]) -> None:
    found = key_values(FIVE, entity_text(FIVE, values))
    assert found == values
    assert list(map(type, found)) == list(map(type, values))


@given(tuples, tuples)
def test_different_values_have_different_texts(
    values: tuple[Any, ...], others: tuple[Any, ...]
) -> None:
    is_same = entity_text(FIVE, values) == entity_text(FIVE, others)
    assert is_same is (values == others)


@given(st.lists(texts, min_size=1, max_size=4))
def test_text_of_texts_only(values: list[str]) -> None:
    columns = {f"key_{number}": str for number in range(len(values))}
    assert key_values(columns, entity_text(columns, values)) == tuple(values)


def test_text_is_readable() -> None:
    route = ROUTES(("JFK", 2, date(2024, 3, 10), False), 3_600)
    assert route.key == ("JFK|2|2024-03-10|false", 3_600)
    assert route.entity == ROUTES.entity_of(("JFK", 2, date(2024, 3, 10), False))
    assert route.key_values == ("JFK", 2, date(2024, 3, 10), False)
    assert ROUTES(route.entity, 3_600) == route
    odd = metric_type("odd", CountMetrics, keys={"a": str, "b": str})(("x|y", "\\"), 0)
    assert (odd.entity, odd.key_values) == ("x\\|y|\\\\", ("x|y", "\\"))


@pytest.mark.parametrize(
    "text",
    [
        "JFK|2|2024-03-10",
        "JFK|2|2024-03-10|false|more",
        "JFK|two|2024-03-10|false",
        "JFK|9223372036854775808|2024-03-10|false",
        "JFK|02|2024-03-10|false",
        "JFK|1_0|2024-03-10|false",
        "JFK|2|20240310|false",
        "JFK|2|2024-02-30|false",
        "JFK|2|2024-03-10|False",
        "JFK\\|2|2024-03-10|false",
        "J\\FK|2|2024-03-10|false",
        "",
    ],
)
def test_text_that_stands_for_nothing_is_named(text: str) -> None:
    with pytest.raises(ConfigError, match=r"metric routes: .* does not stand for.*give a tuple"):
        ROUTES.entity_of(text)
    with pytest.raises(ValueError, match=r"does not stand for.*origin str, stops int"):
        _ = ROUTES(text, 0).key_values


@pytest.mark.parametrize(
    ("entity", "words"),
    [
        (("JFK", 2), r"metric routes: .* has 2 values for 4 key columns \(origin, stops, day"),
        (("JFK", 2, date(2024, 3, 10), None), "late is None: leave such rows out, or choose"),
        (("JFK", 2, date(2024, 3, 10), 1), "late is 1, an int, and the key column is of bool"),
        (("JFK", True, date(2024, 3, 10), True), "stops is True, a bool, .* of int"),
        (("JFK", 2.0, date(2024, 3, 10), True), "stops is 2.0, a float, .* of int"),
        (("JFK", 2**63, date(2024, 3, 10), True), "has more than 64 bits"),
        ((7, 2, date(2024, 3, 10), True), "origin is 7, an int, .* of str"),
        (("JFK", 2, datetime(2024, 3, 10), True), "day is .*, a datetime, .* of date"),
    ],
)
def test_values_of_another_type_are_named(entity: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        ROUTES(entity, 0)


class Color(str, Enum):  # noqa: UP042 - of a StrEnum, str() is the text
    RED = "red"


def test_scalars_of_other_libraries_are_plain_values() -> None:
    entity: Any = (Color.RED, np.int64(2), np.datetime64("2024-03-10"), np.bool_(True))
    assert ROUTES(entity, 0).key_values == ("red", 2, date(2024, 3, 10), True)
    assert type(ROUTES(entity, 0).key_values[0]) is str
    with pytest.raises(ConfigError, match=r"day is Timestamp.*give its date\(\)"):
        ROUTES(("JFK", 2, pd.Timestamp("2024-03-10"), True), 0)


@pytest.mark.parametrize("entity", [5, None, ["JFK", 2, date(2024, 3, 10), True]])
def test_entity_that_is_not_a_tuple_is_refused(entity: Any) -> None:
    with pytest.raises(ConfigError, match=r"and not a tuple; give a tuple"):
        ROUTES(entity, 0)


def test_metric_without_key_columns_has_one_text() -> None:
    assert (CountMetrics.key_columns, CountMetrics("a|b", 0).key_values) == ({}, ())
    with pytest.raises(ConfigError, match=r"2 values for 0 key columns \(none\).*keys="):
        CountMetrics(("a", "b"), 0)


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (CountMetrics, (3,)),
        (SumMetrics, (1.5,)),
        (MeanMetrics, (1.5,)),
        (MaxMetrics, (1.5,)),
        (QuantileMetrics, (1.5,)),
        (DistinctMetrics, ("user",)),
        (Ranking, (1.5, "id")),
    ],
)
def test_each_kind_takes_tuples(kind: type[Metrics], values: tuple[Any, ...]) -> None:
    by = metric_type(f"by.{kind.name}", kind, keys={"origin": str, "stops": int})
    make: Any = by
    buffer = MergeBuffer()
    buffer.accept_all([make(("JFK", 2), 0, *values), make(("JFK", 2), 0, *values)])
    buffer.accept_all([make(("JFK", 3), 0, *values)])
    merged = buffer.drain()
    assert {item.key_values for item in merged} == {("JFK", 2), ("JFK", 3)}
    for item in merged:
        assert type(item) is by
        assert item.copy() == item
        sent = pickle.loads(pickle.dumps(item))
        assert (type(sent), sent.key_values, sent) == (by, item.key_values, item)


def test_kind_of_your_own_may_declare_its_key_columns() -> None:
    class Visits(CountMetrics):
        table = "visits"
        key_columns = {"page": str, "day": date}  # noqa: RUF012

    assert Visits(("/", date(2024, 3, 10)), 0).key_values == ("/", date(2024, 3, 10))


def test_kind_of_your_own_with_invalid_key_columns_is_refused() -> None:
    def declare(**members: Any) -> None:
        type("Visits", (CountMetrics,), members)

    with pytest.raises(ConfigError, match=r"'page' of metric 'Visits' is of type <class 'float'>"):
        declare(table="visits", key_columns={"page": float})
    with pytest.raises(ConfigError, match="'Visits' has two columns 'count'"):
        declare(table="visits", key_columns={"count": int})
    with pytest.raises(ConfigError, match=r"kind Visits has key columns and the table of another"):
        declare(key_columns={"page": str})


def test_class_is_that_of_its_arguments() -> None:
    assert metric_type("routes", CountMetrics, keys=dict(COLUMNS)) is ROUTES
    turned = dict(reversed(COLUMNS.items()))
    assert metric_type("routes", CountMetrics, keys=turned) is not ROUTES
    assert metric_type("routes", CountMetrics) is not ROUTES
    for codec in (pickle, cloudpickle):
        assert codec.loads(codec.dumps(ROUTES)) is ROUTES


def test_table_is_that_of_the_kind_and_the_key_columns() -> None:
    def table(**keys: type) -> str:
        return metric_type("by", SumMetrics, keys=keys).table

    assert table(origin=str, goal=str) == "sum_metrics_by_origin_goal"
    assert table(origin=str, stops=int, day=date) == "sum_metrics_by_origin_stops_int_day_date"
    assert table(origin_airport=str).startswith("sum_metrics_by_origin_airport_")
    long = {f"a_column_with_a_long_name_{number}": str for number in range(8)}
    turned = dict(reversed(long.items()))
    assert table(**long).startswith("sum_metrics_by_")
    assert len(table(**long)) == 45
    assert table(**long) != table(**turned)


def test_different_key_columns_have_different_tables() -> None:
    """Also for SQLite, to which the case of letters is the same."""
    different: list[dict[str, type]] = [
        {"a": str, "b": str},
        {"b": str, "a": str},
        {"a_b": str},
        {"day": date},
        {"day": str, "date": str},
        {"day_date": str},
        {"origin": str},
        {"Origin": str},
        {"ORIGIN": str},
        {"x" * 60: str},
        {"x" * 61: str},
    ]
    tables = [metric_type("by", CountMetrics, keys=keys).table.lower() for keys in different]
    assert len(set(tables)) == len(different)
    by_day = metric_type("by", CountMetrics, keys={"day": date})
    assert metric_type("by", by_day, keys={"a": str}).table == "count_metrics_by_a"


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({}, "give a dict from column to type"),
        (["origin"], "give a dict from column to type"),
        ({"origin": float}, "'origin' of metric 'x' is of type <class 'float'>; give a name, and"),
        ({"origin": []}, r"'origin' of metric 'x' is of type \[\]"),
        ({7: str}, "key column 7 of metric 'x'"),
        ({"Count": str}, "metric 'x' has two columns 'Count'"),
        ({"origin": str, "Origin": str}, "metric 'x' has two columns 'Origin'"),
    ],
)
def test_key_columns_that_cannot_be_are_refused(keys: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        metric_type("x", CountMetrics, keys=keys)
