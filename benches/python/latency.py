"""Time from `produce` into an idle queue to the handler: alone, and beside computing threads."""

import contextlib
import statistics
import threading
import time
from collections.abc import Iterator

from batchqueue import BatchQueue, BatchQueueConfig, ThreadPolicy


@contextlib.contextmanager
def burning(threads: int) -> Iterator[None]:
    """Run a number of Python threads that compute continuously."""
    stop = False

    def burn() -> None:
        while not stop:
            sum(range(1_000))

    burners = [threading.Thread(target=burn) for _ in range(threads)]
    for burner in burners:
        burner.start()
    try:
        yield
    finally:
        stop = True
        for burner in burners:
            burner.join()


def percentiles_us(items: int, burners: int) -> tuple[float, float]:
    """Return the 50th and 99th percentile of the waits of single items, in microseconds."""
    waits = []
    arrived = threading.Event()

    def handler(batch: list[float]) -> None:
        waits.extend(time.perf_counter() - sent for sent in batch)
        arrived.set()

    config: BatchQueueConfig[float] = BatchQueueConfig(
        threads=ThreadPolicy.fixed(1), min_idle_ms=0, max_idle_ms=1_000
    )
    with BatchQueue("bench", config) as queue, burning(burners):
        queue.add_handler(float, handler)
        for _ in range(items):
            arrived.clear()
            queue.produce(time.perf_counter())
            arrived.wait()
            # Long enough for the drain thread to fall asleep again.
            time.sleep(0.002)
    quantiles = statistics.quantiles(waits, n=100)
    return quantiles[49] * 1e6, quantiles[98] * 1e6
