"""Checks of the arguments that both kinds of queue take."""

import datetime
from typing import Any, NamedTuple

from batchqueue._number_rules import check_delay
from batchqueue._words import a_type
from batchqueue.config import BatchQueueConfig
from batchqueue.exceptions import ConfigError
from batchqueue.handlers import HandlerMethods
from batchqueue.policies import RetryPolicy

_MAX_PARTITIONS = 1_024
_MAX_WEIGHT = 1_000
_MAX_ITEMS = 100_000_000


Timeout = float | datetime.timedelta | None
"""Seconds, a `timedelta`, or None for no limit."""


def seconds_of(timeout: Timeout) -> float | None:
    """Return a timeout in seconds, or raise ConfigError."""
    seconds = timeout.total_seconds() if isinstance(timeout, datetime.timedelta) else timeout
    if seconds is None:
        return None
    if not isinstance(seconds, (int, float)) or isinstance(seconds, bool):
        raise ConfigError(
            f"timeout is {timeout!r}, {a_type(timeout)}; give seconds from 0 up, a "
            "timedelta, or None to wait"
        )
    if not seconds >= 0:
        raise ConfigError(f"timeout is {seconds}; give seconds from 0 up, or None to wait")
    return seconds


def misplaced(method: str, given: tuple[object, ...]) -> TypeError:
    """Return the error for positional arguments where a timeout is given by name only."""
    return TypeError(
        f"{method} takes one positional argument, and {given[0]!r} is a second one; give a timeout "
        f"by name, in seconds: timeout={given[0]!r}"
    )


class HandlerOptions(NamedTuple):
    """The settings of one type, as the core reads them."""

    weight: float
    max_batch_items: int | None
    max_delay_ms: float | None
    retry: RetryPolicy | None
    dead_letter: HandlerMethods | None
    replace: bool
    subclasses: bool


def handler_options(
    *,
    weight: float = 1.0,
    max_batch_items: int | None = None,
    max_delay_ms: float | None = None,
    retry: RetryPolicy | None = None,
    dead_letter: HandlerMethods | None = None,
    replace: bool = False,
    subclasses: bool = False,
) -> HandlerOptions:
    """Return the settings of one type, or raise ConfigError for one that is out of range."""
    if (
        not isinstance(weight, (int, float))
        or isinstance(weight, bool)
        or not 0 < weight <= _MAX_WEIGHT
    ):
        raise ConfigError(
            f"weight is {weight!r}; give a number above 0, at most {_MAX_WEIGHT:_}; 1.0 is a whole "
            "partition"
        )
    if max_batch_items is not None and (
        not isinstance(max_batch_items, int)
        or isinstance(max_batch_items, bool)
        or not 1 <= max_batch_items <= _MAX_ITEMS
    ):
        raise ConfigError(
            f"max_batch_items is {max_batch_items!r}; give 1 to {_MAX_ITEMS:_} items, or None for "
            "the queue's"
        )
    check_delay(max_delay_ms)
    if retry is not None and not isinstance(retry, RetryPolicy):
        raise ConfigError(
            f"retry is {retry!r}, {a_type(retry)}; give a RetryPolicy, or None for the queue's"
        )
    if not isinstance(replace, bool):
        raise ConfigError(f"replace is {replace!r}; give True or False")
    if not isinstance(subclasses, bool):
        raise ConfigError(f"subclasses is {subclasses!r}; give True or False")
    return HandlerOptions(
        weight, max_batch_items, max_delay_ms, retry, dead_letter, replace, subclasses
    )


def check_name_and_config(name: object, config: object) -> None:
    """Raise ConfigError for an invalid name or config."""
    if not isinstance(name, str) or not name.isprintable() or not name:
        raise ConfigError(
            f"the queue's name is {name!r}; give a str of printable characters, at least one"
        )
    if not isinstance(config, BatchQueueConfig):
        raise ConfigError(f"config is {a_type(config)}; give a BatchQueueConfig")


def check_loop_config(config: BatchQueueConfig[Any]) -> None:
    """Raise ConfigError for a setting that a queue on an event loop cannot have."""
    if config.restart_after_fork:
        raise ConfigError(
            "restart_after_fork=True is given for an AsyncBatchQueue, whose event loop does not "
            "exist in a forked child; make the queue in the child, where its loop runs"
        )
    if config.inline:
        raise ConfigError(
            "inline=True is given for an AsyncBatchQueue, where a handler would wait for the event "
            "loop that it holds up; test the handler with a BatchQueue, or await flush()"
        )


def check_factory(factory: object, partitions: object) -> None:
    """Raise ConfigError for an invalid factory or number of partitions."""
    if (
        not isinstance(partitions, int)
        or isinstance(partitions, bool)
        or not 1 <= partitions <= _MAX_PARTITIONS
    ):
        raise ConfigError(f"partitions is {partitions!r}; give 1 to {_MAX_PARTITIONS:_} partitions")
    if not callable(factory):
        raise ConfigError(
            f"factory is {factory!r}; give a function without arguments that returns a handler"
        )
