"""The link between the supervisor and a process: a pair of sockets.

The process ends in calm when the other end is gone, so no worker outlives a supervisor that was
killed. Before it ends, it sends a report.
"""

import json
import os
import signal
import socket
import threading
from contextlib import suppress
from dataclasses import asdict, dataclass

_MOST = 1 << 16


@dataclass(frozen=True)
class Report:
    """What a process sends before it ends.

    Attributes:
        handled: Records whose handler returned.
        dead: Records that were set aside.
        skipped: Records that failed and were skipped.
        unfinished: Records that were given up.
        is_final: Whether another process in its place would end in the same way.
    """

    handled: int = 0
    dead: int = 0
    skipped: int = 0
    unfinished: int = 0
    is_final: bool = False


def open_link(descriptor: int) -> socket.socket:
    """Take over the end of a process; SIGTERM is raised here when the supervisor is gone."""
    link = socket.socket(fileno=descriptor)
    link.set_inheritable(False)

    def watch() -> None:
        with suppress(OSError):
            link.recv(1)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, name="supervisor", daemon=True).start()
    return link


def send_report(link: socket.socket, report: Report) -> None:
    """Send the report, if the supervisor is there."""
    with suppress(OSError):
        link.sendall(json.dumps(asdict(report)).encode())


def read_report(link: socket.socket) -> Report:
    """Return the report of a process that has ended, and close the link."""
    with link:
        link.setblocking(False)
        try:
            return Report(**json.loads(link.recv(_MOST)))
        except (OSError, ValueError):
            return Report()  # it died before it could send one
