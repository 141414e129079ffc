"""Checks of the arguments that both kinds of queue take."""

from typing import NamedTuple

from batchqueue.config import BatchQueueConfig, check_delay
from batchqueue.exceptions import ConfigError
from batchqueue.handlers import HandlerMethods
from batchqueue.policies import RetryPolicy

_MAX_PARTITIONS = 1_024
_MAX_WEIGHT = 1_000
_MAX_ITEMS = 100_000_000


class HandlerOptions(NamedTuple):
    """The settings of one type, as the core reads them."""

    weight: float
    max_batch_items: int | None
    max_delay_ms: float | None
    retry: RetryPolicy | None
    dead_letter: HandlerMethods | None


def handler_options(
    *,
    weight: float = 1.0,
    max_batch_items: int | None = None,
    max_delay_ms: float | None = None,
    retry: RetryPolicy | None = None,
    dead_letter: HandlerMethods | None = None,
) -> HandlerOptions:
    """Return the settings of one type, or raise ConfigError for one that is out of range."""
    if not 0 < weight <= _MAX_WEIGHT:
        raise ConfigError(
            f"weight is {weight}; give a number above 0, at most {_MAX_WEIGHT:_}; 1.0 is a whole "
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
            f"retry is {retry!r}, a {type(retry).__name__}; give a RetryPolicy, or None for the "
            "queue's"
        )
    return HandlerOptions(weight, max_batch_items, max_delay_ms, retry, dead_letter)


def check_name_and_config(name: object, config: object) -> None:
    """Raise ConfigError for an invalid name or config."""
    if not isinstance(name, str) or not name.isprintable() or not name:
        raise ConfigError(
            f"the queue's name is {name!r}; give a str of printable characters, at least one"
        )
    if not isinstance(config, BatchQueueConfig):
        raise ConfigError(f"config is a {type(config).__name__}; give a BatchQueueConfig")


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
