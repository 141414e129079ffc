"""What arguments must be: numbers, switches, and optional packages. Errors name the remedy."""

import datetime
import math
from importlib import import_module
from typing import TypeGuard

from batchqueue.exceptions import ConfigError, MissingPackageError

ABOVE_0 = math.ulp(0.0)
"""The least of numbers that must be above 0."""
BELOW_1 = math.nextafter(1.0, 0.0)
"""The most of numbers that must be below 1."""


def is_whole(value: object, least: float = -math.inf, most: float = math.inf) -> TypeGuard[int]:
    """Return whether a value is an int within limits. A bool is not."""
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def is_finite(value: object, least: float = -math.inf, most: float = math.inf) -> TypeGuard[float]:
    """Return whether a value is a finite int or float within limits. A bool is not."""
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return False
    return least <= value <= most and -math.inf < value < math.inf


def check_whole(
    name: str,
    value: object,
    least: int,
    most: float = math.inf,
    give: str | None = None,
    *,
    is_optional: bool = False,
) -> None:
    """Raise ConfigError unless a value is an int within limits.

    Args:
        name: What the value is called.
        value: The value.
        least: The least valid value.
        most: The greatest. Default: there is none.
        give: The remedy. Default: "an int" and the limits.
        is_optional: Whether None is valid. Default: False.
    """
    if not is_whole(value, least, most) and not (value is None and is_optional):
        limits = f"from {least} up" if most == math.inf else f"from {least} to {most}"
        raise ConfigError(f"{name} is {value!r}; give {give or f'an int {limits}'}")


def check_finite(
    name: str,
    value: object,
    least: float,
    example: str = "",
    *,
    most: float = math.inf,
    give: str | None = None,
) -> None:
    """Raise ConfigError unless a value is a finite number within limits.

    Args:
        name: What the value is called.
        value: The value.
        least: The least valid value.
        example: The end of the remedy. Default: none.
        most: The greatest valid value. Default: there is none.
        give: The remedy. Default: "a finite number", the least one, and `example`.
    """
    if not is_finite(value, least, most):
        refuse_duration(name, value)
        remedy = give or f"a finite number from {least} up{example}"
        raise ConfigError(f"{name} is {value!r}; give {remedy}")


def check_switch(name: str, value: object) -> None:
    """Raise ConfigError unless a value is True or False."""
    if not isinstance(value, bool):
        raise ConfigError(f"{name} is {value!r}; give True or False")


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
