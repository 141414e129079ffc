"""What it costs to have the package: the time of `import batchqueue`, and the size of the wheel."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = """
import sys, time
began = time.perf_counter()
import batchqueue
took = time.perf_counter() - began
heavy = [name for name in ("numpy", "pyarrow", "pandas", "pyspark", "asyncio") if name in sys.modules]
print(took * 1e3, *heavy)
"""


def import_ms() -> tuple[float, list[str]]:
    """Milliseconds in a new interpreter, and which large packages it loaded."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True
    )
    took, *heavy = done.stdout.split()
    return float(took), heavy


def wheel_mb() -> float:
    """Megabytes of the wheel in dist/."""
    (wheel,) = (ROOT / "dist").glob("*.whl")
    return wheel.stat().st_size / 1e6
