"""What an Iceberg store has, and whether its data files and its ledger are whole."""

from batchqueue._words import counted
from batchqueue.outputs.iceberg.store import IcebergStore
from batchqueue.outputs.layout import table_layout
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
    with store.ledger(sink_id) as ledger:
        if ledger is not None:
            epochs = ledger.summaries()
            marks = {query: ledger.last_batch(query) for query in ledger.known_queries()}
            report.add_ledger(
                {(sink_id, query): mark for query, mark in marks.items() if mark is not None},
                {(sink_id, epoch.query_id): epoch.batch_id for epoch in epochs},
            )
            if epochs:
                report.add_newest(sink_id, epochs[-1].summary)
    for metric in store.metrics(sink_id):
        rows = store.read_table(metric.metric_type, sink_id)
        report.sink(sink_id).rows += len(rows)
        keys = list(table_layout(metric.metric_type).key_columns[1:])
        repeated = len(rows) - len(rows.select(keys).group_by(keys).aggregate([]))
        if repeated:
            report.problems.append(
                f"sink {sink_id!r} has {counted(repeated, 'row')} of metric "
                f"{metric.metric_type.name} whose key another row has: another program has added "
                "them, and one of each key counts; delete those that are wrong"
            )
