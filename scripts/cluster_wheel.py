"""Builds, audits and tries a wheel for all machines of a cluster. `make cluster-wheel` runs it.

The wheel is for CPython 3.11 and later on Linux, x86_64, glibc 2.17 and later: zig links against
the symbols of that glibc, whatever this machine has. The wheel is tried in a fresh environment,
without Rust.
"""

import os
import re
import subprocess
import sys
import venv
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TARGET = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
OUT = TARGET / "cluster-wheel"
CACHE = TARGET / "zig-cache"
TAG = "manylinux_2_17_x86_64"
BIN = Path(sys.executable).parent


def run(*command: object, env: dict[str, str] | None = None) -> str:
    """Run a command and return its output; exit with the output if it fails."""
    words = [str(word) for word in command]
    ended = subprocess.run(
        words,
        cwd=ROOT,
        env=env,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
    )
    if ended.returncode != 0:
        sys.exit(
            f"{ended.stdout}\ncluster-wheel: failed with {ended.returncode}: {' '.join(words)}"
        )
    return ended.stdout


def build() -> Path:
    """Build the wheel and return its path."""
    for old in OUT.glob("*.whl"):
        old.unlink()
    path = f"{BIN}{os.pathsep}{os.environ['PATH']}"
    caches = {"CARGO_ZIGBUILD_CACHE_DIR": str(CACHE), "ZIG_GLOBAL_CACHE_DIR": str(CACHE)}
    options = ["--release", "--compression-level", "9", "--locked", "--out", OUT]
    options += ["--zig", "--compatibility", "manylinux2014"]
    run(BIN / "maturin", "build", *options, env={**os.environ, **caches, "PATH": path})
    (wheel,) = OUT.glob("*.whl")
    return wheel


def audit_abi(wheel: Path) -> str:
    """Check that the wheel uses only the stable ABI of the Python in its name."""
    if "-cp311-abi3-" not in wheel.name:
        sys.exit(f"cluster-wheel: {wheel.name} is not for the stable ABI of Python 3.11")
    shown = " ".join(run(BIN / "abi3audit", "--strict", "--summary", wheel).split())
    clean = "1 extensions scanned; 0 ABI version mismatches and 0 ABI violations found"
    if clean not in shown:
        sys.exit(f"cluster-wheel: {wheel.name} is not for the stable ABI:\n{shown}")
    return clean


def audit_tag(wheel: Path) -> str:
    """Check that the wheel runs with the glibc of its tag."""
    shown = " ".join(run(BIN / "auditwheel", "show", wheel).split())
    found = re.search(r'platform tag: "([^"]+)"', shown)
    if found is None or found[1] != TAG or TAG not in wheel.name:
        sys.exit(f"cluster-wheel: {wheel.name} is not {TAG}:\n{shown}")
    return found[1]


def install(wheel: Path) -> dict[str, str]:
    """Install the wheel and pyarrow into an empty environment; return the variables to use it."""
    folder = OUT / "venv"
    venv.create(folder, clear=True, with_pip=True)
    bare = {"PATH": str(folder / "bin"), "HOME": str(folder), "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    kept = {name: value for name, value in os.environ.items() if name.startswith(("PIP_", "SSL_"))}
    python = folder / "bin" / "python"
    run(
        python,
        "-m",
        "pip",
        "install",
        "--quiet",
        wheel,
        f"pyarrow=={version('pyarrow')}",
        env=kept | bare,
    )
    return bare


def main() -> None:
    """Run the steps and print a line for each; the first failure ends the script."""
    print("cluster-wheel: building ...", flush=True)
    wheel = build()
    print(f"built:      {wheel} ({wheel.stat().st_size / 1e6:.1f} MB)", flush=True)
    print(f"abi3audit:  {audit_abi(wheel)}", flush=True)
    print(f"auditwheel: {audit_tag(wheel)}", flush=True)
    bare = install(wheel)
    print(f"installed:  {bare['HOME']}", flush=True)
    print(run(Path(bare["PATH"]) / "python", ROOT / "scripts/try_wheel.py", env=bare), end="")


if __name__ == "__main__":
    main()
