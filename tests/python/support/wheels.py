"""The wheel that tests install."""

import os
from pathlib import Path

from pages import ROOT

TARGET = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))


def local_wheel() -> Path:
    """Returns the wheel that `make test-python` built: `make wheel` with fewer optimizations."""
    wheels = sorted((TARGET / "local-wheel").glob("batchqueue_rs-*.whl"))
    assert wheels, f"{TARGET}/local-wheel has no wheel; build it with: make test-environment"
    return wheels[-1]
