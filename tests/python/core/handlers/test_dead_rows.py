"""`dead_letter` for rows: what was in their type column goes with them."""

import pyarrow as pa
import pytest

from batchqueue import BatchFailed, BatchQueue, RetryPolicy
from core_support.handlers import Held
from core_support.queues import config
from core_support.waits import WAIT_S, eventually


def rows(tags):
    return pa.record_batch({"tag": tags, "number": list(range(len(tags)))})


def reject(batches):
    raise ValueError


def test_rows_that_failed_go_as_record_batches():
    letters = []

    def store(batches):
        raise BatchFailed(indexes=[1, 2, 5])

    with BatchQueue("rows", config(dead_letter=letters.extend)) as queue:
        queue.add_handler("a", store)
        queue.produce_arrow(rows(["a"] * 6), type_column="tag")
    assert {letter.item_type for letter in letters} == {"a"}
    numbers = [n for letter in letters for n in letter.item.column("number").to_pylist()]
    assert numbers == [1, 2, 5]
    assert (queue.stats().consumed, queue.stats().dead_lettered) == (3, 3)


@pytest.mark.parametrize("by", ["indexes", "items"])
@pytest.mark.parametrize("attempts", [1, 2])
def test_rows_that_came_apart_go_one_by_one(by, attempts):
    """Each row of the second call is a record batch, since others were between them."""
    calls, letters = [], []

    def store(batches):
        calls.append([number for batch in batches for number in batch.column("number").to_pylist()])
        if len(calls) == 1:
            raise BatchFailed(indexes=[1, 3, 5])
        last = len(batches) - 1
        raise BatchFailed(indexes=[0, last]) if by == "indexes" else BatchFailed(batches[::last])

    with BatchQueue("apart", config(dead_letter=letters.extend)) as queue:
        queue.add_handler("a", store, retry=RetryPolicy(attempts=1 + attempts, backoff_ms=1))
        queue.produce_arrow(rows(["a"] * 6), type_column="tag")
    assert calls == [[0, 1, 2, 3, 4, 5], [1, 3, 5], [1, 5]][: 1 + attempts]
    assert [letter.item.column("number").to_pylist() for letter in letters] == [[1], [5]]
    assert (queue.stats().consumed, queue.stats().dead_lettered) == (4, 2)


@pytest.mark.parametrize("by", ["indexes", "items"])
@pytest.mark.parametrize("attempts", [1, 3])
def test_rows_that_were_put_one_by_one_are_handled_once(by, attempts):
    keeper, letters, stored = Held(), [], []

    def store(batches):
        keeper.consume(batches)
        numbers = [batch.column("number")[0].as_py() for batch in batches]
        stored.extend(number for number in numbers if number != 2)
        if 2 in numbers:
            at = numbers.index(2)
            raise BatchFailed(indexes=[at]) if by == "indexes" else BatchFailed([batches[at]])

    retry = RetryPolicy(attempts=attempts, backoff_ms=1)
    with BatchQueue("singles", config(retry=retry, dead_letter=letters.extend)) as queue:
        queue.add_handler("a", store)
        for number in range(5):
            single = pa.record_batch({"tag": ["a"], "number": [number]})
            queue.produce_arrow(single, type_column="tag")
            assert keeper.entered.wait(WAIT_S)
        keeper.released.set()
    assert sorted(stored) == [0, 1, 3, 4]
    assert [letter.item.column("number").to_pylist() for letter in letters] == [[2]]


@pytest.mark.parametrize(("tag", "item_type"), [("a", "a"), (7, "7"), (None, "")])
def test_rows_of_a_consumer_have_their_tag(tag, item_type):
    letters = []
    with BatchQueue("consumer", config(consumer=reject, dead_letter=letters.extend)) as queue:
        kind = pa.int64() if tag == 7 else pa.string()
        queue.produce_arrow(rows(pa.array([tag], kind)), type_column="tag")
    assert [letter.item_type for letter in letters] == [item_type]


def test_rows_whose_tag_has_gone_meanwhile_have_it_still():
    keeper = Held()
    with BatchQueue("gone", config(threads=2, dead_letter=keeper)) as queue:
        queue.add_handler("a", reject)
        queue.produce_arrow(rows(["a"]), type_column="tag")
        assert keeper.entered.wait(WAIT_S)
        queue.produce_arrow(rows(["a"]), type_column="tag")
        eventually(lambda: queue.stats().handlers()["a"].failed == 2)
        queue.remove_handler("a")
        for _ in range(20):
            queue.stats()  # forgets types that have gone
        keeper.released.set()
    assert [letter.item_type for letter in keeper.items] == ["a", "a"]
