"""Wrong uses of an `AsyncBatchQueue`: each is refused with the value and the remedy."""

import inspect

import pytest

from batchqueue import AsyncBatchQueue, PartitionSelector, ProduceTimeoutError
from core_support.event_loop import run
from core_support.odd_handlers import Order, async_generator
from core_support.queues import config
from core_support.wrong_uses import assert_parts_in, rejected

PRODUCERS = [
    rejected(
        lambda queue: queue.produce_many(3),
        "an int, which is not iterable",
        "a list",
        "one item to produce",
        error=TypeError,
    ),
    rejected(lambda queue: queue.produce_many(None), "NoneType", "produce", error=TypeError),
    rejected(lambda queue: queue.produce_many(Order()), "Order", "a list", error=TypeError),
    rejected(
        lambda queue: queue.produce_many(async_generator([])),
        "an async_generator, which is not iterable",
        "async for item in items: await queue.produce(item)",
        error=TypeError,
    ),
    rejected(lambda queue: queue.produce(1, 0.5), "0.5 is", "timeout=0.5", error=TypeError),
    rejected(lambda queue: queue.produce_many([1], 5), "5 is", "timeout=5", error=TypeError),
    rejected(lambda queue: queue.submit(1, 0.5), "submit takes one", "=0.5", error=TypeError),
    rejected(lambda queue: queue.submit(1, None), "timeout=None", error=TypeError),
    rejected(lambda queue: queue.submit(), "AsyncBatchQueue.submit()", "item", error=TypeError),
    rejected(
        lambda queue: queue.produce_arrow([1], 0.5, type_column="t"),
        "produce_arrow takes one",
        "timeout=0.5",
        error=TypeError,
    ),
    rejected(
        lambda queue: queue.produce_arrow([1], "t"),
        "AsyncBatchQueue.produce_arrow()",
        "type_column",
        error=TypeError,
    ),
    rejected(lambda queue: queue.sync.produce(1, 0.5), "0.5 is", "timeout=0.5", error=TypeError),
    rejected(lambda queue: queue.sync.produce_many([1], 5), "5 is", "=5", error=TypeError),
    rejected(lambda queue: queue.sync.submit(1, 0.5), "0.5 is", "timeout=0.5", error=TypeError),
]

HANDLERS = [
    rejected(lambda queue: queue.handler(int, size=1), ".handler()", error=TypeError),
    rejected(lambda queue: queue.handler(), "@queue.handler()", "@queue.handler(Order)"),
    rejected(lambda queue: queue.add_handler(list[int], len), "is list[int]", "arguments: list"),
    rejected(lambda queue: queue.add_handler(int), ".add_handler()", error=TypeError),
]

WRONG = PRODUCERS + HANDLERS


async def awaited(call):
    result = call()
    return await result if inspect.isawaitable(result) else result


@pytest.mark.parametrize(("call", "error", "parts"), WRONG)
def test_wrong_use_is_refused_with_value_and_remedy(call, error, parts):
    async def main():
        async with AsyncBatchQueue("queue", config()) as queue:
            queue.add_handler(int, lambda batch: None)
            with pytest.raises(error) as caught:
                await awaited(lambda: call(queue))
            assert_parts_in(str(caught.value), parts)
            assert queue.running, "a refused call changes nothing"
            assert queue.stats().attempts == 0
            assert set(queue.stats().handlers()) == {int}

    run(main)


def items_that_end_in(error, count):
    yield from range(count)
    raise error


@pytest.mark.parametrize("count", [0, 2, 5_000])
def test_error_of_an_iterator_counts_the_accepted_items(count):
    given = LookupError("next page")

    async def main():
        async with AsyncBatchQueue("queue", config()) as queue:
            queue.add_handler(int, lambda batch: None)
            with pytest.raises(LookupError) as caught:
                await queue.produce_many(items_that_end_in(given, count))
            assert caught.value is given
            assert given.accepted == queue.stats().produced == count
            assert_parts_in(given.__notes__[0], (f"enqueued the first {count} items",))

    run(main)


def test_error_that_an_iterator_raises_after_a_wait_counts_the_accepted_items():
    given = LookupError("next page")

    async def main():
        async with AsyncBatchQueue("queue", config(buffer_size=2)) as queue:
            queue.add_handler(int, lambda batch: None)
            with pytest.raises(LookupError):
                await queue.produce_many(items_that_end_in(given, 50))
            assert given.accepted == queue.stats().produced == 50
            assert len(given.__notes__) == 1

    run(main)


def test_count_is_that_of_this_call_though_the_error_is_of_another_queue():
    given = ProduceTimeoutError("another queue stayed full")
    given.accepted = 99

    async def main():
        async with AsyncBatchQueue("queue", config()) as queue:
            queue.add_handler(int, lambda batch: None)
            with pytest.raises(ProduceTimeoutError):
                await queue.produce_many(items_that_end_in(given, 2))
            assert given.accepted == 2

    run(main)


def test_error_of_the_selector_counts_the_accepted_items():
    selector = PartitionSelector.by_key(lambda item: 1 // item)

    async def main():
        async with AsyncBatchQueue("queue", config(selector=selector)) as queue:
            queue.add_handler(int, lambda batch: None)
            with pytest.raises(ZeroDivisionError) as caught:
                await queue.produce_many([3, 2, 1, 0])
            assert caught.value.accepted == 3
            assert_parts_in(caught.value.__notes__[0], ("enqueued the first 3 items",))

    run(main)


def test_type_error_of_an_iterable_is_raised_as_it_is():
    class Broken:
        def __iter__(self):
            raise TypeError("no cursor")

    async def main():
        async with AsyncBatchQueue("queue", config()) as queue:
            with pytest.raises(TypeError, match="no cursor"):
                await queue.produce_many(Broken())

    run(main)
