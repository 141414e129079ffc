"""Paths as users give them: relative ones, URIs, and those of a filesystem of pyarrow."""

import os
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from batchqueue._paths import LocalPath, local_path
from batchqueue.exceptions import ConfigError

if TYPE_CHECKING:
    from pyarrow import fs

_ELSEWHERE = 'give a URI that pyarrow opens as a str, such as "s3://bucket/orders", or `filesystem`'

Paths = LocalPath | Sequence[LocalPath]

_URI = re.compile(r"[a-z][a-z0-9+.-]+://", re.IGNORECASE)


def as_list(paths: Paths) -> list[str]:
    """Return paths as a list of str.

    Raises:
        ConfigError: There is none, or it is not a path.
    """
    try:
        given = [paths] if isinstance(paths, str | os.PathLike) else list(paths)
        found = [os.fspath(path) for path in given]
    except TypeError as error:
        raise ConfigError(f"paths is {paths!r}; give a path, or a list of paths") from error
    if not found or not all(isinstance(path, str) and path for path in found):
        raise ConfigError(f"paths is {paths!r}; give at least one path, directory or pattern")
    return found


def resolve(
    paths: Sequence[str], filesystem: "fs.FileSystem | None"
) -> "tuple[fs.FileSystem, tuple[str, ...]]":
    """Return the filesystem of paths, and the paths on it.

    Args:
        paths: Local paths, URIs as `s3://bucket/orders/*.parquet`, or paths on `filesystem`.
        filesystem: Where they are; None for what the paths say.

    Raises:
        ConfigError: They are on several filesystems, or a URI is invalid.
    """
    from pyarrow import fs

    if filesystem is not None and not isinstance(filesystem, fs.FileSystem):
        raise ConfigError(f"filesystem is {filesystem!r}; give a pyarrow.fs.FileSystem or None")
    if filesystem is None and any(map(_URI.match, paths)):
        return _resolve_uris(paths)
    if filesystem is None or isinstance(filesystem, fs.LocalFileSystem):
        local = (os.path.abspath(local_path("paths", path, _ELSEWHERE)) for path in paths)
        return filesystem or fs.LocalFileSystem(), tuple(local)
    return filesystem, tuple(path.rstrip("/") for path in paths)


def _resolve_uris(paths: Sequence[str]) -> "tuple[fs.FileSystem, tuple[str, ...]]":
    import pyarrow as pa
    from pyarrow import fs

    filesystems, found = [], []
    for path in paths:
        # Wildcards are not allowed in a URI, so only what is before them is parsed.
        fixed = re.split(r"[*?\[]", path, maxsplit=1)[0]
        root = path if fixed == path else fixed[: fixed.rindex("/") + 1]
        try:
            filesystem, base = fs.FileSystem.from_uri(root)
        except (pa.ArrowException, ValueError, OSError) as error:
            raise ConfigError(
                f"{path} is not a URI that pyarrow can open: {error}; correct it, or give "
                "`filesystem`"
            ) from error
        filesystems.append(filesystem)
        rest = path[len(root) :]
        found.append(f"{base.rstrip('/')}/{rest}" if rest else base)
    if any(not other.equals(filesystems[0]) for other in filesystems):
        raise ConfigError(f"{list(paths)} are on several filesystems; give each its own source")
    return filesystems[0], tuple(found)
