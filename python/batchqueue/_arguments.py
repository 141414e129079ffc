"""Checks of the arguments that both kinds of queue take."""

from batchqueue.config import BatchQueueConfig
from batchqueue.exceptions import ConfigError

_MAX_PARTITIONS = 65_536


def check_name_and_config(name: object, config: object) -> None:
    """Raise ConfigError for an invalid name or config."""
    if not isinstance(name, str) or not name.isprintable() or not name:
        raise ConfigError(
            f"the queue's name is {name!r}; give a str of printable characters, at least one"
        )
    if not isinstance(config, BatchQueueConfig):
        raise ConfigError(f"config is a {type(config).__name__}; give a BatchQueueConfig")


def check_weight(weight: float) -> None:
    """Raise ConfigError for a weight that is not a finite number above 0."""
    if not 0 < weight < float("inf"):
        raise ConfigError(f"weight is {weight}; give a number above 0; 1.0 is a whole partition")


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
