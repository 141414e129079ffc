"""What is read of the table of a sink."""

import pyarrow as pa
from pyiceberg.expressions import BooleanExpression

from batchqueue.outputs.iceberg.table import ALL, Files, SinkTable, all_of, equal, one_of, within
from batchqueue.outputs.layout import Layout
from batchqueue.outputs.partitioned import in_order
from batchqueue.outputs.reading import Selection, StoredMetric, stored_type


def read_selected(sink: SinkTable, layout: Layout, selection: Selection) -> list[pa.Table]:
    """Read the rows of a selection, in order, without the metric's name; none if there are none."""
    if layout.table not in sink.layouts:
        return []
    stored = sink.stored_layout(layout)
    columns = dict(zip((name for name, _ in layout.columns), stored.columns, strict=True))
    buckets = range(
        ALL.start if selection.since is None else selection.since,
        ALL.stop if selection.before is None else selection.before,
    )
    files = sink.files(buckets, layout.table)
    condition = _condition(selection, columns, buckets)
    rows = sink.rows(stored, [file for some in files.values() for file in some], condition)
    return [in_order(rows, layout).drop_columns(["metric"])]


def _condition(selection: Selection, columns: dict[str, str], buckets: range) -> BooleanExpression:
    conditions = [equal("metric", selection.metric_type.name), *within(buckets)]
    if selection.entities is not None:
        conditions.append(one_of("entity", selection.entities))
    for column, wanted in selection.keys:
        conditions.append(one_of(columns[column], wanted))
    return all_of(conditions)


def metrics_in(sink: SinkTable) -> list[StoredMetric]:
    """Return the metrics of a sink, in no order."""
    files: dict[str, Files] = {}
    for (table, _), some in sink.files(ALL).items():
        files.setdefault(table, []).extend(some)
    found = []
    for table, of_table in files.items():
        grouped = (
            sink.keys(of_table)
            .group_by("metric")
            .aggregate([("time_bucket", "count"), ("time_bucket", "min"), ("time_bucket", "max")])
        )
        layout = sink.layouts[table].layout
        for name, *numbers in zip(*(each.to_pylist() for each in grouped.columns), strict=True):
            found.append(StoredMetric(stored_type(name, layout), *numbers))
    return found
