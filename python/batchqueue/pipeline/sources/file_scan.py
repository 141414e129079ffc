"""Finds files: paths, directories and patterns become a sorted list of files with their sizes."""

import os
import re
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

import pyarrow as pa
from pyarrow import fs

from batchqueue.base.checks import LocalPath, local_path
from batchqueue.exceptions import ConfigError

_WILDCARDS = re.compile(r"[*?\[]")


class FileEntry(NamedTuple):
    """A file as it was when it was listed. It has changed if any field differs."""

    path: str
    size: int
    """Bytes."""
    mtime_ns: int | None
    """Nanoseconds since 1970; None where the filesystem has no times."""

    def __str__(self) -> str:
        when = "of unknown time" if self.mtime_ns is None else f"mtime {self.mtime_ns} ns"
        return f"{self.size} bytes, {when}"


class Found(NamedTuple):
    """What a scan found."""

    files: list[FileEntry]
    """Sorted by path, without repetitions."""
    empty: int
    """Files of zero bytes, which are left out."""


def scan(filesystem: fs.FileSystem, paths: Sequence[str]) -> Found:
    """List the files that paths lead to.

    A path is a file, a directory (all files below it), or a pattern with `*`, `?`, `[a-z]` and
    `**`. Below a directory and in patterns, names that start with `.` or `_` are hidden, except for
    directories such as `_day=1`.

    Args:
        filesystem: Where they are.
        paths: Absolute paths, or keys of an object store.

    Raises:
        ConfigError: A path without wildcards, or the directory of a pattern, is missing.
    """
    found: dict[str, FileEntry] = {}
    empty: set[str] = set()
    for path in paths:
        for info in _files(filesystem, path):
            if info.size:
                found[info.path] = entry_of(info)
            else:
                empty.add(info.path)
    return Found([found[path] for path in sorted(found)], len(empty))


def entry_of(info: fs.FileInfo) -> FileEntry:
    """Return what a filesystem knows about a file."""
    return FileEntry(info.path, info.size or 0, info.mtime_ns)


def _files(filesystem: Any, path: str) -> Iterator[fs.FileInfo]:
    info = filesystem.get_file_info(path)
    if info.is_file:
        yield info
    elif info.type.name == "Directory":
        yield from _below(filesystem, path)
    elif _WILDCARDS.search(path):
        parts = path.split("/")
        first = next(number for number, part in enumerate(parts) if _WILDCARDS.search(part))
        directory = "/".join(parts[:first]) or "/"
        if filesystem.get_file_info(directory).type.name != "Directory":
            raise ConfigError(f"{directory} is not a directory; correct `paths`")
        yield from _matching(filesystem, directory, parts[first:])
    else:
        raise ConfigError(f"{path} does not exist, or is not a file or directory; correct `paths`")


def _matching(filesystem: Any, directory: str, parts: list[str]) -> Iterator[fs.FileInfo]:
    part, rest = parts[0], parts[1:]
    if part == "**":
        yield from _matching(filesystem, directory, rest or ["*"])
    for info in _children(filesystem, directory):
        name = info.base_name
        if _hidden(name) and part[0] != name[0]:
            continue
        if part == "**":
            if info.type.name == "Directory":
                yield from _matching(filesystem, info.path, parts)
        elif not fnmatchcase(name, part):
            continue
        elif info.type.name == "Directory":
            # A dataset of many files, as Spark writes it, may be matched like a file.
            below = _matching(filesystem, info.path, rest) if rest else None
            yield from below or _below(filesystem, info.path)
        elif info.is_file and not rest:
            yield info


def _below(filesystem: Any, directory: str) -> Iterator[fs.FileInfo]:
    for info in _children(filesystem, directory):
        if _hidden(info.base_name):
            continue
        if info.is_file:
            yield info
        elif info.type.name == "Directory":
            yield from _below(filesystem, info.path)


def _children(filesystem: Any, directory: str) -> list[fs.FileInfo]:
    if isinstance(filesystem, fs.LocalFileSystem) and _leads_up(directory):
        return []
    try:
        children: list[fs.FileInfo] = filesystem.get_file_info(fs.FileSelector(directory))
    except (FileNotFoundError, NotADirectoryError):
        return []  # removed during the scan
    return children


def _leads_up(directory: str) -> bool:
    """Return whether a directory links to one above it, so that scanning it would never end."""
    if not os.path.islink(directory):
        return False
    target = os.path.realpath(directory)
    return (os.path.realpath(os.path.dirname(directory)) + "/").startswith(target + "/")


def _hidden(name: str) -> bool:
    return name.startswith(".") or (name.startswith("_") and "=" not in name)


# Paths as users give them: relative paths, URIs, and paths on a filesystem of pyarrow.


_ELSEWHERE = 'give a URI that pyarrow opens as a str, such as "s3://bucket/orders", or `filesystem`'

Paths = LocalPath | Sequence[LocalPath]

_URI = re.compile(r"[a-z][a-z0-9+.-]+://", re.IGNORECASE)


def as_list(paths: Paths) -> list[str]:
    """Return paths as a list of str.

    Raises:
        ConfigError: There are no paths, or one is not a path.
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
    paths: Sequence[str], filesystem: fs.FileSystem | None
) -> tuple[fs.FileSystem, tuple[str, ...]]:
    """Return the filesystem of paths, and the paths on it.

    Args:
        paths: Local paths, URIs such as `s3://bucket/orders/*.parquet`, or paths on `filesystem`.
        filesystem: Where the paths are; None to derive it from the paths.

    Raises:
        ConfigError: The paths are on several filesystems, or a URI is invalid.
    """
    if filesystem is not None and not isinstance(filesystem, fs.FileSystem):
        raise ConfigError(f"filesystem is {filesystem!r}; give a pyarrow.fs.FileSystem or None")
    if filesystem is None and any(map(_URI.match, paths)):
        return _resolve_uris(paths)
    if filesystem is None or isinstance(filesystem, fs.LocalFileSystem):
        local = (os.path.abspath(local_path("paths", path, _ELSEWHERE)) for path in paths)
        return filesystem or fs.LocalFileSystem(), tuple(local)
    return filesystem, tuple(path.rstrip("/") for path in paths)


def _resolve_uris(paths: Sequence[str]) -> tuple[fs.FileSystem, tuple[str, ...]]:
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
