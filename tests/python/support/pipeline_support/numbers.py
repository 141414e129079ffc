"""A source of numbers, in splits of several partitions."""

import threading

import pyarrow as pa

from batchqueue.pipeline import Lag, Plan, Split

SCHEMA = pa.schema({"n": pa.int64(), "partition": pa.string()})


class Numbers:
    """The numbers from 0 up to `rows`, in splits that go to the partitions in turn.

    The position is the number of the next split. `bytes_of_row` adds a column of such strings.
    """

    def __init__(
        self, rows, *, split_rows=100, partitions=1, bounded=True, bytes_of_row=0, batch_rows=None
    ):
        self.name = "numbers"
        self.bounded = bounded
        self.rows = rows
        self.split_rows = split_rows
        self.partitions = partitions
        self.bytes_of_row = bytes_of_row
        self.batch_rows = batch_rows
        self.reads = []
        self.commits = []
        self.threads = set()

    def schema(self):
        return SCHEMA

    def initial(self):
        return {"split": 0}

    def plan(self, start, limit):
        self.threads.add(threading.get_ident())
        splits, rows, size = [], 0, 0
        for number in range(start["split"], self.splits):
            split = self._split(number)
            rows, size = rows + split.rows, size + split.bytes
            if splits and (rows > limit.rows or size > limit.bytes):
                break
            splits.append(split)
        return Plan(tuple(splits), splits[-1].end if splits else start)

    def between(self, start, end):
        return [self._split(number) for number in range(start["split"], end["split"])]

    def read(self, split):
        self.reads.append(split.what)
        first, last = split.what
        step = self.batch_rows or max(1, last - first)
        for at in range(first, last, step):
            numbers = list(range(at, min(at + step, last)))
            columns = {"n": numbers, "partition": [split.partition] * len(numbers)}
            if self.bytes_of_row:
                columns["text"] = ["x" * self.bytes_of_row] * len(numbers)
            yield pa.record_batch(columns)

    def lag(self, at):
        return {"0": Lag(self.rows - at["split"] * self.split_rows, None)}

    def commit(self, end):
        self.threads.add(threading.get_ident())
        self.commits.append(end)

    @property
    def splits(self):
        return -(-self.rows // self.split_rows)

    def _split(self, number):
        first = number * self.split_rows
        last = min(first + self.split_rows, self.rows)
        return Split(
            str(number % self.partitions),
            {"split": number},
            {"split": number + 1},
            last - first,
            (last - first) * (16 + self.bytes_of_row),
            (first, last),
        )
