"""Another program that writes into the Iceberg table of a sink, as a compaction or a DELETE would.

pyiceberg itself writes into such partitions with the package pyiceberg-core only.
"""

import uuid
from collections.abc import Callable

import pyarrow as pa
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.io.pyarrow import ArrowScan, write_file
from pyiceberg.partitioning import PartitionFieldValue, PartitionKey
from pyiceberg.table import Table, WriteTask


def rewrite(table: Table, change: Callable[[pa.Table], pa.Table] = lambda rows: rows) -> None:
    """Replaces each data file by one with the same rows, or with changed ones, in one snapshot."""
    metadata = table.metadata
    with table.transaction() as opened, opened.update_snapshot().overwrite() as snapshot:
        for number, task in enumerate(table.scan().plan_files()):
            rows = change(
                ArrowScan(metadata, table.io, metadata.schema(), AlwaysTrue()).to_table([task])
            )
            snapshot.delete_data_file(task.file)
            if not len(rows):
                continue
            fields = metadata.spec().fields
            key = PartitionKey(
                [
                    PartitionFieldValue(field, task.file.partition[index])
                    for index, field in enumerate(fields)
                ],
                metadata.spec(),
                metadata.schema(),
            )
            made = WriteTask(
                uuid.uuid4(), number, metadata.schema(), rows.to_batches(), partition_key=key
            )
            for file in write_file(table.io, metadata, iter([made])):
                snapshot.append_data_file(file)
