"""`ChildProcess`: a process of `run --workers N`, and its successors."""

import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence

from batchqueue.cli.groups.link import Report, read_report
from batchqueue.cli.groups.restarts import Restarts

_SAID_TO_END = (-signal.SIGTERM, -signal.SIGINT)


class ChildProcess:
    """A process of the supervisor.

    Attributes:
        number: Its number, from 1.
        popen: The process; None before its first start.
        restart_at: When it is started again, by the monotonic clock; None if it is not to be.
        report: The last report.
        code: The last exit code, negative for a signal; None while it runs.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self.popen: subprocess.Popen[bytes] | None = None
        self.restart_at: float | None = None
        self.report = Report()
        self.code: int | None = None
        self._restarts = Restarts()
        self._link: socket.socket | None = None
        self._started_at = 0.0

    @property
    def is_running(self) -> bool:
        """Whether the process has not ended, as of the last `poll`."""
        return self.popen is not None and self.code is None

    def start(self, arguments: Sequence[str], environment: dict[str, str]) -> None:
        """Start it.

        Args:
            arguments: Those of `batchqueue groups run`.
            environment: The variables of its environment.
        """
        self._link, other = socket.socketpair()
        with other:
            # -P: a file in the current directory cannot take the place of this package. The
            # process group: Ctrl-C in a terminal would reach the process twice, and the second
            # signal gives up what is in hand.
            self.popen = subprocess.Popen(
                [
                    *(sys.executable, "-P", "-m", "batchqueue", "groups", "run"),
                    f"--supervisor-link={other.fileno()}",
                    *arguments,
                ],
                pass_fds=[other.fileno()],
                stdin=subprocess.DEVNULL,
                env=environment,
                process_group=0,
            )
        self.code, self.restart_at, self._started_at = None, None, time.monotonic()

    def poll(self) -> bool:
        """Check on it, and return whether it has ended since the last call."""
        if self.popen is None or not self.is_running or self.popen.poll() is None:
            return False
        self.code = self.popen.returncode
        assert self._link is not None
        self.report = read_report(self._link)
        return True

    def terminate(self) -> None:
        """Send SIGTERM, and start it no more."""
        self.restart_at = None
        if self.is_running and self.popen is not None:
            self.popen.terminate()

    def restart_later(self) -> float:
        """Plan the next start, and return the seconds until then."""
        now = time.monotonic()
        wait_s = self._restarts.next(now - self._started_at)
        self.restart_at = now + wait_s
        return wait_s

    def ended_well(self, *, was_stopped: bool) -> bool:
        """Whether its last end was a good one.

        Args:
            was_stopped: Whether it was sent SIGTERM: one that has no worker yet dies of it.
        """
        return self.code == 0 or (was_stopped and self.code in _SAID_TO_END)

    def end(self) -> str:
        """Return how it ended, as text."""
        assert self.popen is not None
        who = f"process {self.number} (pid {self.popen.pid})"
        if self.code is None or self.code >= 0:
            return f"{who} ended with exit code {self.code}"
        return f"{who} was ended by {signal.Signals(-self.code).name}"
