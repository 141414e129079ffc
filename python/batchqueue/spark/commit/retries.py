"""A store that is busy or down is tried again for a while; then the query fails and can be resumed."""

import logging
import time
from collections.abc import Callable
from typing import TypeVar

from batchqueue import BatchQueueError, RetryPolicy
from batchqueue.outputs import StoreUnavailableError
from batchqueue.spark.errors import SinkError
from batchqueue.spark.job.aggregation_job import AggregationJob

T = TypeVar("T")

_log = logging.getLogger("batchqueue.spark")


def with_retries(policy: RetryPolicy, what: str, action: Callable[[], T]) -> T:
    """Run an action that is a transaction of its own, again when the store was not available.

    Args:
        policy: How often and when.
        what: Names the action in the log.
        action: What to run. When it is not known whether it was committed, it must find that out
            itself.

    Raises:
        SinkError: The store was not available in any try.
    """
    wait_ms = policy.backoff_ms
    for tries in range(1, policy.attempts + 1):
        try:
            return action()
        except BatchQueueError as error:
            if not _is_unavailable(error):
                raise
            if tries == policy.attempts:
                raise SinkError(
                    f"{what} failed in {tries} tries: {error}. Start the query again with the same checkpoint when "
                    "the store is back: it goes on where it was"
                ) from error
            _log.warning("%s failed in try %d of %d: %s", what, tries, policy.attempts, error)
        time.sleep(min(wait_ms, policy.max_backoff_ms) / 1_000)
        wait_ms *= policy.factor
    raise AssertionError("a policy has at least one attempt")


def _is_unavailable(error: BaseException | None) -> bool:
    """Whether this error, or one that caused it in a handler, is the store's absence."""
    while error is not None:
        if isinstance(error, StoreUnavailableError):
            return True
        error = error.__cause__
    return False


def open_store(job: AggregationJob) -> None:
    """Look at the store before tasks run."""
    with_retries(job.store_retry, f"opening {job.store!r}", job.store.prepare)
