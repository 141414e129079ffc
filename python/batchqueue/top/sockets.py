"""Where the sockets of a user's processes are."""

import os
import stat
import tempfile
from pathlib import Path

from batchqueue.exceptions import ConfigError


def socket_folder() -> Path:
    """Return the folder of the sockets, which is created on demand for its user alone.

    It is `batchqueue` in the user's runtime directory, `XDG_RUNTIME_DIR`; without one, it is
    `batchqueue-UID` in the folder of temporary files.

    Raises:
        ConfigError: Another user could write there.
    """
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    user = os.getuid()
    folder = (
        Path(runtime) / "batchqueue"
        if runtime
        else Path(tempfile.gettempdir()) / f"batchqueue-{user}"
    )
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
    except OSError as error:
        raise ConfigError(
            f"the folder {folder} of the sockets cannot be used ({error}); set XDG_RUNTIME_DIR to "
            "a folder of this user"
        ) from error
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != user or found.st_mode & 0o077:
        raise ConfigError(
            f"the folder {folder} of the sockets is not for user {user} alone; remove it, or set "
            "XDG_RUNTIME_DIR to a folder of this user"
        )
    return folder


def socket_of(process: int) -> Path:
    """Return the path of the socket of a process."""
    return socket_folder() / f"{process}.sock"


def processes() -> list[int]:
    """Return the processes that have a socket, running or not, by number."""
    names = (path.stem for path in socket_folder().glob("*.sock"))
    return sorted(int(name) for name in names if name.isdigit())
