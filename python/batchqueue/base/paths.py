"""Paths of local files, as users give them. What looks like an address elsewhere is refused.

To `open`, "s3://bucket/orders" is a file in a folder with the name "s3:". Every argument that
names a local file or folder goes through `local_path`.
"""

import os
import re
from pathlib import Path

from batchqueue.base.words import a_type
from batchqueue.exceptions import ConfigError

LocalPath = str | os.PathLike[str]

# A single letter is a drive of Windows. `Path("s3://bucket")` has one slash: "s3:/bucket".
_SCHEME = re.compile(r"([a-z][a-z0-9+.-]+):/", re.IGNORECASE)
_PASSWORD = re.compile(r"(?<=/)[^/@]*@")
_KNOWN_SCHEMES = (
    *("abfs", "abfss", "adl", "az", "azure", "cos", "dbfs", "file", "ftp", "gcs", "gs", "hdfs"),
    *("http", "https", "iceberg", "jdbc", "oci", "oss", "postgres", "postgresql", "redis"),
    *("s3", "s3a", "s3n", "sftp", "sqlite", "viewfs", "wasb", "wasbs", "webhdfs"),
)
"""These are meant even without a slash, as in "file:metrics.db?mode=ro"."""

ON_THIS_MACHINE = "give the path of a local or mounted folder"
"""The remedy where there is no other."""


def scheme_of(path: str) -> str | None:
    """Return the scheme of what looks like an address; None for a path.

    >>> scheme_of("s3://bucket/orders"), scheme_of("hdfs:orders"), scheme_of("dbfs:/orders")
    ('s3', 'hdfs', 'dbfs')
    >>> scheme_of("orders/monday:1.csv"), scheme_of("monday:1.csv"), scheme_of("C:/orders")
    (None, None, None)
    """
    found = _SCHEME.match(path)
    scheme = found[1] if found else path.partition(":")[0] if ":" in path else ""
    return scheme if found or scheme.lower() in _KNOWN_SCHEMES else None


def local_path(name: str, given: object, remedy: str = ON_THIS_MACHINE) -> Path:
    """Return a path on this machine, absolute and with `~` expanded.

    A local folder whose name looks like a scheme has another path: "./s3:/bucket".

    Args:
        name: What the argument is called, for errors.
        given: What the user gave: a str, or an object with `__fspath__`, such as a `Path`.
        remedy: What to use for another place than a local folder.

    Raises:
        ConfigError: It is not a path, is empty, or has a scheme.
    """
    text = os.fspath(given) if isinstance(given, os.PathLike) else given
    if not isinstance(text, str) or not text or "\0" in text:
        raise ConfigError(f"{name} is {given!r}, {a_type(given)}; give a path, a str or a Path")
    scheme = scheme_of(text)
    if scheme is not None and scheme.lower() == "file":
        rest = text.partition(":")[2].partition("?")[0]
        path = "/" + rest.lstrip("/") if rest.startswith("/") else rest
        raise ConfigError(f"{name} is {text!r}, a URI; give the path alone: {path!r}")
    if scheme is not None:
        shown = _PASSWORD.sub("...@", text)
        raise ConfigError(f"{name} is {shown!r}, and {scheme}: is not on this machine; {remedy}")
    return Path(os.path.expanduser(text)).absolute()
