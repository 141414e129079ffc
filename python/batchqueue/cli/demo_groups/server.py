"""The Redis server of a run: on loopback, with its own port, password and folder."""

import re
import secrets
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from batchqueue.cli.demo_groups import keeper
from batchqueue.cli.demo_groups.folder import RunFolder
from batchqueue.exceptions import BatchQueueError
from batchqueue.groups.redis.client import OLDEST

HOW_TO_GET_ONE = (
    "to get one: apt install redis-server, dnf install redis, or brew install redis; any Redis "
    f"from {'.'.join(map(str, OLDEST))} on will do, or Valkey"
)

_PROGRAMS = ("redis-server", "valkey-server")
_VERSION = re.compile(r"v=(\d+)\.(\d+)(\.\d+)*")
_PATIENCE_S = 15.0
_POLL_S = 0.02
_TRIES = 3


class ServerMissingError(Exception):
    """There is no server that groups can use; the message says why."""


class ServerFailedError(BatchQueueError):
    """The server of the demo did not start."""


def find_program() -> tuple[str, str]:
    """Return the path of a server on the PATH, and its version.

    Raises:
        ServerMissingError: None is installed, or it is too old.
    """
    found = next(filter(None, map(shutil.which, _PROGRAMS)), None)
    if found is None:
        raise ServerMissingError(f"no {_PROGRAMS[0]} on the PATH")
    said = subprocess.run([found, "--version"], capture_output=True, text=True, check=False)
    version = _VERSION.search(said.stdout)
    if version is None:
        raise ServerMissingError(f"{found} --version names no version")
    if (int(version[1]), int(version[2])) < OLDEST:
        raise ServerMissingError(f"{found} is version {version[0][2:]}, which is too old")
    return found, version[0][2:]


@contextmanager
def running_server(program: str, folder: RunFolder) -> Iterator[str]:
    """Run a server while the block runs, and yield its URL; then remove its data.

    It listens on 127.0.0.1, on a free port, with a password that is made for this run.

    Args:
        program: The path of the server.
        folder: The folder of the run.

    Raises:
        ServerFailedError: It does not start; the message has the last lines of its log.
    """
    folder.server.mkdir(mode=0o700)
    try:
        # Another program may take the port before the server does.
        for tries_left in reversed(range(_TRIES)):
            url = _configure(folder)
            process = _start(program, folder)
            try:
                if _answers(process, url):
                    yield url
                    return
                if not tries_left:
                    log = folder.server_log.read_text(errors="replace").splitlines()[-3:]
                    raise ServerFailedError("\n".join([f"{program} did not start:", *log]))
            finally:
                _stop(process)
    finally:
        shutil.rmtree(folder.server, ignore_errors=True)


def _configure(folder: RunFolder) -> str:
    """Write the settings, which only this user can read, and return the URL."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    password = secrets.token_urlsafe()
    settings = {
        "bind": "127.0.0.1",
        "port": port,
        "requirepass": password,
        "dir": _quoted(folder.server),
        "appendonly": "yes",
        "save": '""',
        "maxmemory-policy": "noeviction",
    }
    text = "".join(f"{name} {value}\n" for name, value in settings.items())
    _settings_file(folder).write_text(text)
    return f"redis://:{password}@127.0.0.1:{port}"


def _settings_file(folder: RunFolder) -> Path:
    return folder.server / "redis.conf"


def _quoted(path: Path) -> str:
    escaped = str(path).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _start(program: str, folder: RunFolder) -> "subprocess.Popen[bytes]":
    with folder.server_log.open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-I", keeper.__file__, program, str(_settings_file(folder))],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            pass_fds=[folder.lock.fileno()],
            process_group=0,
        )


def _answers(process: "subprocess.Popen[bytes]", url: str) -> bool:
    """Wait until it answers, and return whether it does."""
    import redis
    from redis.backoff import NoBackoff
    from redis.retry import Retry

    end = time.monotonic() + _PATIENCE_S
    with redis.Redis.from_url(url, socket_timeout=1, retry=Retry(NoBackoff(), 0)) as client:
        while process.poll() is None and time.monotonic() < end:
            try:
                return bool(client.ping())
            except redis.RedisError:
                time.sleep(_POLL_S)
    return False


def _stop(process: "subprocess.Popen[bytes]") -> None:
    """Let the keeper end the server, and wait for both."""
    assert process.stdin is not None
    process.stdin.close()
    process.wait()
