"""Checks of the settings of `FileSource`."""

import os
from collections.abc import Sequence
from typing import Any

from batchqueue._paths import LocalPath, local_path
from batchqueue.exceptions import ConfigError
from batchqueue.pipeline.sources.files.format import FORMATS
from batchqueue.policies import check_finite


def checked_columns(columns: Sequence[str] | None) -> tuple[str, ...] | None:
    """Return names of columns as a tuple; None for all.

    Raises:
        ConfigError: There is none, or one is there twice or not a str.
    """
    if columns is None:
        return None
    if isinstance(columns, str) or not columns:
        raise ConfigError(f"columns is {columns!r}; give a list of names, or None for all")
    names = tuple(columns)
    if not all(isinstance(name, str) for name in names) or len(set(names)) < len(names):
        raise ConfigError(f"columns is {columns!r}; give each column once, as a str")
    return names


def check_schema(schema: object) -> None:
    """Refuse what is neither a schema nor None.

    Raises:
        ConfigError: It is neither.
    """
    import pyarrow as pa

    if not (schema is None or isinstance(schema, pa.Schema)):
        raise ConfigError(f"schema is {schema!r}; give a pyarrow.Schema, or None")


def checked_options(format: str | None, given: dict[str, Any]) -> dict[str, Any]:
    """Return the options that were given, which must be those of the format.

    Args:
        format: The format of the files; None if it is not known yet.
        given: By name; None where nothing was given.

    Raises:
        ConfigError: The format is invalid or not given, or it has no such options.
    """
    import pyarrow.csv
    import pyarrow.json

    if not (format is None or format in FORMATS):
        raise ConfigError(f"format is {format!r}; give one of {', '.join(FORMATS)}, or None")
    options = {name: value for name, value in given.items() if value is not None}
    module = {"csv": pyarrow.csv, "json": pyarrow.json}.get(format or "")
    for name, value in options.items():
        expected = name.title().replace("_", "")
        if module is None:
            raise ConfigError(f'{name} is for CSV and JSON; give format="csv" or "json" with it')
        if not isinstance(value, getattr(module, expected, ())):
            raise ConfigError(
                f"{name} is {value!r}; give pyarrow.{format}.{expected}"
                if hasattr(module, expected)
                else f"{name} is not for {format}; leave it out"
            )
    return options


def checked_listing(watch: bool, listing: LocalPath | None, watch_interval_s: float) -> str | None:
    """Return the path of the listing; None if the source is bounded.

    Raises:
        ConfigError: There is a listing without `watch` or the reverse, or its directory is missing.
    """
    check_finite("watch_interval_s", watch_interval_s, 0)
    if not isinstance(watch, bool):
        raise ConfigError(f"watch is {watch!r}; give True or False")
    if not watch:
        if listing is not None:
            raise ConfigError(f"listing is {listing!r}, which is for watch=True; leave it out")
        return None
    if listing is None:
        raise ConfigError(
            "watch=True needs `listing`, the path of a file to note found files in; put it next to "
            "the checkpoint"
        )
    path = str(local_path("listing", listing))
    if not os.path.isdir(os.path.dirname(path)) or os.path.isdir(path):
        raise ConfigError(f"listing is {path}; give the path of a file in a directory that exists")
    return path
