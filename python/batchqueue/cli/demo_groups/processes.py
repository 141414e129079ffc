"""`ProcessWorkers`: each worker is a process, as with `batchqueue groups run`."""

import signal
import socket
import subprocess
import sys
import time
from types import TracebackType
from typing import Self

from batchqueue.cli.demo_groups import program
from batchqueue.cli.demo_groups.folder import RunFolder
from batchqueue.cli.demo_groups.program import GRACE_S, WorkerSettings
from batchqueue.cli.demo_groups.workers import WorkerEndedError

_PATIENCE_S = GRACE_S + 5.0


class ProcessWorkers:
    """Workers in processes. When the block ends, so do all that still run.

    Each has a link to this process, and leaves when this process is gone.
    """

    def __init__(self, folder: RunFolder, url: str) -> None:
        """Start none yet.

        Args:
            folder: The folder of the run.
            url: The server.
        """
        self._folder = folder
        self._url = url
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._links: list[socket.socket] = []

    def start(self, name: str) -> None:
        """Start a process."""
        folder = self._folder
        journal = str(folder.journal(name))
        settings = WorkerSettings(name, self._url, str(folder.database), journal)
        link, other = socket.socketpair()
        self._links.append(link)
        with other, folder.log(name).open("wb") as log:
            # -P: a file in the current directory cannot take the place of this package. The
            # process group: Ctrl-C is for the demo, which then ends its workers.
            self._processes[name] = subprocess.Popen(
                [sys.executable, "-P", "-m", program.__name__, str(other.fileno())],
                pass_fds=[other.fileno(), folder.lock.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=settings.environment(),
                process_group=0,
            )

    def kill(self, name: str) -> None:
        """Send SIGKILL to a process."""
        process = self._processes.pop(name)
        process.kill()
        process.wait()

    def check(self) -> None:
        """Raise WorkerEndedError if a process has ended."""
        for name, process in self._processes.items():
            if process.poll() is not None:
                raise self._ended(name, process)

    def leave(self) -> None:
        """Send SIGTERM to all, and wait for their ends.

        Raises:
            WorkerEndedError: One ended with an error, or did not end.
        """
        self._terminate()
        for name, process in self._processes.items():
            if process.poll() != 0:
                raise self._ended(name, process)
        self._processes.clear()

    def __enter__(self) -> Self:
        """Return it."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End what still runs."""
        try:
            self._terminate()
        finally:
            for process in self._processes.values():
                process.kill()
                process.wait()
            for link in self._links:
                link.close()

    def _terminate(self) -> None:
        for process in self._processes.values():
            process.send_signal(signal.SIGTERM)
        end = time.monotonic() + _PATIENCE_S
        for process in self._processes.values():
            try:
                process.wait(max(0.0, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                return

    def _ended(self, name: str, process: "subprocess.Popen[bytes]") -> WorkerEndedError:
        log = self._folder.log(name)
        said = log.read_text(errors="replace").strip().splitlines()
        how = (
            "did not end in time" if process.returncode is None else f"ended with {_code(process)}"
        )
        last = f"; the last line of {log}: {said[-1]}" if said else ""
        return WorkerEndedError(f"{name} (pid {process.pid}) {how}{last}")


def _code(process: "subprocess.Popen[bytes]") -> str:
    code = process.returncode
    return f"exit code {code}" if code >= 0 else signal.Signals(-code).name
