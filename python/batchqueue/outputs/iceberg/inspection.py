"""What an Iceberg store has, and whether its data files and its ledger are whole."""

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
        for _ in store.batches(Selection(metric_type=metric.metric_type, sink_id=sink_id)):
            pass
