"""What an Iceberg store has, and whether its data files and its ledger are whole."""

from typing import Any

from batchqueue._words import counted
from batchqueue.outputs.iceberg.store import IcebergStore
from batchqueue.outputs.reading import Selection
from batchqueue.outputs.report import StoreReport
from batchqueue.outputs.store import StoreError, StoreUnavailableError


def check_iceberg(store: IcebergStore) -> StoreReport:
    """Read a whole store, and report what it has and what is wrong.

    Raises:
        StoreError: It cannot be read.
        StoreUnavailableError: The catalog is down or out of reach.
    """
    report = StoreReport()
    for sink_id in store.sinks():
        try:
            _add_sink(report, store, sink_id)
        except StoreUnavailableError:
            raise
        except StoreError as error:
            report.sink(sink_id)
            report.problems.append(str(error))
    return report


def _add_sink(report: StoreReport, store: IcebergStore, sink_id: str) -> None:
    epochs = store.summaries(sink_id)
    newest = {(sink_id, epoch.query_id): epoch.batch_id for epoch in epochs}
    with store.ledger(sink_id) as ledger:
        queries = ledger.known_queries() if ledger is not None else set()
        marks = {(sink_id, query): ledger.last_batch(query) or 0 for query in queries if ledger}
    report.add_ledger(marks, newest)
    if epochs:
        report.add_newest(sink_id, epochs[-1].summary)
    for metric in store.metrics(sink_id):
        report.sink(sink_id).rows += metric.rows
        keys: set[tuple[Any, ...]] = set()
        rows, count = Selection(metric_type=metric.metric_type, sink_id=sink_id), 0
        length = 3 if metric.metric_type.multi_row else 2
        for row in store.rows(rows):
            count += 1
            keys.add(row[:length])
        if len(keys) < count:
            report.problems.append(
                f"sink {sink_id!r} has {counted(count - len(keys), 'row')} of metric "
                f"{metric.metric_type.name} whose key another row has: another program has added "
                "them, and one of each key counts"
            )
