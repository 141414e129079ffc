"""A Redis server for the tests: started on 127.0.0.1, in a temporary folder, stopped at the end."""

import os
import shutil
import signal
import socket
import subprocess
import tempfile
from pathlib import Path

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from core_support.waits import eventually

_ROOT = Path(__file__).parents[4]
_TARGET = Path(os.environ.get("CARGO_TARGET_DIR", _ROOT / "target"))
_NO_SERVER = (
    "no Redis server here; on Debian and Ubuntu: make redis; elsewhere put redis-server on the PATH"
)


def find_program():
    """Returns the path of redis-server, or None. BATCHQUEUE_REDIS_SERVER names another one."""
    if given := os.environ.get("BATCHQUEUE_REDIS_SERVER"):
        return given
    unpacked = _TARGET.resolve() / "redis/usr/bin/redis-server"
    return shutil.which("redis-server") or (str(unpacked) if unpacked.exists() else None)


def library_path():
    """Returns the folders of the libraries that `make redis` unpacked with the server."""
    return ":".join(map(str, _TARGET.resolve().glob("redis/usr/lib/*-linux-gnu")))


class RedisServer:
    """A server on a free port, which stays the same after a restart.

    `durable` servers write each change to the disk before they reply, so a kill loses nothing. With
    a file of settings for it, it is a sentinel.
    """

    def __init__(self, folder, *options, durable=False, sentinel=None, port=None):
        self._program = find_program()
        self._folder = Path(folder)
        self._process = None
        self._options = ["--save", "", *options] if sentinel is None else [*options, "--sentinel"]
        self._first = [] if sentinel is None else [str(sentinel)]
        if durable:
            self._options += ["--appendonly", "yes", "--appendfsync", "always"]
        self.port = port or free_port()
        self.url = f"redis://127.0.0.1:{self.port}"

    def start(self):
        """Starts it, and returns when it answers."""
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    *(self._program, *self._first, "--port", str(self.port)),
                    *("--bind", "127.0.0.1", "--dir", str(self._folder), *self._options),
                ],
                cwd=self._folder,
                env={**os.environ, "LD_LIBRARY_PATH": library_path()},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        eventually(self._answers, f"Redis answers; its log is {self._folder / 'log'}")

    def _answers(self):
        assert self._process.poll() is None, (self._folder / "log").read_text()
        try:
            with self.client(socket_timeout=1, retry=Retry(NoBackoff(), 0)) as client:
                return client.ping()
        except redis.AuthenticationError:
            return True
        except redis.RedisError:
            return False

    def kill(self):
        """Ends it as a crash would."""
        self._process.kill()
        self._process.wait()

    def restart(self):
        """Kills it and starts it again, with what it had on the disk."""
        self.kill()
        self.start()

    def pause(self):
        """Lets it answer nothing until `resume`."""
        self._process.send_signal(signal.SIGSTOP)

    def resume(self):
        """Ends a pause."""
        self._process.send_signal(signal.SIGCONT)

    def stop(self):
        """Ends it, if it runs."""
        if self._process is not None and self._process.poll() is None:
            self.resume()
            self.kill()

    def client(self, **options):
        """Returns a client of redis-py."""
        return redis.Redis(port=self.port, host="127.0.0.1", **options)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def skip_without_server():
    """Skips the test if there is no server, or fails it in CI."""
    if find_program() is None:
        (pytest.fail if os.environ.get("CI") else pytest.skip)(_NO_SERVER)


@pytest.fixture(scope="session")
def redis_server_of_session():
    skip_without_server()
    with tempfile.TemporaryDirectory(prefix="batchqueue-redis-") as folder:
        server = RedisServer(folder)
        server.start()
        yield server
        server.stop()


@pytest.fixture
def redis_server(redis_server_of_session):
    """A server that holds nothing, for a test that does not end it."""
    with redis_server_of_session.client() as client:
        client.flushall()
        client.script_flush()
    return redis_server_of_session


@pytest.fixture
def durable_server(tmp_path):
    """A server for one test, which loses nothing when it is killed."""
    skip_without_server()
    server = RedisServer(tmp_path, durable=True)
    server.start()
    yield server
    server.stop()
