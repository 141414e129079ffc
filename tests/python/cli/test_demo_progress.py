"""What the demo shows while a step runs: never silence, in a terminal or elsewhere."""

import io
import threading

import pytest
from rich.console import Console

from batchqueue.cli import demo_report as progress

WAIT_S = 60


class Lines(io.StringIO):
    """A file that reports when its third line has been written."""

    def __init__(self) -> None:
        super().__init__()
        self.has_three = threading.Event()

    def write(self, text: str) -> int:
        written = super().write(text)
        if self.getvalue().count("\n") >= 3:
            self.has_three.set()
        return written


def test_step_prints_its_time_again_and_again_without_a_terminal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(progress, "_LINE_INTERVAL_S", 0.01)
    output = Lines()
    with progress.step(Console(file=output), "starting Spark"):
        assert output.has_three.wait(WAIT_S)
    first, second, *_ = output.getvalue().splitlines()
    assert first == "starting Spark ..."
    assert second.startswith("starting Spark ... ")
    assert second.endswith(" s")


def test_step_that_raises_prints_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "_LINE_INTERVAL_S", 0.01)
    output = io.StringIO()
    with (
        pytest.raises(KeyboardInterrupt),
        progress.step(Console(file=output), "starting Spark"),
    ):
        raise KeyboardInterrupt
    assert not [thread for thread in threading.enumerate() if thread.name == "demo-progress"]


def test_step_shows_a_spinner_in_a_terminal() -> None:
    output = io.StringIO()
    console = Console(file=output, force_terminal=True, width=80)
    with progress.step(console, "starting Spark"):
        pass
    assert "starting Spark" in output.getvalue()
    assert "0:00:00" in output.getvalue()
    assert "starting Spark ..." not in output.getvalue()
