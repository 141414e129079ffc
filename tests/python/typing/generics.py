"""What the type checkers see of items. Nothing here runs.

Each `type: ignore` is an error that must be found: without it, the comment itself is one.
"""

# pyright: reportUnnecessaryTypeIgnoreComment=true

import asyncio
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, assert_type

from batchqueue import (
    AsyncBatchQueue,
    BatchQueue,
    BatchQueueConfig,
    BatchQueueManager,
    HandlerConsumer,
    SupportsConsume,
    ThreadPolicy,
    __version__,
)


@dataclass
class Order:
    cents: int


@dataclass
class Payment:
    cents: int


class Orders(HandlerConsumer[Order]):
    """A handler by inheritance."""

    def consume(self, batch: list[Order]) -> None: ...


class Payments:
    """A handler by its shape."""

    def consume(self, batch: list[Payment], /) -> int:
        return len(batch)


def take_orders(batch: list[Order]) -> None: ...


def take_payments(batch: list[Payment]) -> None: ...


async def await_orders(batch: list[Order]) -> None: ...


async def await_payments(batch: list[Payment]) -> None: ...


def take_anything(batch: list[Any]) -> None: ...


THREADS = ThreadPolicy.fixed(1)


def queue_takes_its_items(queue: BatchQueue[Order], both: BatchQueue[Order | Payment]) -> None:
    assert_type(queue.produce(Order(1)), bool)
    assert_type(queue.produce_many([Order(1)], timeout=1), int)
    both.produce(Payment(1))
    both.produce_many([Order(1), Payment(1)])
    queue.produce(Payment(1))  # type: ignore[arg-type]
    queue.produce_many([Payment(1)])  # type: ignore[list-item]
    assert_type(queue.submit(Order(1), timeout=1), Future[Any])
    queue.submit(Payment(1))  # type: ignore[arg-type]
    assert_type(queue.config, BatchQueueConfig[Order])


async def queue_on_a_loop_takes_its_items(queue: AsyncBatchQueue[Order]) -> None:
    assert_type(await queue.produce(Order(1)), bool)
    await queue.produce(Payment(1))  # type: ignore[arg-type]
    await queue.produce_many([Payment(1)])  # type: ignore[list-item]
    assert_type(queue.submit(Order(1)), asyncio.Future[Any])
    await queue.submit(Payment(1))  # type: ignore[arg-type]
    assert_type(queue.sync.produce(Order(1)), bool)
    assert_type(queue.sync.produce_many([Order(1)]), int)
    assert_type(queue.sync.submit(Order(1)), Future[Any])
    queue.sync.produce(Payment(1))  # type: ignore[arg-type]


def config_names_the_items(config: BatchQueueConfig[Order]) -> None:
    assert_type(BatchQueue("orders", config), BatchQueue[Order])
    assert_type(AsyncBatchQueue("orders", config), AsyncBatchQueue[Order])
    assert_type(BatchQueueManager.create("orders", config), BatchQueue[Order])
    assert_type(BatchQueueManager.create_if_absent("orders", config), BatchQueue[Order])
    payments: BatchQueue[Payment] = BatchQueue("payments", config)  # type: ignore[arg-type]
    payments.shutdown()


def queue_needs_no_config() -> None:
    assert_type(BatchQueue("anything"), BatchQueue[Any])
    assert_type(AsyncBatchQueue("anything"), AsyncBatchQueue[Any])
    anything = BatchQueue("anything")
    anything.produce(Order(1))
    orders: BatchQueue[Order] = BatchQueue("orders")
    orders.produce(Payment(1))  # type: ignore[arg-type]
    assert_type(BatchQueue[Order]("orders"), BatchQueue[Order])
    assert_type(AsyncBatchQueue[Order]("orders"), AsyncBatchQueue[Order])
    assert_type(__version__, str)


def consumer_and_an_error_handler_take_the_items() -> None:
    def on_error(batch: list[Order], error: BaseException) -> None: ...

    BatchQueueConfig[Order](threads=THREADS, consumer=Orders(), error_handler=on_error)
    BatchQueueConfig[Order](threads=THREADS, consumer=take_orders)
    BatchQueueConfig[Order](threads=THREADS, consumer_factory=Orders)
    BatchQueueConfig[Order](threads=THREADS, consumer=take_payments)  # type: ignore[arg-type]
    BatchQueueConfig[Order](threads=THREADS, consumer=Payments())  # type: ignore[arg-type]
    BatchQueueConfig[Order](threads=THREADS, consumer_factory=Payments)  # type: ignore[arg-type]
    BatchQueueConfig[Payment](threads=THREADS, error_handler=on_error)  # type: ignore[arg-type]


def handler_takes_the_items_of_its_type(queue: BatchQueue[Order | Payment]) -> None:
    queue.add_handler(Order, Orders())
    queue.add_handler(Order, take_orders)
    queue.add_handler(Order, take_anything, weight=0.1)
    queue.add_handler(Payment, Payments())
    queue.add_handler("rows", take_anything)
    queue.add_handler(Order, take_payments)  # type: ignore[arg-type]
    queue.add_handler(Order, Payments())  # type: ignore[arg-type]
    queue.add_handler(Payment, Orders())  # type: ignore[arg-type]
    queue.add_handler(Order, 7)  # type: ignore[arg-type]


def factory_makes_handlers_of_its_type(queue: BatchQueue[Order | Payment]) -> None:
    queue.add_handler_factory(Order, Orders, partitions=2)
    queue.add_handler_factory(Order, Payments, partitions=2)  # type: ignore[arg-type]


def handler_on_a_loop_takes_the_items_of_its_type(
    queue: AsyncBatchQueue[Order | Payment],
) -> None:
    queue.add_handler(Order, await_orders)
    queue.add_handler(Order, take_orders)
    queue.add_handler(Order, await_payments)  # type: ignore[arg-type]
    queue.add_handler(Order, Payments())  # type: ignore[arg-type]


def shapes_are_enough(orders: Orders, payments: Payments) -> list[SupportsConsume[Any]]:
    wrong: SupportsConsume[Order] = payments  # type: ignore[assignment]
    right: SupportsConsume[Order] = orders
    return [wrong, right]
