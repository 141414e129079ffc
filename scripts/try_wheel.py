"""Tries the installed package: items and handlers, and with pyarrow also rows."""

import shutil
import sys
from importlib.util import find_spec

import batchqueue
from batchqueue import BatchQueue, BatchQueueConfig, PartitionPolicy, ThreadPolicy

SETTINGS: BatchQueueConfig[object] = BatchQueueConfig(
    threads=ThreadPolicy.fixed(2), partitions=PartitionPolicy.fixed(2)
)


def expect(found: object, wanted: object) -> None:
    """Exit with an error unless the values are equal."""
    if found != wanted:
        sys.exit(f"{found!r} instead of {wanted!r}")


def try_handlers() -> None:
    """Send items of two classes to their handlers, in order."""
    numbers: list[int] = []
    words: list[str] = []
    with BatchQueue("try", SETTINGS) as queue:
        queue.add_handler(int, numbers.extend)
        queue.add_handler(str, words.extend)
        expect(queue.produce_many([0, "a", 1, "b", 2]), 5)
    expect((numbers, words), ([0, 1, 2], ["a", "b"]))


def try_rows() -> None:
    """Send rows to a function, as record batches, and to an aggregator."""
    import pyarrow as pa

    from batchqueue.aggregation import Aggregation, Aggregator, Sum

    rows = pa.table(
        {"kind": ["sale", "sale", "visit", "sale"], "shop": [1, 2, 1, 1], "amount": [5, 7, 0, 9]}
    )
    totals = Aggregator(Aggregation(keys=["shop"], measures={"total": Sum("amount")}))
    visits: list[pa.RecordBatch] = []
    with BatchQueue("rows", SETTINGS) as queue:
        queue.add_handler("sale", totals)
        queue.add_handler("visit", visits.extend)
        expect(queue.produce_arrow(rows, type_column="kind"), 4)
    expect(sum(batch.num_rows for batch in visits), 1)
    expect(totals.result().to_pylist(), [{"shop": 1, "total": 14}, {"shop": 2, "total": 7}])


def main() -> None:
    """Try everything, and print what was tried."""
    expect([shutil.which(tool) for tool in ("cargo", "rustc")], [None, None])
    expect(batchqueue.__file__.startswith(sys.prefix), True)
    try_handlers()
    tried = "handlers"
    if find_spec("pyarrow") is not None:
        try_rows()
        tried += ", produce_arrow, Aggregator"
    print(f"tried:      {tried} on Python {sys.version.split()[0]}, without Rust")


if __name__ == "__main__":
    main()
