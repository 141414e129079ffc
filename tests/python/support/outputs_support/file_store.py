"""A fourth store, as a user would write one: all of it in one file, which a commit replaces."""

import fcntl
import json
import os
import pickle
import threading
from contextlib import contextmanager

from batchqueue.outputs import Epoch, MetricsReader, StoredMetric, StoreError, StoreTransaction
from batchqueue.outputs.store import FIRST_BUCKET


class FileTransaction(StoreTransaction):
    def __init__(self, sink):
        self.sink = sink

    def load(self, metric_type, keys):
        with self.guarded():
            found = (self.sink["partials"].get((metric_type, key)) for key in dict.fromkeys(keys))
            return [item.copy() for item in found if item is not None]

    def save(self, metrics):
        with self.guarded():
            for item in metrics:
                self.sink["partials"].pop((type(item), item.key), None)
                if item.to_rows():
                    self.sink["partials"][type(item), item.key] = item.copy()

    def raise_mark(self, query_id, batch_id):
        self.sink["marks"][query_id] = batch_id

    def add_summary(self, query_id, batch_id, summary):
        self.sink["epochs"].append(Epoch(query_id, batch_id, json.loads(summary)))
        del self.sink["epochs"][:-100]

    def last_batch(self, query_id):
        with self.guarded():
            return self.sink["marks"].get(query_id)

    def known_queries(self):
        with self.guarded():
            return set(self.sink["marks"])

    def summaries(self, newest=None):
        with self.guarded():
            return self.sink["epochs"][-newest:] if newest else list(self.sink["epochs"])

    def description(self):
        with self.guarded():
            return self.sink["description"]

    def describe(self, description):
        with self.guarded():
            self.sink["description"] = dict(description)

    def delete(self, before, *, since=FIRST_BUCKET, keep=()):
        with self.guarded():
            partials = self.sink["partials"]
            gone = [key for key in partials if since <= key[1][1] < before and key[0] not in keep]
            return sum(len(partials.pop(key).to_rows()) for key in gone)

    def clear(self):
        with self.guarded():
            self.sink.clear()
            self.sink.update(empty())


def empty():
    return {"partials": {}, "marks": {}, "epochs": [], "description": None}


class FileStore(MetricsReader):
    transaction_type = FileTransaction

    def __init__(self, path):
        self.path = path

    def prepare(self):
        with self._lock():
            pass

    @contextmanager
    def transaction(self, sink_id="default"):
        with self._lock():
            sinks = self._sinks()
            transaction = self.transaction_type(sinks.setdefault(sink_id, empty()))
            yield transaction
            transaction.check()
            self._commit(sinks)

    def rows(self, selection):
        partials = self._sinks().get(selection.sink_id, empty())["partials"]
        found = [
            (*key, *((rank,) if item.multi_row else ()), *item.key_values, *row)
            for (kind, key), item in partials.items()
            if kind is selection.metric_type and selection.wants(*key)
            for rank, row in enumerate(item.to_rows(), 1)
        ]
        yield from sorted(found, key=lambda row: row[:2])

    def metrics(self, sink_id="default"):
        buckets = {}
        for kind, (_, bucket) in self._sinks().get(sink_id, empty())["partials"]:
            buckets.setdefault(kind, []).append(bucket)
        found = [StoredMetric(kind, len(of), min(of), max(of)) for kind, of in buckets.items()]
        return sorted(found, key=lambda metric: metric.metric_type.name)

    @contextmanager
    def _lock(self):
        with open(f"{self.path}.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _sinks(self):
        if not self.path.exists():
            return {}
        try:
            return pickle.loads(self.path.read_bytes())
        except pickle.PickleError as error:
            raise StoreError(f"{self.path} is damaged: restore it from a copy") from error

    def _commit(self, sinks):
        new = self.path.with_suffix(f".{threading.get_ident()}")
        new.write_bytes(pickle.dumps(sinks))
        os.replace(new, self.path)
