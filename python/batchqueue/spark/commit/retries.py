"""Retries of a store that is busy or down. When they end, the query fails and can be resumed."""

import itertools
import random
import time
from collections.abc import Callable
from typing import TypeVar

from batchqueue import BatchQueueError, RetryPolicy
from batchqueue._background_log import BackgroundLog, flush_log
from batchqueue._words import counted
from batchqueue.outputs import StoreUnavailableError
from batchqueue.spark.errors import SinkError
from batchqueue.spark.job.aggregation_job import AggregationJob

T = TypeVar("T")

_log = BackgroundLog("batchqueue.spark")


def with_retries(policy: RetryPolicy, what: str, action: Callable[[], T]) -> T:
    """Run an action, and retry it while the store is unavailable.

    Args:
        policy: How often and when to retry. A transaction is not bisected.
        what: Names the action in the log.
        action: What to run, one transaction. A retry must itself find out whether the attempt
            before it was committed.

    Raises:
        SinkError: The store was unavailable in every attempt.
    """
    wait_ms = policy.backoff_ms
    for attempt in itertools.count(1):
        try:
            return _with_its_lines(action)
        except BatchQueueError as error:
            if not _is_unavailable(error):
                raise
            if attempt == policy.attempts:
                raise SinkError(
                    f"{what} failed after {counted(attempt, 'attempt')}: {error}. Start the query "
                    "again with the same checkpoint when the store is back: it continues where it "
                    "was"
                ) from error
            of = "" if policy.attempts is None else f" of {policy.attempts}"
            _log.warning("%s failed in attempt %d%s: %s", what, attempt, of, error)
        jitter = 1 - policy.jitter * random.random()
        time.sleep(min(wait_ms, policy.max_backoff_ms) / 1_000 * jitter)
        wait_ms *= policy.factor
    raise AssertionError("the loop has no end")


def _with_its_lines(action: Callable[[], T]) -> T:
    """Run an action; the lines that it left within its transaction are in the log at its end."""
    try:
        return action()
    finally:
        flush_log()


def _is_unavailable(error: BaseException | None) -> bool:
    """Whether an unavailable store is the error, or caused it in a handler."""
    while error is not None:
        if isinstance(error, StoreUnavailableError):
            return True
        error = error.__cause__
    return False


def open_store(job: AggregationJob) -> None:
    """Open and prepare the store of a job before its tasks run, with retries.

    Raises:
        SinkError: The store was unavailable in every attempt.
    """
    with_retries(job.store_retry, f"opening {job.store!r}", job.store.prepare)
