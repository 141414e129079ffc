"""Draws what a slow handler does to two drain threads, with and without take-over.

Six classes, two drain threads. One class takes 1.6 s a batch, the others a few milliseconds. Both
runs have the same items at the same times; in the first, `takeover_after_ms` is an hour, so that
partitions stay with their thread. `make bench-python` draws the picture of the guide.
"""

import argparse
import dataclasses
import threading
import time
from pathlib import Path

from batchqueue import BatchQueue, BatchQueueConfig, PartitionPolicy, ThreadPolicy

SECONDS = 4.0
STEP = 0.01
REPORTS_AT = (0.5, 2.3)
REPORT_TAKES = 1.6
ITEMS_PER_STEP = 5
QUICK = 5
HOUR_MS = 3_600_000


@dataclasses.dataclass
class Call:
    """One call of a handler, in seconds since the start of the run."""

    thread: int
    start: float
    end: float
    waits: list[float]


@dataclasses.dataclass
class Run:
    """The calls of the slow handler and of the quick ones."""

    slow: list[Call]
    quick: list[Call]

    def waits(self) -> list[float]:
        """Return how long each quick item waited for its call, the shortest first."""
        return sorted(wait for call in self.quick for wait in call.waits)

    def waiting(self, at: float) -> int:
        """Return how many quick items waited at a moment."""
        return sum(
            call.start - wait <= at < call.start for call in self.quick for wait in call.waits
        )

    def threads(self) -> list[int]:
        """Return the threads, first that of the first slow call."""
        return list(dict.fromkeys(call.thread for call in (*self.slow, *self.quick)))


def run(takeover_after_ms: float) -> Run:
    """Put items in for `SECONDS`, and record every call."""
    result, lock = Run([], []), threading.Lock()
    types = [type(f"Quick{number}", (), {"__slots__": ("put_at",)}) for number in range(QUICK)]
    report = type("Report", (), {"__slots__": ("put_at",)})
    start = time.monotonic()

    def handler(takes: float, calls: list[Call]):
        def consume(batch):
            began = time.monotonic()
            waits = [began - item.put_at for item in batch]
            time.sleep(takes)
            ended = time.monotonic() - start
            with lock:
                calls.append(Call(threading.get_ident(), began - start, ended, waits))

        return consume

    def put(item_type):
        item = item_type()
        item.put_at = time.monotonic()
        queue.produce(item)

    config = BatchQueueConfig(
        threads=ThreadPolicy.fixed(2),
        partitions=PartitionPolicy.fixed(QUICK + 1),
        takeover_after_ms=takeover_after_ms,
        buffer_size=10_000,
    )
    with BatchQueue("held-up", config) as queue:
        queue.add_handler(report, handler(REPORT_TAKES, result.slow))
        for item_type in types:
            queue.add_handler(item_type, handler(0.002, result.quick))
        reports = list(REPORTS_AT)
        for step in range(int(SECONDS / STEP)):
            now = step * STEP
            if reports and now >= reports[0]:
                reports.pop(0)
                put(report)
            for item_type in types:
                for _ in range(ITEMS_PER_STEP):
                    put(item_type)
            time.sleep(max(0.0, start + now + STEP - time.monotonic()))
    return result


def draw(runs: dict[str, Run], path: Path) -> None:
    """Draw the calls of each thread, and the quick items that wait."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(
        2, len(runs), figsize=(10, 4.4), sharex=True, sharey="row", height_ratios=(2, 3)
    )
    moments = [step * 0.02 for step in range(int((SECONDS + 0.5) / 0.02))]
    for column, (title, result) in enumerate(runs.items()):
        calls, backlog = axes[0][column], axes[1][column]
        for row, thread in enumerate(result.threads()):
            for kind, colour in ((result.quick, "#4878a8"), (result.slow, "#d1603d")):
                bars = [(c.start, c.end - c.start) for c in kind if c.thread == thread]
                calls.broken_barh(bars, (row - 0.35, 0.7), color=colour)
        calls.set_title(title, fontsize=10)
        calls.set_yticks((0, 1), ("thread 0", "thread 1"))
        if column == 0:
            calls.invert_yaxis()  # of both: they share it
        backlog.fill_between(moments, [result.waiting(at) for at in moments], color="#4878a8")
        backlog.set_xlabel("seconds")
        backlog.set_xlim(0, SECONDS + 0.4)
        backlog.set_xticks(range(int(SECONDS) + 1))
    axes[0][0].set_ylabel("calls")
    axes[1][0].set_ylabel("quick items that wait")
    handles = [plt.Rectangle((0, 0), 1, 1, color=colour) for colour in ("#d1603d", "#4878a8")]
    labels = [f"a class that takes {REPORT_TAKES} s a batch", f"{QUICK} quick classes"]
    figure.legend(handles, labels, loc="lower center", ncols=2, frameon=False)
    figure.tight_layout(rect=(0, 0.06, 1, 1))
    figure.savefig(path, dpi=110, metadata={"Software": None})


def main() -> None:
    """Run both, print how long quick items waited, and draw."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--picture", type=Path, help="write the picture here")
    args = parser.parse_args()
    runs = {
        "partitions stay with their thread": run(HOUR_MS),
        "other threads take over (the default)": run(20),
    }
    for name, result in runs.items():
        waits = result.waits()
        print(
            f"{name}: {len(waits):,} quick items, waited {waits[len(waits) // 2] * 1e3:.1f} ms "
            f"in the median, {waits[len(waits) * 99 // 100] * 1e3:,.0f} ms in 99 of 100, "
            f"{waits[-1] * 1e3:,.0f} ms at most"
        )
    if args.picture:
        draw(runs, args.picture)


if __name__ == "__main__":
    main()
