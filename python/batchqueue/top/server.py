"""A process answers `batchqueue top`: only when asked to, and only its own user."""

import atexit
import contextlib
import json
import os
import socket
import sys
import threading
from pathlib import Path

from batchqueue import _core
from batchqueue._background_log import BackgroundLog
from batchqueue._live_queues import live_stats
from batchqueue.exceptions import ConfigError
from batchqueue.top.sockets import socket_of

_log = BackgroundLog("batchqueue")
_lock = threading.Lock()
_open: dict[int, socket.socket] = {}  # by process: one, or after a fork none of this process

REPLY_S = 5.0
"""How long a reader may take for a reply, in seconds."""


def serve_top() -> Path:
    """Let `batchqueue top` show the queues of this process.

    Opens a Unix socket with the mode 0600 in the user's runtime directory, which is removed at the
    exit of the process. A daemon thread answers with the statistics of every live queue, and reads
    nothing. A second call does nothing. A forked child does not answer until it calls this itself.

    Returns:
        The path of the socket.

    Raises:
        ConfigError: The socket cannot be opened, or another user could write into its folder.
    """
    _core.forget_parent()
    process = os.getpid()
    path = socket_of(process)
    with _lock:
        if process in _open:
            return path
        server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        # A reader removes a socket that refuses it, so it gets its name when it is ready.
        unready = path.with_suffix(".new")
        try:
            # A process of this number that was killed may have left one.
            unready.unlink(missing_ok=True)
            server.bind(str(unready))
            # The folder admits no other user meanwhile.
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
                # The next reader gets an answer again.
                _log.exception("batchqueue top: the queues cannot be read")
                continue
            reader.sendall(text)


def reply() -> bytes:
    """Return what a reader gets: the process and its queues, as JSON."""
    queues = [stats.to_dict() for _, stats in live_stats()]
    command = " ".join(sys.orig_argv[1:])
    return json.dumps({"process": os.getpid(), "command": command, "queues": queues}).encode()


def _remove(path: Path, process: int) -> None:
    if os.getpid() == process:
        path.unlink(missing_ok=True)


def _forget() -> None:
    """In a forked child: the sockets are the parent's."""
    _lock.release()
    for server in _open.values():
        server.close()
    _open.clear()


os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_forget)
