"""A user's script, as mypy sees it by default and with --strict, and pyright.

Nothing here runs. Each `type: ignore` is an error that must be found.
"""

# pyright: reportUnnecessaryTypeIgnoreComment=true

from dataclasses import dataclass
from datetime import timedelta
from typing import Any, assert_type

import batchqueue
from batchqueue import (
    AsyncBatchQueue,
    BatchQueue,
    BatchQueueConfig,
    BatchQueueManager,
    PartitionPolicy,
    ThreadPolicy,
    run_until_signal,
)

print(batchqueue.NoSuchName)  # type: ignore[attr-defined]


@dataclass
class Order:
    cents: int


@dataclass
class Payment:
    cents: int


class Orders:
    def consume(self, batch: list[Order]) -> None: ...


def take_orders(batch: list[Order]) -> int:
    return len(batch)


def take_payments(batch: list[Payment]) -> None: ...


async def await_orders(batch: list[Order]) -> None: ...


# A config needs no annotation.
config = BatchQueueConfig(threads=ThreadPolicy.fixed(2), partitions=PartitionPolicy.adaptive())
queue = BatchQueue("orders", config)
registered = BatchQueueManager.create("registered", config)
assert_type(queue, BatchQueue[Any])
queue.add_handler(Order, take_orders)
queue.add_handler(Order, Orders(), subclasses=True, replace=True)
queue.produce(Order(1))
queue.produce(Payment(1), timeout=timedelta(seconds=1))
queue.flush(timedelta(seconds=1))
queue.flush(1.5)
queue.produce_many([Order(1), Payment(1)])
queue.produce(Order(1), 0.5)  # type: ignore[call-arg, misc, unused-ignore]

# A config with a consumer knows its items.
of_orders = BatchQueueConfig(threads=ThreadPolicy.fixed(1), consumer=Orders())
assert_type(of_orders, BatchQueueConfig[Order])
BatchQueueConfig(threads=ThreadPolicy.fixed(1), consumer_factory=lambda: take_orders)
BatchQueueConfig[Order](threads=ThreadPolicy.fixed(1), default_handler=take_orders)
ONE = ThreadPolicy.fixed(1)
BatchQueueConfig[Order](threads=ONE, default_handler=take_payments)  # type: ignore[arg-type]

# A queue of orders checks what is produced, and its handlers check their batches.
orders: BatchQueue[Order] = BatchQueue("orders")
orders.produce(Order(1))
orders.produce(Payment(1))  # type: ignore[arg-type]
orders.produce_many([Payment(1)])  # type: ignore[list-item]
orders.add_handler(Order, take_payments)  # type: ignore[arg-type]


@queue.handler(Order)
def handle_orders(batch: list[Order]) -> int:
    return len(batch)


assert_type(handle_orders([Order(1)]), int)


@queue.handler(Order, replace=True)
class Handler:
    def consume(self, batch: list[Order]) -> None: ...


@queue.handler(Payment)  # type: ignore[arg-type, call-overload, unused-ignore]
def handle_other(batch: list[Order]) -> None: ...


@queue.handler("rows")
def handle_rows(batch: list[Any]) -> None: ...


# A factory may return a function.
queue.add_handler_factory(Order, lambda: take_orders, partitions=2)
queue.add_handler_factory(Order, Orders, partitions=2, replace=True)
queue.add_handler_factory(
    Order,
    lambda: take_payments,  # type: ignore[arg-type, return-value, unused-ignore]
    partitions=2,
)


async def main() -> None:
    async with AsyncBatchQueue("orders", config) as on_loop:
        on_loop.add_handler(Order, await_orders)
        on_loop.add_handler_factory(Order, lambda: await_orders, partitions=2, replace=True)
        await on_loop.produce(Order(1), timeout=timedelta(seconds=1))

        @on_loop.handler(Order, replace=True)
        async def store_orders(batch: list[Order]) -> int:
            return len(batch)

        assert_type(await store_orders([Order(1)]), int)

        @on_loop.handler(Payment)  # type: ignore[arg-type, call-overload, unused-ignore]
        async def store_others(batch: list[Order]) -> None: ...


assert_type(run_until_signal(queue, orders, timeout=timedelta(seconds=10)), int)
raise SystemExit(1 if run_until_signal(queue) else 0)
