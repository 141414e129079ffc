"""Programs that send orders from their own process, and what they have noted."""

import json
import signal
import subprocess
import sys
from contextlib import contextmanager

from core_support.waits import WAIT_S, eventually
from programs import EXPORTING_PROGRAM


class Program:
    """A running program.

    Attributes:
        process: Its process.
    """

    def __init__(self, folder, number, settings):
        self._log = folder / f"log {number}"
        self._log.touch()
        self._errors = folder / f"errors {number}"
        settings = {"log": str(self._log), **settings}
        with self._errors.open("w") as errors:
            self.process = subprocess.Popen(
                [sys.executable, EXPORTING_PROGRAM, json.dumps(settings)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )

    def noted(self, kind):
        """Returns the batches of one kind of line of its log."""
        lines = self._log.read_text().splitlines(keepends=True)
        noted = [json.loads(line) for line in lines if line.endswith("\n")]
        return [ids for each, ids in noted if each == kind]

    def done(self):
        """Returns the numbers of the orders that the exporter reported as delivered."""
        return {number for ids in self.noted("done") for number in ids}

    def eventually_done(self, more):
        """Waits until so many more orders are delivered."""
        target = len(self.done()) + more
        eventually(lambda: len(self.done()) >= target or self.has_ended(), "the delivery")
        assert not self.has_ended(), self._errors.read_text()

    def eventually_failed(self, more):
        """Waits until so many more attempts have failed."""
        target = len(self.noted("failed")) + more
        eventually(lambda: len(self.noted("failed")) >= target or self.has_ended(), "a failure")
        assert not self.has_ended(), self._errors.read_text()

    def has_ended(self):
        """Returns whether it is not running any more."""
        return self.process.poll() is not None

    def killed(self):
        """Waits until SIGKILL has ended it."""
        self.process.communicate(timeout=WAIT_S)
        assert self.process.returncode == -signal.SIGKILL, self._errors.read_text()

    def ended(self, gives_up=False):
        """Waits for its end; returns what it printed, if all orders have an outcome.

        Args:
            gives_up: Whether it abandons orders, because its time runs out.
        """
        out, _ = self.process.communicate(timeout=2 * WAIT_S)
        assert self.process.returncode == 0, self._errors.read_text()
        result = json.loads(out)
        assert bool(result["abandoned"]) is gives_up
        settled = result["consumed"] + result["dead"] + result["abandoned"]
        assert len(result["accepted"]) == settled
        assert len(result["letters"]) == result["dead"]
        return result

    def terminated(self, gives_up=False):
        """Sends SIGTERM, and waits as `ended` does."""
        self.process.send_signal(signal.SIGTERM)
        return self.ended(gives_up)


@contextmanager
def starting(folder):
    """Yields a function that starts a program; at the end none is left."""
    programs = []

    def start(**settings):
        programs.append(Program(folder, len(programs), settings))
        return programs[-1]

    try:
        yield start
    finally:
        for program in programs:
            program.process.kill()
            program.process.wait(WAIT_S)
            program.process.stdout.close()
