"""What the settings of a queue that are numbers must be."""

import datetime
import math
from importlib import import_module
from typing import NamedTuple

from batchqueue.base.words import a_type
from batchqueue.exceptions import ConfigError, MissingPackageError

_MAX_ITEMS = 100_000_000
_MAX_THREADS = 1_024


class NumberRule(NamedTuple):
    """The range of a setting, and how to say it."""

    remedy: str
    least: float
    most: float = math.inf
    """The greatest value; infinity itself is never valid."""
    is_whole: bool = False
    is_optional: bool = False

    def check(self, name: str, value: object) -> None:
        """Raise ConfigError for a value of another type, or out of range."""
        if value is None and self.is_optional:
            return
        kinds = int if self.is_whole else (int, float)
        if not isinstance(value, kinds) or isinstance(value, bool):
            refuse_duration(name, value)
            raise ConfigError(f"{name} is {value!r}, {a_type(value)}; give {self.remedy}")
        if not self.least <= value <= self.most or value == math.inf:
            raise ConfigError(f"{name} is {value}; give {self.remedy}")


_ITEMS = NumberRule(f"an int, 1 to {_MAX_ITEMS:_} items", 1, _MAX_ITEMS, is_whole=True)
_MILLISECONDS = NumberRule("milliseconds, a finite number from 0 up", 0)
_DELAY = NumberRule("milliseconds, a finite number from 0 up, or None", 0, is_optional=True)

NUMBER_RULES = {
    "buffer_size": _ITEMS,
    "max_batch_items": _ITEMS,
    "min_idle_ms": _MILLISECONDS,
    "max_idle_ms": _MILLISECONDS,
    "max_delay_ms": _DELAY,
    "rebalance_interval_ms": _MILLISECONDS,
    "takeover_after_ms": NumberRule("milliseconds, a finite number from 1 up", 1),
    "spare_threads": NumberRule(
        f"an int, 0 to {_MAX_THREADS:_} threads, or None for the default",
        0,
        _MAX_THREADS,
        is_whole=True,
        is_optional=True,
    ),
    "warn_after": NumberRule(
        "a finite number of seconds from 0.001 up, a timedelta, or None for no warning",
        0.001,
        is_optional=True,
    ),
    "shutdown_timeout": NumberRule(
        "a finite number of seconds from 0 up, a timedelta, or None for no limit",
        0,
        is_optional=True,
    ),
}
"""The rules of `BatchQueueConfig`, by setting."""


def check_delay(max_delay_ms: object) -> None:
    """Raise ConfigError for an invalid time that items may wait for their batch."""
    _DELAY.check("max_delay_ms", max_delay_ms)


def refuse_duration(name: str, value: object) -> None:
    """Raise ConfigError for a `timedelta` where a setting is in milliseconds, as its name says."""
    if isinstance(value, datetime.timedelta) and name.endswith("_ms"):
        milliseconds = value / datetime.timedelta(milliseconds=1)
        raise ConfigError(
            f"{name} is {value!r}, a timedelta, and the setting is in milliseconds; give "
            f"{name.rpartition(' ')[2]}={milliseconds:.15g}"
        )


# Optional packages: checks for them, and the command that installs a missing package.


def require(module: str, user: str, extra: str) -> None:
    """Check that a module of an optional package can be imported.

    Args:
        module: Its full name.
        user: The class or function that needs it.
        extra: The extra of batchqueue that brings the package.

    Raises:
        MissingPackageError: The module cannot be imported.
    """
    try:
        import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        raise MissingPackageError(
            f"{user} needs {package} ({error}): {install_command(extra)}"
        ) from error


def install_command(extra: str) -> str:
    """Return the command that installs batchqueue with an extra.

    The distribution is named `batchqueue-rs`: `batchqueue` on the package index is another project.
    """
    return f"pip install 'batchqueue-rs[{extra}]'"
