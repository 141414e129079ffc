"""`BatchFailed`: the rest of the batch counts as consumed, and only what failed is retried."""

import asyncio
import logging
import pickle

import pyarrow as pa
import pytest

from batchqueue import (
    AsyncBatchQueue,
    BatchFailed,
    BatchQueue,
    BatchQueueConfig,
    ConfigError,
    PartitionSelector,
    RetryPolicy,
    ThreadPolicy,
)
from core_support.handlers import Held
from core_support.queues import try_once_more
from core_support.waits import WAIT_S, eventually

ONE = ThreadPolicy.fixed(1)
TWICE = RetryPolicy(attempts=3, backoff_ms=1)


class Item:
    """Compared by identity, as most objects are."""

    def __init__(self, number):
        self.number = number


class Picky(Held):
    """Fails the numbers in `bad`, each as often as it says."""

    def __init__(self, bad, *, by="items", returns=False, error=None):
        super().__init__()
        self.bad = dict(bad)
        self.by = by
        self.returns = returns
        self.error = error
        self.calls = []

    def consume(self, batch):
        super().consume(batch)
        self.calls.append([item.number for item in batch])
        failed = [at for at, item in enumerate(batch) if self.bad.get(item.number, 0) > 0]
        for at in failed:
            self.bad[batch[at].number] -= 1
        if self.by == "items":
            failure = BatchFailed([batch[at] for at in failed], cause=self.error)
        else:
            failure = BatchFailed(indexes=reversed(failed), cause=self.error)
        if self.returns:
            return failure
        raise failure


def put_six(queue, handler):
    """Puts 0 alone, and 1 to 5 behind it, so that they are one batch."""
    items = [Item(number) for number in range(6)]
    handler.hold(queue, items[0])
    assert queue.produce_many(items[1:]) == 5
    handler.released.set()


def counts(queue):
    stats = queue.stats()
    assert stats.produced == stats.consumed + stats.failed + stats.total_used + stats.abandoned
    return stats.consumed, stats.failed


@pytest.mark.parametrize("by", ["items", "indexes"])
@pytest.mark.parametrize("returns", [False, True])
@pytest.mark.parametrize("retry", [None, TWICE])
def test_what_failed_is_tried_again_and_counts_once(by, returns, retry):
    handler = Picky({2: 1, 4: 9}, by=by, returns=returns)
    with BatchQueue("part", BatchQueueConfig(threads=ONE, retry=retry)) as queue:
        queue.add_handler(Item, handler)
        put_six(queue, handler)
    if retry is None:
        assert handler.calls == [[0], [1, 2, 3, 4, 5]]
        assert counts(queue) == (4, 2)
    else:
        assert handler.calls == [[0], [1, 2, 3, 4, 5], [2, 4], [4]]
        assert counts(queue) == (5, 1)


SELECTORS = {
    "round_robin": PartitionSelector.round_robin(),
    "by_key": PartitionSelector.by_key(lambda item: "all"),
    "custom": PartitionSelector.custom(lambda item, count: 0),
}


@pytest.mark.parametrize("selector", SELECTORS)
@pytest.mark.parametrize("as_consumer", [False, True])
def test_with_every_selector_and_for_consumers(selector, as_consumer):
    handler = Picky({2: 1, 4: 9})
    config = BatchQueueConfig(
        threads=ONE,
        retry=TWICE,
        selector=SELECTORS[selector],
        consumer=handler if as_consumer else None,
    )
    with BatchQueue("part", config) as queue:
        if not as_consumer:
            queue.add_handler(Item, handler)
        put_six(queue, handler)
    assert handler.calls == [[0], [1, 2, 3, 4, 5], [2, 4], [4]]
    assert counts(queue) == (5, 1)


def test_the_counts_add_up_while_a_part_backs_off():
    handler = Picky({3: 1})
    retry = RetryPolicy(attempts=2, backoff_ms=600_000, max_backoff_ms=600_000)
    with BatchQueue("part", BatchQueueConfig(threads=ONE, retry=retry)) as queue:
        queue.add_handler(Item, handler)
        put_six(queue, handler)
        eventually(lambda: queue.stats().consumed == 5, "all but one are consumed")
        assert counts(queue) == (5, 0)
        assert queue.stats().total_used == 1
        try_once_more(queue)
    assert counts(queue) == (6, 0)


def test_a_failure_of_nothing_is_a_success(caplog):
    handler = Picky({})
    with BatchQueue("part", BatchQueueConfig(threads=ONE)) as queue:
        queue.add_handler(Item, handler)
        put_six(queue, handler)
    assert counts(queue) == (6, 0)
    assert "failed" not in caplog.text


def test_retry_on_is_about_the_cause():
    for error, tries in [(ConnectionError("down"), 3), (ValueError("bad"), 1), (None, 1)]:
        handler = Picky({2: 9}, error=error)
        retry = RetryPolicy(attempts=3, backoff_ms=1, retry_on=(ConnectionError,))
        with BatchQueue("part", BatchQueueConfig(threads=ONE, retry=retry)) as queue:
            queue.add_handler(Item, handler)
            put_six(queue, handler)
        assert len(handler.calls) == 1 + tries
        assert counts(queue) == (5, 1)


@pytest.mark.parametrize("retry", [None, TWICE])
@pytest.mark.parametrize("by", ["items", "indexes"])
def test_the_error_handler_gets_what_failed(retry, by):
    reported = []
    config = BatchQueueConfig(
        threads=ONE, retry=retry, error_handler=lambda batch, error: reported.append((batch, error))
    )
    handler = Picky({2: 9, 5: 9}, by=by, error=ConnectionError("down"))
    with BatchQueue("part", config) as queue:
        queue.add_handler(Item, handler)
        put_six(queue, handler)
    ((batch, error),) = reported
    assert [item.number for item in batch] == [2, 5]
    assert isinstance(error, BatchFailed)
    assert isinstance(error.__cause__, ConnectionError)


def test_the_log_says_how_many_failed_and_why(caplog):
    with BatchQueue("part", BatchQueueConfig(threads=ONE)) as queue:
        handler = Picky({2: 9, 5: 9}, error=ConnectionError("the store is down"))
        queue.add_handler(Item, handler)
        put_six(queue, handler)
    assert "queue part: 2 items failed in handler " in caplog.text
    assert "2 of the batch failed: ConnectionError: the store is down" in caplog.text
    assert [record.levelno for record in caplog.records] == [logging.WARNING]


@pytest.mark.parametrize(
    ("fail", "message"),
    [
        (lambda batch: BatchFailed([Item(1)]), "not in the batch"),
        (lambda batch: BatchFailed([batch[0], batch[0]]), "not that often"),
        (lambda batch: BatchFailed(indexes=[5]), "has the index 5; give 0 to 4"),
        (lambda batch: BatchFailed(indexes=[1, 1]), "an index twice"),
        (lambda batch: BatchFailed(), "neither of items and indexes"),
        (lambda batch: BatchFailed([], indexes=[]), "both of items and indexes"),
        (lambda batch: BatchFailed(indexes=[-1]), "indexes has -1"),
        (lambda batch: BatchFailed(indexes=[True]), "indexes has True"),
        (lambda batch: BatchFailed(indexes=["1"]), "indexes has '1'"),
        (lambda batch: batch.clear() or BatchFailed(indexes=[1]), "had 5 items and has 0 now"),
        (lambda batch: BatchFailed([batch.pop()]), "had 5 items and has 4 now"),
        (lambda batch: batch.extend(batch) or BatchFailed(batch), "had 5 items and has 10 now"),
    ],
)
@pytest.mark.parametrize("retry", [None, TWICE])
def test_an_error_that_names_something_else_fails_the_whole_batch(fail, message, retry, caplog):
    class Wrong(Held):
        def consume(self, batch):
            super().consume(batch)
            if len(batch) > 1:
                raise fail(batch)

    handler = Wrong()
    with BatchQueue("part", BatchQueueConfig(threads=ONE, retry=retry)) as queue:
        queue.add_handler(Item, handler)
        put_six(queue, handler)
    assert counts(queue) == (1, 5)
    assert message in caplog.text


def test_the_class_instead_of_an_instance_fails_the_whole_batch(caplog):
    with BatchQueue("part", BatchQueueConfig(threads=ONE)) as queue:
        queue.add_handler(int, lambda batch: BatchFailed)
        queue.produce_many([1, 2])
    assert counts(queue) == (0, 2)
    assert "the handler returned the class BatchFailed; return an instance" in caplog.text


def test_a_cause_that_is_not_an_exception_is_refused():
    with pytest.raises(ConfigError, match="cause is 'full', a str; give an exception"):
        BatchFailed(indexes=[0], cause="full")


def test_an_object_that_is_twice_in_a_batch_may_fail_once_or_twice():
    for failed, wanted in [([7], (5, 1)), ([7, 7], (4, 2))]:
        handler = Held()

        def consume(batch, handler=handler, failed=failed):
            handler.consume(batch)
            if len(batch) > 1:
                raise BatchFailed(failed)

        with BatchQueue("part", BatchQueueConfig(threads=ONE)) as queue:
            queue.add_handler(int, consume)
            handler.hold(queue, 0)
            queue.produce_many([1, 7, 2, 7, 3])
            handler.released.set()
        assert counts(queue) == wanted


def test_a_handler_may_sort_its_list():
    for retry in [None, TWICE]:
        reported = []

        class Sorting(Held):
            def consume(self, batch):
                super().consume(batch)
                batch.sort(reverse=True)
                if 5 in batch:
                    raise BatchFailed(indexes=[0])

            def on_error(self, batch, error, reported=reported):
                reported.append(batch)

        handler = Sorting()
        with BatchQueue("part", BatchQueueConfig(threads=ONE, retry=retry)) as queue:
            queue.add_handler(int, handler)
            handler.hold(queue, 0)
            queue.produce_many([1, 5, 2])
            handler.released.set()
        assert reported == [[5]]
        assert counts(queue) == (3, 1)


@pytest.mark.parametrize("retry", [None, TWICE])
@pytest.mark.parametrize("by", ["items", "indexes"])
def test_a_handler_may_sort_its_record_batches(retry, by):
    rows = pa.RecordBatch.from_pydict({"kind": ["a"] * 10, "number": list(range(10))})
    entered = Held()
    reported, calls = [], []

    def consume(batch):
        entered.consume(batch)
        calls.append([block.column("number").to_pylist() for block in batch])
        if len(calls) != 2:
            return
        batch.sort(key=len, reverse=True)
        # The block with 2 to 7 comes first now.
        raise BatchFailed(batch[:1]) if by == "items" else BatchFailed(indexes=[0, 1])

    config = BatchQueueConfig(
        threads=ONE, retry=retry, error_handler=lambda batch, error: reported.extend(batch)
    )
    with BatchQueue("rows", config) as queue:
        queue.add_handler("a", consume)
        queue.produce_arrow(rows.slice(0, 1), type_column="kind")
        assert entered.entered.wait(WAIT_S)
        for start, end in [(1, 2), (2, 8), (8, 10)]:
            queue.produce_arrow(rows.slice(start, end - start), type_column="kind")
        entered.released.set()
    failed = list(range(2, 8)) if by == "items" else [2, 3]
    if retry is None:
        assert [
            number for block in reported for number in block.column("number").to_pylist()
        ] == failed
    else:
        assert calls[2] == [failed]
    assert queue.stats().consumed == 10 - (len(failed) if retry is None else 0)


class Rows(Held):
    """Fails the rows with some numbers, once."""

    def __init__(self, bad, by):
        super().__init__()
        self.bad, self.by, self.calls = set(bad), by, []

    def consume(self, batch):
        super().consume(batch)
        numbers = [number for block in batch for number in block.column("number").to_pylist()]
        self.calls.append(numbers)
        failed = [row for row, number in enumerate(numbers) if number in self.bad]
        if not failed:
            return
        if self.by == "indexes":
            self.bad = set()
            raise BatchFailed(indexes=failed)
        blocks = [
            block for block in batch if not self.bad.isdisjoint(block.column("number").to_pylist())
        ]
        self.bad = set()
        raise BatchFailed(blocks)


@pytest.mark.parametrize("retry", [None, TWICE])
@pytest.mark.parametrize(
    ("by", "failed"), [("indexes", [3, 4, 5, 9]), ("items", [*range(1, 6), *range(6, 11)])]
)
def test_rows_fail_one_by_one_or_by_record_batch(retry, by, failed):
    reported = []
    rows = pa.RecordBatch.from_pydict({"kind": ["a"] * 16, "number": list(range(16))})
    config = BatchQueueConfig(
        threads=ONE, retry=retry, error_handler=lambda batch, error: reported.extend(batch)
    )
    handler = Rows([3, 4, 5, 9], by)
    with BatchQueue("rows", config) as queue:
        queue.add_handler("a", handler)
        queue.produce_arrow(rows.slice(0, 1), type_column="kind")
        assert handler.entered.wait(WAIT_S)
        for start in (1, 6, 11):
            queue.produce_arrow(rows.slice(start, 5), type_column="kind")
        handler.released.set()
    if retry is None:
        assert counts(queue) == (16 - len(failed), len(failed))
        assert [
            number for block in reported for number in block.column("number").to_pylist()
        ] == failed
    else:
        assert counts(queue) == (16, 0)
        assert handler.calls == [[0], list(range(1, 16)), failed]


@pytest.mark.parametrize("returns", [False, True])
def test_async_handlers_fail_in_part(returns):
    calls = []

    async def consume(batch):
        calls.append(list(batch))
        await asyncio.sleep(0)
        failure = BatchFailed([item for item in batch if item == 2 and len(calls) < 3])
        if returns:
            return failure
        raise failure

    async def produce():
        config = BatchQueueConfig(threads=ONE, retry=TWICE, min_idle_ms=50)
        async with AsyncBatchQueue("async", config) as queue:
            queue.add_handler(int, consume)
            await queue.produce_many([1, 2, 3])
        return queue

    queue = asyncio.run(produce())
    assert calls == [[1, 2, 3], [2], [2]]
    assert counts(queue) == (3, 0)


def test_the_error_pickles_with_all_it_names():
    failure = BatchFailed(indexes=iter([3, 1]), cause=ValueError("bad"))
    copy = pickle.loads(pickle.dumps(failure))
    assert (copy.items, copy.indexes, str(copy)) == (None, [3, 1], str(failure))
    assert isinstance(copy.__cause__, ValueError)
    with pytest.raises(ConfigError, match="both of items and indexes"):
        BatchFailed([1], indexes=[0])
