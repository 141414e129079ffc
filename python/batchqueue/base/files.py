"""Files that survive a crash of the machine, and locks on files, which hold between processes."""

import fcntl
import os
from pathlib import Path


def write_durably(path: Path, content: bytes | memoryview) -> None:
    """Write a file and return once its content is on the disk; its folder's entry may not be."""
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def sync(path: Path) -> None:
    """Return once the content of a file, or the entries of a folder, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def try_lock(path: Path) -> int | None:
    """Take the lock of a file, which is created on demand and never deleted.

    Returns:
        The descriptor that `unlock` takes; None if the lock is not free, or if the path no longer
        leads to the locked file. The lock ends with this process and its children at the latest.

    Raises:
        OSError: The file cannot be opened for writing, or the file system has no locks.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(descriptor), path.stat()):
            return descriptor
    except (BlockingIOError, FileNotFoundError):
        pass
    except BaseException:
        os.close(descriptor)
        raise
    os.close(descriptor)
    return None


def unlock(descriptor: int) -> None:
    """Release a lock: closing the file would not, while a forked child has it open."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_UN)
    finally:
        os.close(descriptor)
