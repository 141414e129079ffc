"""Run the tests of a Rust binary, each in a process and with a deadline: cargo's runner in `make`.

libtest runs all tests of a binary in one process, without a deadline. There, a test that hangs or
aborts takes the others with it; and loom models, which map and unmap a stack for each thread of
each execution, wait for each other's mappings. This runner starts a process per test, two at a time
per core, because many tests mostly wait. It shows the output of each test that fails. If a test
runs for BATCHQUEUE_TEST_DEADLINE_S seconds, it shows where its threads wait, and then kills it.

    cargo test --config 'target."cfg(all())".runner = ["python3", "scripts/deadline.py"]'
"""

import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import NamedTuple

DEADLINE_S = float(os.environ.get("BATCHQUEUE_TEST_DEADLINE_S", "300"))
"""A hundred times the duration of the slowest test; the loom models get more in the Makefile."""


class Ended(NamedTuple):
    """The result of a test; `failure` is None if it passed."""

    name: str
    printed: str
    failure: str | None


def list_tests(binary: str, options: list[str]) -> list[str]:
    """Return the names of the tests that the options select."""
    listing = [binary, *options, "--list", "--format", "terse"]
    printed = subprocess.run(listing, check=True, stdout=subprocess.PIPE, text=True).stdout
    return [line.removesuffix(": test") for line in printed.splitlines() if line.endswith(": test")]


def run_test(binary: str, flags: list[str], name: str) -> Ended:
    """Run a test to its end, or to its deadline."""
    command = [binary, *flags, "--test-threads=1", "--exact", name]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    )
    try:
        printed, _ = process.communicate(timeout=DEADLINE_S)
    except subprocess.TimeoutExpired:
        waits = threads(process.pid)
        process.kill()
        printed, _ = process.communicate()
        return Ended(
            name, f"{printed}\nthreads of {binary}:\n{waits}", f"not ended after {DEADLINE_S:.0f} s"
        )
    status = process.returncode
    return Ended(name, printed, None if status == 0 else f"status {status}")


def threads(pid: int) -> str:
    """Return a line per thread of a process: its name, its state, and what it waits in."""
    lines = []
    for task in sorted(Path(f"/proc/{pid}/task").glob("*"), key=lambda task: int(task.name)):
        try:
            state = (task / "stat").read_text().rpartition(")")[2].split()[0]
            waits = (task / "wchan").read_text().strip("0") or "-"
            lines.append(f"    {(task / 'comm').read_text().strip():16} {state} {waits}")
        except OSError:
            continue  # the thread has ended, or the system does not show it
    return "\n".join(lines)


def main() -> int:
    """Run the selected tests of the binary; return 101 if one fails, as libtest does."""
    binary, *options = sys.argv[1:]
    names = list_tests(binary, options)
    if not names:
        # The tests of rustdoc are not in the list.
        return subprocess.run(sys.argv[1:], check=False, timeout=DEADLINE_S).returncode
    # The filters have been applied.
    flags = [option for option in options if option.startswith("--") and option != "--skip"]
    print(f"\nrunning {len(names)} tests", flush=True)
    began, failed = time.monotonic(), []
    with ThreadPoolExecutor(2 * (os.cpu_count() or 1)) as pool:
        running = [pool.submit(run_test, binary, flags, name) for name in names]
        try:
            for ended in (test.result() for test in as_completed(running)):
                if "--nocapture" in flags:
                    print(ended.printed)
                print(f"test {ended.name} ... {ended.failure or 'ok'}", flush=True)
                if ended.failure:
                    failed.append(ended)
        except KeyboardInterrupt:
            pool.shutdown(cancel_futures=True)
            raise
    for ended in failed:
        print(f"\n---- {ended.name}: {ended.failure}\n{ended.printed}")
    print(
        f"\ntest result: {'FAILED' if failed else 'ok'}. {len(names) - len(failed)} passed; "
        f"{len(failed)} failed; finished in {time.monotonic() - began:.2f}s\n",
        flush=True,
    )
    return 101 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
