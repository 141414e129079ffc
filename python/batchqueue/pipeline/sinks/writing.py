"""Refuses sinks that return before they have written, such as coroutines and generators."""

import inspect
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from types import CoroutineType, GeneratorType
from typing import TYPE_CHECKING, Any

from batchqueue._words import a_type
from batchqueue.pipeline.contract import Sink
from batchqueue.pipeline.errors import SinkError

if TYPE_CHECKING:
    import pyarrow as pa


def is_deferred(function: Callable[..., Any]) -> bool:
    """Return whether calling a function only makes a coroutine or a generator."""
    return any(
        kind(function) or kind(type(function).__call__)
        for kind in (
            inspect.iscoroutinefunction,
            inspect.isgeneratorfunction,
            inspect.isasyncgenfunction,
        )
    )


def write_to(sink: Sink, chunks: "list[pa.RecordBatch]") -> None:
    """Have a sink write chunks, and check that it has.

    Raises:
        SinkError: It may not have written everything.
    """
    write: Callable[[list[pa.RecordBatch]], object] = sink.write
    check_written(write(chunks))


def check_written(result: object) -> None:
    """Refuse what a call returned if the work may not be done yet.

    Args:
        result: What `write` of a sink, or the function of a sink, returned.

    Raises:
        SinkError: It is an awaitable, a generator or another lazy iterator, or a future.
    """
    if result is None or not (
        inspect.isawaitable(result)
        or inspect.isasyncgen(result)
        or isinstance(result, (GeneratorType, map, filter, Future))
    ):
        return
    if isinstance(result, (CoroutineType, GeneratorType)):
        with suppress(Exception):
            result.close()  # without it, Python warns of a coroutine that was never awaited
    raise SinkError(
        f"the sink returned {a_type(result)}, and may not have written everything; have it wait "
        "for the end of what it begins, for instance by asyncio.run or Future.result"
    )
