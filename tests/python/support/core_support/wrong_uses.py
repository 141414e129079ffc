"""Wrong uses, as the rows of a table: each has the call, the error, and parts of its message."""

from collections.abc import Callable
from typing import Any

from batchqueue import BatchQueueConfig, ConfigError, ThreadPolicy

ONE = ThreadPolicy.fixed(1)
LARGE = 10**30
NAN, INF = float("nan"), float("inf")

Call = Callable[[Any], object]
Wrong = tuple[Call, type[BaseException], tuple[str, ...]]


def settings(**given: Any) -> BatchQueueConfig[Any]:
    return BatchQueueConfig(**{"threads": ONE, **given})


def rejected(call: Call, *parts: str, error: type[BaseException] = ConfigError) -> Wrong:
    return call, error, parts


def assert_parts_in(message: str, parts: tuple[str, ...]) -> None:
    """Fails unless a message has all of its essential parts."""
    assert [part for part in parts if part not in message] == [], message
