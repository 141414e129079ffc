"""The door of an `AsyncBatchQueue` for threads without an event loop."""

from collections.abc import Iterable
from concurrent.futures import Future
from typing import Any, Generic, Protocol, TypeVar

from batchqueue import _core
from batchqueue._arguments import Timeout

T = TypeVar("T")
T_contra = TypeVar("T_contra", contravariant=True)


class Produce(Protocol[T_contra]):
    """`BatchQueue.produce`."""

    def __call__(self, item: T_contra, *, timeout: Timeout = None) -> bool: ...


class ProduceMany(Protocol[T_contra]):
    """`BatchQueue.produce_many`."""

    def __call__(self, items: Iterable[T_contra], *, timeout: Timeout = None) -> int: ...


class Submit(Protocol[T_contra]):
    """`BatchQueue.submit`."""

    def __call__(self, item: T_contra, *, timeout: Timeout = None) -> Future[Any]: ...


class SyncProducer(Generic[T]):
    """`AsyncBatchQueue.sync`: `produce`, `produce_many` and `submit`, for other threads.

    They are those of `BatchQueue`, and wait where those wait. On the thread of an event loop they
    would block it, and with it the handlers that run there.
    """

    __slots__ = ("produce", "produce_many", "submit")

    produce: Produce[T]
    produce_many: ProduceMany[T]
    submit: Submit[T]

    def __init__(self, queue: _core.Queue) -> None:
        # The methods themselves: a call costs what it costs a BatchQueue.
        self.produce = queue.produce
        self.produce_many = queue.produce_many
        self.submit = queue.submit
