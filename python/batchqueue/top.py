"""The live queues of a process, for `batchqueue top`."""

import atexit
import contextlib
import json
import os
import socket
import stat
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from batchqueue import _core
from batchqueue.base.background_log import BackgroundLog
from batchqueue.exceptions import ConfigError
from batchqueue.queues.queue import live_stats

__all__ = ["serve_top"]


# The location of the sockets of a user's processes.


def socket_folder() -> Path:
    """Return the folder of the sockets; it is created on demand, private to its user.

    It is `batchqueue` in the user's runtime directory, `XDG_RUNTIME_DIR`, or `batchqueue-UID` in
    the directory for temporary files if there is none.

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
    """Return the numbers of the processes that have a socket, running or not, in order."""
    names = (path.stem for path in socket_folder().glob("*.sock"))
    return sorted(int(name) for name in names if name.isdigit())


# Answers to `batchqueue top`: only after `serve_top`, and only to the same user.


_log = BackgroundLog("batchqueue")
_lock = threading.Lock()
_open: dict[int, socket.socket] = {}  # by process: this one's, or after a fork nothing

REPLY_S = 5.0
"""The time limit for a reader to take a reply, in seconds."""


def serve_top() -> Path:
    """Let `batchqueue top` show the queues of this process.

    Opens a Unix socket with the mode 0600 in the user's runtime directory, which is removed when
    the process exits. A daemon thread answers with the statistics of every live queue, and reads
    nothing. A second call does nothing. A forked child does not answer until it calls this as well.

    Returns:
        The path of the socket.

    Raises:
        ConfigError: The socket cannot be opened, or another user could write to its folder.
    """
    _core.forget_parent()
    process = os.getpid()
    path = socket_of(process)
    with _lock:
        if process in _open:
            return path
        server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        # A reader removes a socket that refuses it, so the socket is named only when it is ready.
        unready = path.with_suffix(".new")
        try:
            # A killed process with this number may have left a socket.
            unready.unlink(missing_ok=True)
            server.bind(str(unready))
            # The folder is private, so no other user can connect before this.
            unready.chmod(0o600)
            server.listen()
            unready.rename(path)
        except OSError as error:
            server.close()
            raise ConfigError(
                f"the socket {path} cannot be opened ({error}); set XDG_RUNTIME_DIR to a folder of "
                "this user with a short path"
            ) from error
        _open[process] = server
    threading.Thread(target=_answer, args=(server,), name="batchqueue-top", daemon=True).start()
    atexit.register(_remove, path, process)
    _log.info("batchqueue top shows the queues of process %s", process)
    return path


def _answer(server: socket.socket) -> None:
    while True:
        try:
            reader, _ = server.accept()
        except OSError:
            return
        with reader, contextlib.suppress(OSError):
            reader.settimeout(REPLY_S)
            try:
                text = reply()
            except Exception:
                # Keep answering later readers.
                _log.exception("batchqueue top: the queues cannot be read")
                continue
            reader.sendall(text)


def reply() -> bytes:
    """Return the reply to a reader: the process and its queues, as JSON."""
    queues = [stats.to_dict() for _, stats in live_stats()]
    command = " ".join(sys.orig_argv[1:])
    return json.dumps({"process": os.getpid(), "command": command, "queues": queues}).encode()


def _remove(path: Path, process: int) -> None:
    if os.getpid() == process:
        path.unlink(missing_ok=True)


def _forget() -> None:
    """In a forked child, close the parent's sockets."""
    _lock.release()
    for server in _open.values():
        server.close()
    _open.clear()


os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_forget)


# Requests to the user's processes for their queues.


@dataclass(frozen=True)
class ProcessReading:
    """The queues of one process at one moment.

    Attributes:
        process: Its number.
        command: The command line that started it.
        queues: For each queue, the result of `BatchQueueStats.to_dict`.
        read_at_s: When it was read, on the monotonic clock.
    """

    process: int
    command: str
    queues: list[dict[str, Any]]
    read_at_s: float


def read_process(process: int) -> ProcessReading | None:
    """Ask one process. Returns None if it has ended, and removes its stale socket."""
    path = socket_of(process)
    parts = []
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
            client.settimeout(REPLY_S)
            client.connect(str(path))
            while part := client.recv(1 << 16):
                parts.append(part)
    except FileNotFoundError:
        return None
    except ConnectionRefusedError:
        path.unlink(missing_ok=True)
        return None
    except OSError:
        return None
    try:
        found = json.loads(b"".join(parts))
    except ValueError:
        return None  # it ended while answering
    return ProcessReading(found["process"], found["command"], found["queues"], time.monotonic())


def read_all(only: int | None = None) -> list[ProcessReading]:
    """Ask all processes that have a socket, or only one of them."""
    asked = processes() if only is None else [only]
    readings = [read_process(process) for process in asked]
    return [reading for reading in readings if reading is not None]
