"""What `MetricsWriter` refuses before it does anything: arguments of other classes."""

from typing import Any

import pytest
from pyspark.sql import DataFrame

from batchqueue import ConfigError
from batchqueue.outputs import SqliteStore
from batchqueue.spark import MetricsWriter
from spark_support.flight_job import flight_job


def test_arguments_of_another_class_are_rejected(table: DataFrame, store: SqliteStore) -> None:
    given: Any = [1]
    with pytest.raises(ConfigError, match="MetricsWriter got a list; give an AggregationJob"):
        MetricsWriter(given)
    writer = MetricsWriter(flight_job(store))
    for write in (writer.write_batch, lambda rows: writer.write_epoch(rows, 0)):
        with pytest.raises(ConfigError, match="MetricsWriter got a list; give a DataFrame of Spa"):
            write(given)
    with pytest.raises(ConfigError, match=r"txn_id=\[1\] is a list: give a text"):
        writer.write_batch(table, txn_id=given)
