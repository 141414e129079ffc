"""Settings of batches and failures that every preset passes on as they are."""

from collections.abc import Callable
from typing import Any, TypedDict

from batchqueue.dead_letters import DeadLetter
from batchqueue.handlers import SupportsConsume
from batchqueue.policies import RetryPolicy


class BatchSettings(TypedDict, total=False):
    """Fields of `BatchQueueConfig`, with its defaults."""

    max_batch_items: int
    max_delay_ms: float | None
    retry: RetryPolicy | None
    error_handler: Callable[[list[Any], BaseException], Any] | None
    dead_letter: SupportsConsume[DeadLetter[Any]] | Callable[[list[DeadLetter[Any]]], Any] | None
