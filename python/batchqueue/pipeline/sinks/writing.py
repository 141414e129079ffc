"""Refuses functions that return before they have written: those of coroutines and generators."""

import inspect
from collections.abc import Callable
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
        SinkError: Its `write` has not run.
    """
    write: Callable[[list[pa.RecordBatch]], object] = sink.write
    check_written(write(chunks))


def check_written(result: object) -> None:
    """Refuse what a call returned if the body of the function has not run.

    Args:
        result: What `write` of a sink, or the function of a sink, returned.

    Raises:
        SinkError: It is a generator or an awaitable.
    """
    if result is None:
        return
    if not (
        inspect.isawaitable(result) or inspect.isgenerator(result) or inspect.isasyncgen(result)
    ):
        return
    close = getattr(result, "close", None)
    if close is not None:
        close()  # without it, Python warns of a coroutine that was never awaited
    raise SinkError(
        f"the sink returned {a_type(result)}, and has written nothing; give it a plain function, "
        "for instance one that calls asyncio.run"
    )
