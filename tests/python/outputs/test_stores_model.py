"""Random histories of a store against a plain dict: every kind of change, commits and rollbacks."""

import copy
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from batchqueue.aggregation import CountMetrics, MaxMetrics, Ranking, SumMetrics, metric_type
from batchqueue.outputs.testing import row_of

COUNT = metric_type("model.count", CountMetrics)
OTHER_COUNT = metric_type("model.other_count", CountMetrics)
TOTAL = metric_type("model.total", SumMetrics, columns={"total": int})
HIGHEST = metric_type("model.highest", MaxMetrics)
WORST = metric_type("model.worst", Ranking, limit=2)
TYPES = (COUNT, OTHER_COUNT, TOTAL, HIGHEST, WORST)

NUMBERS = st.integers(-(2**40), 2**40)
KEYS = st.tuples(st.sampled_from(["a", "b", "ä"]), st.sampled_from([-1, 0, 86_400]))
ITEMS = st.one_of(
    st.builds(
        lambda kind, key, value: kind(*key, value),
        st.sampled_from([COUNT, OTHER_COUNT, TOTAL]),
        KEYS,
        NUMBERS,
    ),
    st.builds(
        lambda key, value: HIGHEST(*key, value), KEYS, st.none() | st.floats(allow_nan=False)
    ),
    st.builds(lambda key, value: WORST(*key, value, str(value)), KEYS, st.none() | NUMBERS),
)
STEPS = st.one_of(
    st.tuples(st.just("merge"), st.lists(ITEMS, max_size=8)),
    st.tuples(st.just("merge_rows"), st.lists(ITEMS, max_size=8)),
    st.tuples(st.just("save"), st.lists(ITEMS, max_size=8)),
    st.tuples(st.just("record"), st.tuples(st.sampled_from(["p", "q"]), st.booleans())),
    st.tuples(
        st.just("describe"), st.dictionaries(st.text("xyz", max_size=2), NUMBERS, max_size=2)
    ),
    st.tuples(st.just("clear"), st.none()),
    st.tuples(
        st.just("delete"),
        st.tuples(
            st.sampled_from([-1, 0, 1, 43_200, 86_400, 86_401]),
            st.sampled_from([-(2**63), -1, 0, 1, 86_400]),
        ),
    ),
)
TRANSACTIONS = st.lists(
    st.tuples(st.sampled_from(["one", "two"]), st.lists(STEPS, max_size=5), st.booleans()),
    max_size=8,
)
KEPT = 3


class Model:
    """The expected content of one sink."""

    def __init__(self) -> None:
        self.clear(None)

    def clear(self, _: None) -> None:
        self.partials: dict[tuple[type, tuple[str, int]], Any] = {}
        self.marks: dict[str, int] = {}
        self.summaries: list[tuple[str, int, dict[str, Any]]] = []
        self.description: dict[str, Any] | None = None

    def delete(self, before: int, since: int) -> int:
        old = {key: item for key, item in self.partials.items() if since <= key[1][1] < before}
        for key in old:
            del self.partials[key]
        return sum(len(item.to_rows()) for item in old.values())

    def save(self, items: list[Any]) -> None:
        for item in items:
            self.partials[type(item), item.key] = item.copy()

    def merge(self, items: list[Any]) -> None:
        for item in items:
            stored = self.partials.get((type(item), item.key))
            if stored is None or not stored.to_rows():
                self.partials[type(item), item.key] = item.copy()
            else:
                stored.combine(item)

    def record(self, query_id: str, marked: bool) -> int:
        """Records the epoch after the mark, and returns its number."""
        batch_id = self.marks.get(query_id, -1) + 1 if marked else 0
        self.marks[query_id if marked else "unmarked"] = batch_id
        self.summaries = [*self.summaries, (query_id, batch_id, {"n": batch_id})][-KEPT:]
        return batch_id

    def describe(self, description: dict[str, Any]) -> None:
        self.description = description

    def stored(self, kind: type) -> list[Any]:
        items = [item for (of, _), item in self.partials.items() if of is kind and item.to_rows()]
        return sorted(items, key=lambda item: item.key)


def apply(transaction: Any, model: Model, step: tuple[str, Any]) -> None:
    name, argument = step
    if name == "record":
        query_id, marked = argument
        batch_id = model.record(query_id, marked)
        transaction.record(query_id, batch_id, {"n": batch_id}, marked=marked)
    elif name == "delete":
        before, since = argument
        assert transaction.delete(before, since=since) == model.delete(before, since)
    elif name == "merge_rows":
        for kind in TYPES:
            items = [item for item in argument if type(item) is kind and not kind.multi_row]
            transaction.merge_rows(kind, list(map(row_of, items)))
            model.merge(items)
    elif name == "clear":
        model.clear(None)
        transaction.clear()
    else:
        getattr(model, name)(argument)
        getattr(transaction, name)(argument)


def compare(transaction: Any, model: Model) -> None:
    """Compares what the transaction sees with the model."""
    for kind in TYPES:
        keys = [(entity, bucket) for entity in ("a", "b", "ä") for bucket in (-1, 0, 86_400)]
        assert sorted(transaction.load(kind, keys), key=lambda item: item.key) == model.stored(kind)
    assert transaction.known_queries() == set(model.marks)
    assert {query: transaction.last_batch(query) for query in model.marks} == model.marks
    assert transaction.summaries() == model.summaries
    assert transaction.description() == model.description


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(TRANSACTIONS)
def test_store_has_what_a_dict_has_after_any_history(open_store, history):
    store = open_store(kept_summaries=KEPT)
    models = {sink: Model() for sink in ("one", "two")}
    for sink in models:
        with store.transaction(sink) as transaction:
            transaction.clear()
    for sink, steps, commits in history:
        changed = copy.deepcopy(models[sink])
        try:
            with store.transaction(sink) as transaction:
                for step in steps:
                    apply(transaction, changed, step)
                compare(transaction, changed)
                if not commits:
                    raise InterruptedError
            models[sink] = changed
        except InterruptedError:
            assert not commits
    for sink, model in models.items():
        for kind in TYPES:
            assert store.read(kind, sink) == model.stored(kind)
        assert store.summaries(sink) == model.summaries
