"""Asks the processes of this user for their queues."""

import json
import socket
import time
from dataclasses import dataclass
from typing import Any

from batchqueue.top.server import REPLY_S
from batchqueue.top.sockets import processes, socket_of


@dataclass(frozen=True)
class ProcessReading:
    """The queues of one process at one moment.

    Attributes:
        process: Its number.
        command: How it was started.
        queues: Of each queue what `BatchQueueStats.to_dict` returns.
        read_at_s: When it was read, by the monotonic clock.
    """

    process: int
    command: str
    queues: list[dict[str, Any]]
    read_at_s: float


def read_process(process: int) -> ProcessReading | None:
    """Ask one process. Returns None if it has ended, and removes the socket that it left."""
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
        return None  # it ended while it answered
    return ProcessReading(found["process"], found["command"], found["queues"], time.monotonic())


def read_all(only: int | None = None) -> list[ProcessReading]:
    """Ask all processes that have a socket, or one of them."""
    asked = processes() if only is None else [only]
    readings = [read_process(process) for process in asked]
    return [reading for reading in readings if reading is not None]
