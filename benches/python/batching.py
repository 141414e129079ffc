"""Draws what `max_batch_items` and `max_delay_ms` do to the size of batches and the time to wait.

One class, one drain thread, batches of at most 500, at several rates. `make bench-python` draws the
picture of the guide.
"""

import argparse
import time
from pathlib import Path
from typing import NamedTuple

from batchqueue import BatchQueue, BatchQueueConfig, ThreadPolicy

RATES = (100, 1_000, 10_000, 100_000)
DELAYS_MS = (None, 5, 50, 200)
MOST = 500
SECONDS = 2.0
STEP = 0.001


class Figures(NamedTuple):
    """One run: items of a call, and the time from put to call of 99 in 100 items."""

    items: float
    wait_ms: float


def run(rate: int, delay_ms: float | None) -> Figures:
    """Put items in at a rate for `SECONDS`."""
    sizes: list[int] = []
    waits: list[float] = []

    def consume(batch: list[float]) -> None:
        now = time.monotonic()
        sizes.append(len(batch))
        waits.extend(now - put_at for put_at in batch)

    config = BatchQueueConfig(
        threads=ThreadPolicy.fixed(1), max_batch_items=MOST, max_delay_ms=delay_ms
    )
    with BatchQueue("batching", config) as queue:
        queue.add_handler(float, consume)
        start, done = time.monotonic(), 0
        while (elapsed := time.monotonic() - start) < SECONDS:
            while done < elapsed * rate:
                queue.produce(time.monotonic())
                done += 1
            time.sleep(min(STEP, 1 / rate))
    waits.sort()
    return Figures(len(waits) / len(sizes), waits[len(waits) * 99 // 100] * 1e3)


def full_batches(rate: int, seconds: float) -> tuple[float, float]:
    """Put lists in at a rate that fills every batch long before its delay ends.

    Returns:
        Items per second from the first put to the last call; the share of calls that had exactly
        `MOST` items.
    """
    sizes: list[int] = []
    config = BatchQueueConfig(
        threads=ThreadPolicy.fixed(1), buffer_size=200_000, max_batch_items=MOST, max_delay_ms=50
    )
    piece = list(range(2 * MOST))
    with BatchQueue("batching", config) as queue:
        queue.add_handler(int, lambda batch: sizes.append(len(batch)))
        start, done = time.monotonic(), 0
        while done < rate * seconds:
            if done > rate * (time.monotonic() - start):
                time.sleep(STEP / 4)
            else:
                done += queue.produce_many(piece)
        queue.flush()
        took = time.monotonic() - start
    return sum(sizes) / took, sizes.count(MOST) / len(sizes)


def draw(figures: dict[float | None, list[Figures]], path: Path) -> None:
    """Draw both figures by rate, a line for each delay."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    plot, (sizes, waits) = plt.subplots(1, 2, figsize=(10, 3.8))
    for delay_ms, runs in figures.items():
        label = "no max_delay_ms" if delay_ms is None else f"max_delay_ms={delay_ms}"
        sizes.plot(RATES, [run.items for run in runs], marker="o", label=label)
        waits.plot(RATES, [run.wait_ms for run in runs], marker="o", label=label)
    for axes, what in ((sizes, "items of a call"), (waits, "ms that 99 of 100 items wait at most")):
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xlabel("items per second")
        axes.set_title(what, fontsize=10)
        axes.grid(alpha=0.3)
    sizes.legend(frameon=False, fontsize=9)
    plot.tight_layout()
    plot.savefig(path, dpi=110, metadata={"Software": None})


def main() -> None:
    """Run all, print a table, and draw."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--picture", type=Path, help="write the picture here")
    args = parser.parse_args()
    figures: dict[float | None, list[Figures]] = {}
    for delay_ms in DELAYS_MS:
        runs = figures[delay_ms] = [run(rate, delay_ms) for rate in RATES]
        row = ", ".join(
            f"{rate:,}/s: {figure.items:.0f} items, {figure.wait_ms:.1f} ms"
            for rate, figure in zip(RATES, runs, strict=True)
        )
        print(f"max_delay_ms={delay_ms}: {row}")
    if args.picture:
        draw(figures, args.picture)


if __name__ == "__main__":
    main()
