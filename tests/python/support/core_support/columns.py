"""Record batches with a column of tags, and a handler that keeps them."""

import pyarrow as pa


class Rows:
    """Keeps its record batches."""

    def __init__(self):
        self.batches = []

    def consume(self, batch):
        self.batches.extend(batch)

    @property
    def numbers(self):
        return [number for batch in self.batches for number in batch.column("number").to_pylist()]


def table(tags, **columns):
    return pa.table({"tag": tags, "number": pa.array(range(len(tags)), pa.int64()), **columns})


def record_batch(tags, **columns):
    return table(tags, **columns).combine_chunks().to_batches()[0]
