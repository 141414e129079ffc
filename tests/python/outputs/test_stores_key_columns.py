"""Metrics with key columns in each store: their tables, selections by key, and what is refused."""

from datetime import date
from decimal import Decimal

import pytest

from batchqueue import ConfigError
from batchqueue.aggregation import CountMetrics, MeanMetrics, Metrics, metric_type
from batchqueue.outputs import PostgresStore, StoreError

ROUTES = metric_type("routes", CountMetrics, keys={"origin": str, "goal": str})


def write(store, *metrics):
    with store.transaction() as transaction:
        transaction.merge(metrics)


def test_columns_that_differ_in_case_have_separate_tables(store):
    upper = metric_type("upper", CountMetrics, keys={"Origin": str})
    lower = metric_type("lower", CountMetrics, keys={"origin": str})
    write(store, upper(("x",), 0))
    write(store, lower(("y",), 0))
    assert [item.key_values for item in store.read(lower)] == [("y",)]
    assert [metric.metric_type.name for metric in store.metrics()] == ["lower", "upper"]
    with store.transaction() as transaction:
        assert transaction.delete(10, keep=[lower]) == 1
    assert len(store.read(lower)) == 1
    assert store.read(upper) == []


def test_text_is_selected_as_a_whole(store):
    texts = ["a", "a'", "a|b", "a\\", "ä", "A", ""]
    if not isinstance(store, PostgresStore):  # which has no NUL
        texts += ["a\0b", "a\0"]
    write(store, *(ROUTES((text, "x"), 0) for text in texts))
    for text in texts:
        assert [item.key_values[0] for item in store.read(ROUTES, keys={"origin": text})] == [text]
        (found,) = store.read(ROUTES, entities=[(text, "x")], keys={"goal": ["x", "y"]})
        assert found.key_values == (text, "x")
    assert store.read(ROUTES, keys={"origin": texts, "goal": "y"}) == []
    many = [f"text {number}" for number in range(40_000)]
    assert len(store.read(ROUTES, keys={"origin": [*many, *texts]})) == len(texts)


def test_long_names_and_other_types_have_a_table(store):
    sizes = metric_type(
        "sizes",
        MeanMetrics,
        keys={"origin_airport": str, "goal_airport": str},
        columns={"total": Decimal, "compensation": Decimal},
    )
    write(store, sizes(("a", "b"), 0, Decimal("1.5")))
    assert store.read(sizes)[0].total == Decimal("1.5")


def test_two_metrics_share_the_table_of_their_columns(store):
    other = metric_type("other", CountMetrics, keys={"origin": str, "goal": str})
    write(store, ROUTES(("a", "b"), 0), other(("a", "b"), 0, 7))
    assert [item.count for item in store.read(ROUTES)] == [1]
    assert [item.count for item in store.read(other)] == [7]


def test_metric_that_gets_keys_keeps_what_it_had(store):
    plain = metric_type("routes", CountMetrics)
    write(store, plain("a", 0))
    write(store, ROUTES(("a", "b"), 0))
    assert [item.entity for item in store.read(plain)] == ["a"]
    assert [item.entity for item in store.read(ROUTES)] == ["a|b"]


class Old(Metrics):
    """Has a constructor from before there were key columns."""

    table = "old_metrics"
    columns = {"count": int}  # noqa: RUF012

    def __init__(self, entity, time_bucket):
        self.key = (entity, time_bucket)

    def to_rows(self):
        return [(1,)]


@pytest.mark.parametrize(
    ("item", "words"),
    [
        (ROUTES("b c", 0), r"metric routes: the entity 'b c' does not stand for.*give a tuple"),
        (
            metric_type("old", Old, keys={"origin": str})(("x",), 0),
            r"has the key \(\('x',\), 0\).*if its __init__ calls that of Metrics",
        ),
    ],
)
def test_entity_that_stands_for_nothing_is_refused(store, item, words):
    write(store, ROUTES(("a", "b"), 0))
    with pytest.raises(StoreError, match=words), store.transaction() as transaction:
        transaction.save([item])
    assert len(store.read(ROUTES)) == 1


@pytest.mark.parametrize(
    ("selection", "words"),
    [
        ({"keys": {"city": "a"}}, "has 'city', and metric routes has the key columns origin, goal"),
        ({"keys": {"origin": [1]}}, "origin is 1, an int, and the key column is of str"),
        ({"keys": {"origin": date(2024, 3, 10)}}, "origin is .*a date, and the key column is of"),
        ({"keys": ["a"]}, "give a dict from key column to values"),
        ({"entities": ["a"]}, "the entity 'a' does not stand for values of its key columns"),
        ({"entities": [("a",)]}, "has 1 value for 2 key columns"),
    ],
)
def test_selection_that_cannot_be_is_refused(store, selection, words):
    with pytest.raises(ConfigError, match=words):
        store.read(ROUTES, **selection)
    with pytest.raises(ConfigError, match="'origin', and metric plain has no key columns: use ent"):
        store.read(metric_type("plain", CountMetrics), keys={"origin": "a"})
