"""Run a test binary of Rust, and end it when one of its tests hangs: cargo's runner in `make`.

libtest has no deadline. It only says after a minute that a test is still running, and with a single
test thread it prints the test's name before the test starts. This runner passes the binary's output
on, reads both from it, and after BATCHQUEUE_TEST_DEADLINE_S seconds names the test, shows where the
binary's threads wait, and ends the binary.

    cargo test --config 'target."cfg(all())".runner = ["python3", "scripts/deadline.py"]'
"""

import os
import re
import selectors
import signal
import subprocess
import sys
import time
from pathlib import Path

DEADLINE_S = float(os.environ.get("BATCHQUEUE_TEST_DEADLINE_S", "300"))
"""A hundred times what the slowest test takes; the loom models get more in the Makefile."""

STARTED = re.compile(r"^test (.+?)(?: - should panic)? \.\.\. $")
RUNNING = re.compile(r"^test (.+?)(?: - should panic)? has been running for over (\d+) seconds$")
ENDED = re.compile(r"^test (.+?)(?: - should panic)? \.\.\. .")


class Tests:
    """Which tests are running, by what libtest prints about them."""

    def __init__(self) -> None:
        self._since: dict[str, float] = {}
        self._line = ""

    def read(self, text: str, now: float) -> None:
        """Take what was printed at `now`."""
        *lines, self._line = (self._line + text).split("\n")
        for line in lines:
            if found := RUNNING.match(line):
                self._since.setdefault(found[1], now - float(found[2]))
            elif found := ENDED.match(line):
                self._since.pop(found[1], None)
        if found := STARTED.match(self._line):
            self._since.setdefault(found[1], now)

    def overdue(self, now: float) -> list[str]:
        """Return the tests that have run for longer than the deadline."""
        return [name for name, since in self._since.items() if now - since > DEADLINE_S]


def threads(pid: int) -> str:
    """Return a line per thread of a process: its name, its state, and what it waits in."""
    lines = []
    for task in sorted(Path(f"/proc/{pid}/task").glob("*"), key=lambda task: int(task.name)):
        try:
            state = (task / "stat").read_text().rpartition(")")[2].split()[0]
            waits = (task / "wchan").read_text().strip("0") or "-"
            lines.append(f"    {(task / 'comm').read_text().strip():16} {state} {waits}")
        except OSError:
            continue  # it has ended, or the system does not show it
    return "\n".join(lines)


def main() -> int:
    """Run the command line's binary; return its exit status, or 1 after a deadline."""
    process = subprocess.Popen(sys.argv[1:], stdout=subprocess.PIPE)
    # Ctrl-C ends the binary, and the end of its output this loop.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    assert process.stdout is not None
    tests = Tests()
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while True:
            if selector.select(timeout=1):
                printed = os.read(process.stdout.fileno(), 65536)
                if not printed:
                    break
                sys.stdout.buffer.write(printed)
                sys.stdout.buffer.flush()
                tests.read(printed.decode(errors="replace"), time.monotonic())
            if overdue := tests.overdue(time.monotonic()):
                print(
                    f"\ndeadline: not ended after {DEADLINE_S:.0f} s: {', '.join(overdue)}\n"
                    f"threads of {process.args[0]}:\n{threads(process.pid)}",
                    file=sys.stderr,
                    flush=True,
                )
                process.kill()
                process.wait()
                return 1
    status = process.wait()
    if status < 0:
        # As the binary ended, so that cargo names the signal.
        signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    return status


if __name__ == "__main__":
    sys.exit(main())
