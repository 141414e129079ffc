"""P9: a process started by multiprocessing makes its own queues; only the config travels to it."""

import subprocess
import sys

from core_support.scripts import SCRIPT_S

SCRIPT = """
import multiprocessing
from concurrent.futures import ProcessPoolExecutor

from batchqueue import BatchQueue, BatchQueueConfig, ThreadPolicy


class Order:
    def __init__(self, price):
        self.price = price


class Totals:
    def __init__(self):
        self.total = 0

    def consume(self, batch):
        self.total += sum(order.price for order in batch)


def work(config, count):
    with BatchQueue("worker", config) as queue:
        queue.add_handler(Order, totals := Totals())
        queue.produce_many([Order(price) for price in range(count)])
    return totals.total


if __name__ == "__main__":
    config = BatchQueueConfig(threads=ThreadPolicy.fixed(2))
    with BatchQueue("parent", config) as queue:
        queue.add_handler(Order, totals := Totals())
        queue.produce(Order(1))
        with ProcessPoolExecutor(2, multiprocessing.get_context("spawn")) as pool:
            futures = [pool.submit(work, config, count) for count in (10, 20, 30)]
            print([future.result() for future in futures])
            try:
                pool.submit(len, [queue]).result()
            except TypeError as error:
                print(error)
        queue.produce(Order(2))
    print(totals.total)
"""


def test_multiprocessing_with_spawn_works_beside_a_queue(tmp_path):
    # A file, because the processes import it again.
    script = tmp_path / "program.py"
    script.write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, timeout=SCRIPT_S, check=False
    )
    totals, refusal, total = done.stdout.splitlines() or [done.stderr, "", ""]
    assert (done.returncode, totals, total) == (0, "[45, 190, 435]", "3")
    assert "send its BatchQueueConfig" in refusal, refusal
