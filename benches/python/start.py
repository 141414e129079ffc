"""The cost of the package: the time of its import and of its first class; the size of its wheel."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = """
import sys, time
began = time.perf_counter()
import batchqueue
took = time.perf_counter() - began
batchqueue.BatchQueue
loaded = time.perf_counter() - began
large = ("numpy", "pyarrow", "pandas", "pyspark", "asyncio")
heavy = [name for name in large if name in sys.modules]
print(took * 1e3, loaded * 1e3, *heavy)
"""


def import_ms() -> tuple[float, float, list[str]]:
    """Return milliseconds until `batchqueue` and until `BatchQueue` is there, and large packages.

    The package loads what a queue needs with the first name that needs it.

    The first call may compile the sources, which pip does when it installs the package.
    """
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": ""}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        capture_output=True,
        text=True,
        check=True,
        env=environment,
    )
    took, loaded, *heavy = done.stdout.split()
    return float(took), float(loaded), heavy


def wheel_mb(wheel: Path | None) -> float:
    """Return the megabytes of a wheel; None for that of `make wheel`, in dist."""
    if wheel is None:
        (wheel,) = (ROOT / "dist").glob("batchqueue_rs-*.whl")
    return wheel.stat().st_size / 1e6
