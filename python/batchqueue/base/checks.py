"""Checks of arguments: numbers, switches, local paths, and the optional packages they need."""

import datetime
import math
import os
import re
from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING, TypeGuard

from batchqueue.base.words import a_type
from batchqueue.exceptions import ConfigError, MissingPackageError

if TYPE_CHECKING:
    from pathlib import Path

ABOVE_0 = math.ulp(0.0)
"""The least number above 0."""
BELOW_1 = math.nextafter(1.0, 0.0)
"""The greatest number below 1."""


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
        name: The name of the value, for errors.
        value: The value.
        least: The least valid value.
        most: The greatest valid value. Default: no limit.
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
        name: The name of the value, for errors.
        value: The value.
        least: The least valid value.
        example: The end of the remedy. Default: none.
        most: The greatest valid value. Default: no limit.
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


def check_choice(setting: str, value: object, choices: Sequence[str]) -> None:
    """Refuse a value that is not among the choices of a setting.

    Raises:
        ConfigError: It is not among them.
    """
    if not (isinstance(value, str) and value in choices):
        raise ConfigError(f"{setting} is {value!r}; give {' or '.join(map(repr, choices))}")


def refuse_duration(name: str, value: object) -> None:
    """Raise ConfigError for a `timedelta` where a setting is in milliseconds, as its name says."""
    if isinstance(value, datetime.timedelta) and name.endswith("_ms"):
        milliseconds = value / datetime.timedelta(milliseconds=1)
        raise ConfigError(
            f"{name} is {value!r}, a timedelta, and the setting is in milliseconds; give "
            f"{name.rpartition(' ')[2]}={milliseconds:.15g}"
        )


# Paths of local files, as users give them. Anything that looks like a remote address is refused.
#
# To `open`, "s3://bucket/orders" is a file in a folder named "s3:". Every argument that names a
# local file or folder goes through `local_path`.


LocalPath = str | os.PathLike[str]

_KNOWN_SCHEMES = (
    *("abfs", "abfss", "adl", "az", "azure", "cos", "dbfs", "file", "ftp", "gcs", "gs", "hdfs"),
    *("http", "https", "iceberg", "jdbc", "oci", "oss", "postgres", "postgresql", "redis"),
    *("s3", "s3a", "s3n", "sftp", "sqlite", "viewfs", "wasb", "wasbs", "webhdfs"),
)
"""These count as schemes even without a slash, as in "file:metrics.db?mode=ro"."""

ON_THIS_MACHINE = "give the path of a local or mounted folder"
"""The default remedy."""


def scheme_of(path: str) -> str | None:
    """Return the scheme of a text that looks like an address; None for a path.

    >>> scheme_of("s3://bucket/orders"), scheme_of("hdfs:orders"), scheme_of("dbfs:/orders")
    ('s3', 'hdfs', 'dbfs')
    >>> scheme_of("orders/monday:1.csv"), scheme_of("monday:1.csv"), scheme_of("C:/orders")
    (None, None, None)
    """
    # A single letter is a Windows drive. `Path("s3://bucket")` has one slash: "s3:/bucket".
    found = re.match(r"([a-z][a-z0-9+.-]+):/", path, re.IGNORECASE)
    scheme = found[1] if found else path.partition(":")[0] if ":" in path else ""
    return scheme if found or scheme.lower() in _KNOWN_SCHEMES else None


def local_path(name: str, given: object, remedy: str = ON_THIS_MACHINE) -> "Path":
    """Return a path on this machine, absolute and with `~` expanded.

    For a local folder whose name looks like a scheme, give a path like "./s3:/bucket".

    Args:
        name: The name of the argument, for errors.
        given: What the user gave: a str, or an object with `__fspath__`, such as a `Path`.
        remedy: What to use for any place other than a local folder.

    Raises:
        ConfigError: `given` is not a path, is empty, or has a scheme.
    """
    from pathlib import Path

    text = os.fspath(given) if isinstance(given, os.PathLike) else given
    if not isinstance(text, str) or not text or "\0" in text:
        raise ConfigError(f"{name} is {given!r}, {a_type(given)}; give a path, a str or a Path")
    scheme = scheme_of(text)
    if scheme is not None and scheme.lower() == "file":
        rest = text.partition(":")[2].partition("?")[0]
        path = "/" + rest.lstrip("/") if rest.startswith("/") else rest
        raise ConfigError(f"{name} is {text!r}, a URI; give the path alone: {path!r}")
    if scheme is not None:
        shown = re.sub(r"(?<=/)[^/@]*@", "...@", text)  # without the password
        raise ConfigError(f"{name} is {shown!r}, and {scheme}: is not on this machine; {remedy}")
    return Path(os.path.expanduser(text)).absolute()


# Optional packages: checks for them, and the command that installs a missing package.


def require(module: str, user: str, extra: str) -> None:
    """Check that a module of an optional package can be imported.

    Args:
        module: The full name of the module.
        user: The class or function that needs it.
        extra: The extra of batchqueue that installs the package.

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
