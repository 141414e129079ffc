"""The smallest source and sink, for tests of graphs that do not run."""

import pyarrow as pa

from batchqueue.pipeline import Plan


class Nothing:
    """A source without input."""

    bounded = True

    def __init__(self, name="nothing"):
        self.name = name

    def schema(self):
        return pa.schema({"n": pa.int64()})

    def initial(self):
        return {}

    def plan(self, start, limit):
        return Plan((), start)

    def between(self, start, end):
        return ()

    def read(self, split):
        return iter(())

    def lag(self, at):
        return {}

    def commit(self, end):
        pass


class Kept:
    """A sink that keeps its chunks."""

    batch_rows = 1

    def __init__(self):
        self.chunks = []

    def write(self, chunks):
        self.chunks += chunks
