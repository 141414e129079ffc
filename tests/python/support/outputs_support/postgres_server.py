"""A PostgreSQL server for the tests: started in a temporary folder, stopped at the end.

A fixture for several folders of tests, which import `postgres_server` from here.
"""

import os
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from outputs_support.users import unprivileged

_ROOT = Path(__file__).parents[4]
_TARGET = Path(os.environ.get("CARGO_TARGET_DIR", _ROOT / "target"))
_NO_SERVER = (
    "no PostgreSQL server here; on Debian and Ubuntu: make postgres;"
    " elsewhere put initdb on the PATH"
)


def find_binaries() -> Path | None:
    """Returns the folder of `initdb` and `pg_ctl`: the newest of the first place with any."""
    on_path = shutil.which("initdb")
    if on_path:
        return Path(on_path).resolve().parent
    for place in (Path("/"), _TARGET.resolve() / "postgres"):
        found = [path.parent for path in place.glob("usr/lib/postgresql/*/bin/initdb")]
        if found:
            return max(found, key=lambda folder: float(folder.parent.name))
    return None


class PostgresServer:
    """A server with the role `tester`, who may do everything, and a database of the same name.

    Attributes:
        port: Its port on 127.0.0.1, the same after a restart.
        password: Of the role.
    """

    password = "only for tests"

    def __init__(self, binaries: Path, folder: Path) -> None:
        """Makes a database cluster; it is not started.

        Args:
            binaries: Where `initdb` is.
            folder: Empty, and open to the user that the server runs as: root cannot run a server.
        """
        self._binaries = binaries
        self._folder = folder
        self._user: dict[str, Any] = {}
        if os.getuid() == 0:
            user = unprivileged()
            self._user = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
            os.chown(folder, user.pw_uid, user.pw_gid)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port: int = probe.getsockname()[1]
        password_file = folder / "password"
        password_file.write_text(self.password)
        password_file.chmod(0o644)
        self._run(
            "initdb",
            f"--pgdata={folder}/data",
            "--username=tester",
            f"--pwfile={password_file}",
            "--auth=scram-sha-256",
            "--encoding=UTF8",
            "--no-locale",
            "--no-sync",
        )

    def conninfo(self, **changes: str) -> str:
        """Returns the connection string of `tester`, with some keywords changed."""
        words: Mapping[str, str] = {
            "host": "127.0.0.1",
            "port": str(self.port),
            "user": "tester",
            "password": self.password,
            "dbname": "postgres",
            **changes,
        }
        return " ".join(f"{name}='{value}'" for name, value in words.items())

    def create_database(self, name: str) -> None:
        """Makes an empty database, in place of any of that name."""
        self._run("dropdb", "--if-exists", f"--maintenance-db={self._uri}", name)
        self._run("createdb", f"--maintenance-db={self._uri}", name)

    def start(self) -> None:
        """Starts it, and returns when it accepts connections."""
        options = (
            f"-c listen_addresses=127.0.0.1 -c port={self.port}"
            f" -c unix_socket_directories={self._folder}"
        )
        self._run(
            "pg_ctl",
            "start",
            "--wait",
            "--timeout=60",
            f"--log={self._folder}/log",
            f"--options={options}",
        )

    def stop(self, mode: str = "fast") -> None:
        """Stops it.

        Args:
            mode: "fast" as an administrator would; "immediate" as a crash: the next start recovers.
        """
        self._run("pg_ctl", "stop", "--wait", f"--mode={mode}")

    def freeze(self) -> None:
        """Has all its processes stand still; the system keeps their connections open."""
        postmaster = int((self._folder / "data" / "postmaster.pid").read_text().split()[0])
        for process in (postmaster, *children_of(postmaster)):  # first the one that starts others
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGSTOP)

    def thaw(self) -> None:
        """Has them continue."""
        postmaster = int((self._folder / "data" / "postmaster.pid").read_text().split()[0])
        for process in (*children_of(postmaster), postmaster):
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGCONT)

    def dump(self, schema: str) -> Path:
        """Dumps a schema as the documentation says; returns the file."""
        file = self._folder / f"{schema}.dump"
        dump = ("--format=custom", f"--schema={schema}", f"--file={file}")
        self._run("pg_dump", *dump, f"--dbname={self._uri}")
        return file

    def restore(self, file: Path) -> None:
        """Puts the schema of a dump in the place of the present one."""
        self._run("pg_restore", "--clean", "--if-exists", f"--dbname={self._uri}", str(file))

    @property
    def _uri(self) -> str:
        return f"postgresql://tester:{quote(self.password)}@127.0.0.1:{self.port}/postgres"

    def running(self) -> bool:
        """Returns whether it runs."""
        return self._run("pg_ctl", "status", check=False) == 0

    def _run(self, program: str, *arguments: str, check: bool = True) -> int:
        libraries = [str(folder) for folder in self._binaries.parents[3].glob("lib/*-linux-gnu")]
        with (self._folder / "output").open(
            "w+"
        ) as output:  # not a pipe, which the server would keep open
            ended = subprocess.run(
                [self._binaries / program, *arguments],
                cwd=self._folder,
                env={
                    "PATH": os.environ["PATH"],
                    "PGDATA": f"{self._folder}/data",
                    "LD_LIBRARY_PATH": ":".join(libraries),
                },
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                timeout=120,
                check=False,
                **self._user,
            )
            output.seek(0)
            text = output.read()
        log = self._folder / "log"
        if check and ended.returncode != 0:
            raise RuntimeError(f"{program}: {text}{log.read_text() if log.exists() else ''}")
        return ended.returncode


def children_of(parent: int) -> list[int]:
    """Returns the processes that a process has started and that live."""
    found = []
    for each in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has ended meanwhile
            if int(each.read_text().rpartition(")")[2].split()[1]) == parent:
                found.append(int(each.parent.name))
    return found


def started_server() -> Iterator[PostgresServer]:
    """Yields a running server; without one, skips the test, or fails it in CI."""
    binaries = find_binaries()
    if binaries is None:
        (pytest.fail if os.environ.get("CI") else pytest.skip)(_NO_SERVER)
    with tempfile.TemporaryDirectory(prefix="batchqueue-postgres-") as folder:
        server = PostgresServer(binaries, Path(folder))
        server.start()
        try:
            yield server
        finally:
            if server.running():
                server.stop("immediate")


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """One server for all tests of a session; a test that stops it starts it again."""
    yield from started_server()
