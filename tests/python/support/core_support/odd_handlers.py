"""Types and handlers that a queue has to refuse, and the nearest ones that it takes."""

from typing import Protocol, TypedDict

from batchqueue import HandlerConsumer


class Order:
    pass


class Shape(Protocol):
    pass


class Row(TypedDict):
    x: int


class Handler:
    def consume(self, batch):
        pass


class NoConsume:
    pass


class IdleIsData(HandlerConsumer):
    on_idle = 3


class GeneratorMethod:
    def consume(self, batch):
        yield batch


class GeneratorIdle(Handler):
    def on_idle(self):
        yield


class GeneratorCall:
    def __call__(self, batch):
        yield batch


def generator(batch):
    yield from batch


async def async_generator(batch):
    yield batch


async def coroutine(batch):
    pass
