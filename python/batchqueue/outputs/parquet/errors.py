"""Turns errors of files and of Arrow into store errors: temporary or not, and with a remedy."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from batchqueue.outputs.store import StoreError, StoreUnavailableError

_TEMPORARY = {
    errno.EAGAIN,
    errno.EBUSY,
    errno.ESTALE,
    errno.ETIMEDOUT,
    errno.EHOSTDOWN,
    errno.EHOSTUNREACH,
    errno.ENETUNREACH,
}
"""Errors of shared file systems that end when their server is back."""

_REMEDIES = {
    errno.ENOSPC: "make room on the disk",
    errno.EDQUOT: "make room on the disk, or have the quota raised",
    errno.EACCES: "let this user write to the directory and to what is in it",
    errno.EPERM: "let this user write to the directory and to what is in it",
    errno.EROFS: "let this user write to the directory: it is on a read-only file system",
    errno.ENOENT: "its parent directory must exist, and others must not remove its files",
    errno.ENOLCK: "use a file system with locks (flock) that hold between machines",
    errno.EOPNOTSUPP: "use a file system with locks (flock) that hold between machines",
    errno.ENOTDIR: "the path belongs to something else: choose another one",
    errno.EEXIST: "the path belongs to something else: choose another one",
}

_RESTORE = "check the disk, and restore what is damaged from a copy"


@contextmanager
def directory_errors(directory: Path) -> Iterator[None]:
    """Turn the errors of a block into those of the store in a directory."""
    import pyarrow as pa

    try:
        yield
    except (OSError, pa.ArrowException, OverflowError, UnicodeError) as error:
        kind, remedy = (
            StoreError,
            "check the metrics: values fit their columns, and text is valid Unicode",
        )
        if isinstance(error, OSError):
            kind = StoreUnavailableError if error.errno in _TEMPORARY else StoreError
            remedy = _REMEDIES.get(error.errno or 0, _RESTORE)
        elif isinstance(error, pa.ArrowException):
            remedy = _RESTORE
        raise kind(f"cannot use the store {directory}: {error}; {remedy}") from error
