"""What goes through the queue of a stage: chunks, and orders to one of its workers."""

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from batchqueue.pipeline.chunks.origin import Origin

if TYPE_CHECKING:
    import pyarrow as pa


class Chunk:
    """A record batch on its way to a worker.

    Attributes:
        worker: The number of the worker.
        batch: The rows.
        size: Their bytes, as the gate counts them.
        origin: Where they came from.
    """

    __slots__ = ("batch", "origin", "size", "worker")

    def __init__(self, worker: int, batch: "pa.RecordBatch", size: int, origin: Origin) -> None:
        self.worker = worker
        self.batch = batch
        self.size = size
        self.origin = origin


class Order:
    """Something that a worker does after the chunks before it, on its own thread.

    Attributes:
        worker: The number of the worker.
        result: What it returned, once it is done.
        is_done: Set when it is done.
    """

    __slots__ = ("is_done", "result", "what", "worker")

    def __init__(self, worker: int, what: Callable[[], Any]) -> None:
        self.worker = worker
        self.what = what
        self.result: Any = None
        self.is_done = threading.Event()
