"""`check_store` passes on the stores that we have and on a fourth one, and finds what is wrong."""

import time
from contextlib import contextmanager, nullcontext
from dataclasses import replace

import pytest

from batchqueue.outputs import Selection
from batchqueue.outputs.store import FIRST_BUCKET
from batchqueue.outputs.testing import COUNT, check_store
from outputs_support.file_store import FileStore, FileTransaction, empty


@pytest.mark.matrix(4)
@pytest.mark.timeout(600)
def test_stores_keep_the_contract(open_store):
    check_store(open_store)
    assert open_store().sinks() == []


def test_fourth_store_keeps_the_contract(tmp_path):
    check_store(lambda: FileStore(tmp_path / "metrics"))


def test_store_without_the_optional_methods_keeps_the_contract(tmp_path):
    class Least:
        """Only what `MetricsStore` has."""

        def __init__(self):
            self.store = FileStore(tmp_path / "metrics")

        def prepare(self):
            self.store.prepare()

        def transaction(self, sink_id="default"):
            return self.store.transaction(sink_id)

        def __reduce__(self):
            return FileStore, (self.store.path,)

    check_store(Least)


def test_transaction_with_its_own_merge_gets_objects(tmp_path):
    merged = []

    class OwnMerge(FileTransaction):
        def merge(self, metrics):
            merged.extend(metrics)

    class Store(FileStore):
        transaction_type = OwnMerge

    with Store(tmp_path / "metrics").transaction() as transaction:
        transaction.merge_rows(COUNT, [("a", 0, 7)])
    assert merged == [COUNT("a", 0, 7)]


class AddsInsteadOfReplacing(FileTransaction):
    def save(self, metrics):
        for item in metrics:
            there = self.sink["partials"].get((type(item), item.key))
            if there is None:
                super().save([item])
            else:
                there.combine(item)


class ReplacesWhatComesAsRows(FileTransaction):
    def merge_rows(self, metric_type, rows):
        self.save_rows(metric_type, rows)


class LosesNaNInRows(FileTransaction):
    def save_rows(self, metric_type, rows):
        plain = [tuple(None if value != value else value for value in row) for row in rows]
        super().save_rows(metric_type, plain)


class KeepsRowsOfAnEmptyPartial(FileTransaction):
    def save(self, metrics):
        super().save([item for item in metrics if item.to_rows()])


class ForgetsMarks(FileTransaction):
    def raise_mark(self, query_id, batch_id):
        pass


class LowersMarks(FileTransaction):
    def raise_mark(self, query_id, batch_id):
        super().raise_mark(query_id, batch_id - 1)


class KeepsTheLedgerInClear(FileTransaction):
    def clear(self):
        self.sink["partials"].clear()


class DeletesOneBucketMore(FileTransaction):
    def delete(self, before, *, since=FIRST_BUCKET, keep=()):
        return super().delete(before + 1, since=since, keep=keep)


class DeletesFromTheBeginning(FileTransaction):
    def delete(self, before, *, since=FIRST_BUCKET, keep=()):
        return super().delete(before, keep=keep)


class DeletesAllMetrics(FileTransaction):
    def delete(self, before, *, since=FIRST_BUCKET, keep=()):
        return super().delete(before, since=since)


class CountsPartialsInsteadOfRows(FileTransaction):
    def delete(self, before, *, since=FIRST_BUCKET, keep=()):
        rows = super().delete(before, since=since, keep=keep)
        return rows and rows + 1


class ForgetsItsErrors(FileTransaction):
    def check(self):
        pass


class KeepsOldSummaries(FileTransaction):
    def add_summary(self, query_id, batch_id, summary):
        if len(self.sink["epochs"]) < 3:
            super().add_summary(query_id, batch_id, summary)


class RoundsNumbers(FileTransaction):
    def save(self, metrics):
        for item in metrics:
            if "total" in type(item).columns and item.total is not None:
                item._sum = int(float(item._sum))
        super().save(metrics)


@pytest.mark.parametrize(
    ("mutant", "words"),
    [
        (AddsInsteadOfReplacing, ["the one before it is still there"]),
        (ReplacesWhatComesAsRows, ["after call 2 of merge_rows()"]),
        (LosesNaNInRows, ["was merged as a row, and comes back as"]),
        (KeepsRowsOfAnEmptyPartial, ["a ranking without entries was saved"]),
        (ForgetsMarks, ["mark"]),
        (LowersMarks, ["mark"]),
        (KeepsTheLedgerInClear, ["clear()"]),
        (DeletesOneBucketMore, ["delete"]),
        (DeletesFromTheBeginning, ["delete"]),
        (DeletesAllMetrics, ["delete"]),
        (CountsPartialsInsteadOfRows, ["delete() returned"]),
        (ForgetsItsErrors, ["must not commit after an error of a method that was caught"]),
        (KeepsOldSummaries, ["summar"]),
        (RoundsNumbers, ["was saved, and comes back as"]),
    ],
)
def test_transaction_that_breaks_a_rule_is_found(tmp_path, mutant, words):
    class Store(FileStore):
        transaction_type = mutant

        def __reduce__(self):
            return FileStore, (self.path,)

    with pytest.raises(AssertionError) as found:
        check_store(lambda: Store(tmp_path / "metrics"))
    message = str(found.value)
    assert message.startswith("store Store: ")
    assert all(word in message for word in words), message


class CommitsAfterAnError(FileStore):
    @contextmanager
    def transaction(self, sink_id="default"):
        with self._lock():
            sinks = self._sinks()
            transaction = self.transaction_type(sinks.setdefault(sink_id, empty()))
            try:
                yield transaction
                transaction.check()
            finally:
                self._commit(sinks)


class HidesErrors(FileStore):
    @contextmanager
    def transaction(self, sink_id="default"):
        with self._lock():
            sinks = self._sinks()
            transaction = self.transaction_type(sinks.setdefault(sink_id, empty()))
            try:
                yield transaction
                transaction.check()
            except Exception:
                return
            self._commit(sinks)


class SharesSinks(FileStore):
    def transaction(self, sink_id="default"):
        return super().transaction("one for all")


class WithoutLock(FileStore):
    def _lock(self):
        return nullcontext()

    def _commit(self, sinks):
        time.sleep(0.01)
        super()._commit(sinks)


class ReadsEverything(FileStore):
    def rows(self, selection):
        return super().rows(Selection(metric_type=selection.metric_type, sink_id=selection.sink_id))


class IgnoresKeyColumns(FileStore):
    def rows(self, selection):
        return super().rows(replace(selection, keys=()))


class LeavesKeyColumnsOut(FileStore):
    def rows(self, selection):
        keys = len(selection.metric_type.key_columns)
        return ((*row[:2], *row[2 + keys :]) for row in super().rows(selection))


class KnowsNoMetrics(FileStore):
    def metrics(self, sink_id="default"):
        return []


@pytest.mark.parametrize(
    ("mutant", "words"),
    [
        (CommitsAfterAnError, "after a transaction that ended with an error"),
        (HidesErrors, "an error in the block of a transaction must be passed on"),
        (SharesSinks, "read(check_store.count) is [], and not [<"),
        (WithoutLock, "by 4 threads"),
        (ReadsEverything, "of a selection"),
        (IgnoresKeyColumns, "read(keys="),
        (LeavesKeyColumnsOut, "rows(check_store.by_place)"),
        (KnowsNoMetrics, "the names of metrics()"),
    ],
)
def test_store_that_breaks_a_rule_is_found(tmp_path, mutant, words):
    with pytest.raises(AssertionError, match=r"^store ") as found:
        check_store(lambda: mutant(tmp_path / "metrics"))
    assert words in str(found.value), str(found.value)
