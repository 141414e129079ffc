"""A slice of `make stress`, in a new interpreter because it changes what signals do."""

import subprocess
import sys

from programs import STRESS


def test_five_seconds_of_stress_keep_every_promise():
    command = [sys.executable, str(STRESS), "--seconds", "5"]
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=145, check=False
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    seed, summary = done.stdout.splitlines()
    assert seed.startswith("seed ")
    assert "every item accounted for and in order" in summary
    happened = {
        name for count, name in (part.split(" ", 1) for part in summary.split(": ")[2].split(", "))
    }
    assert happened >= {
        "produce",
        "produce_many",
        "add",
        "remove",
        "type",
        "rebalance",
        "collect",
        "signal",
    }, summary
